#include "cli/common/interrupt.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <unistd.h>

#include "shared/base/error.h"

namespace cp::cli {
namespace {

std::atomic<bool> deferring{false}, was_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch lock-free atomics alone");

// The last words, made before any handler can run.
// The line that end() prints. It is made before any handler can run. 64 bytes hold a program's name of 40
// characters and the words around it (15 characters).
std::array<char, 64> last_words;
std::size_t last_words_size = 0;

// It calls only functions that a signal handler may call (man 7 signal-safety).
[[noreturn]] void end(int code) {
  // Nothing can be done about a failure to say so.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, last_words.data(), last_words_size);
  _exit(code);
}

// The process dies of the signal itself, so that its parent sees which one it was. While a handler runs its
// signal is blocked, so it must be unblocked first.
void die_of(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, signal);
  sigprocmask(SIG_UNBLOCK, &own, nullptr);
  kill(getpid(), signal);
}

extern "C" void stop(int signal) {
  if (deferring.load() && !was_interrupted.exchange(true)) return;
  if (last_words_size == 0) die_of(signal);
  end(exit_code_of_signal(signal));
}

void install() {
  struct sigaction action = {};
  action.sa_handler = &stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction inherited = {};
    sigaction(signal, nullptr, &inherited);
    // A shell starts background jobs with SIGINT ignored: leave it so.
    if (inherited.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void handle_interrupts(std::string_view program) {
  const std::string words = str("\n", program, ": interrupted\n");
  CP_INVARIANT(words.size() <= last_words.size(), program);
  std::copy(words.begin(), words.end(), last_words.begin());
  last_words_size = words.size();
  install();
}

void handle_interrupts_quietly() {
  last_words_size = 0;
  install();
}

InterruptScope::InterruptScope() {
  was_interrupted = false;
  deferring = true;
}

InterruptScope::~InterruptScope() { deferring = false; }

const std::atomic<bool>& InterruptScope::flag() { return was_interrupted; }

void end_interrupted() { end(kInterruptedExitCode); }

}  // namespace cp::cli
