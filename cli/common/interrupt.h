// Ctrl-C: a command stops with exit code 130, and leaves neither half a report nor a half-written file.
#pragma once

#include <atomic>
#include <csignal>
#include <string_view>

#include "cli/common/exit_codes.h"

namespace cp::cli {

inline constexpr int kInterruptedExitCode = exit_code_of_signal(SIGINT);

// From here on SIGINT and SIGTERM end the process at once with codes 130 and 143, and a word on standard
// error: "<program>: interrupted". There is nothing to clean up: reports are printed in one go at the end,
// and files written in finish(). To be called first of all in main, with the program's name of at most 40
// characters.
void handle_interrupts(std::string_view program);

// The same for a process of which its launcher says how it ended: without a word, and by the signal itself.
void handle_interrupts_quietly();

// While one exists, the first of these signals only sets interrupted(): for loops that have something to say
// about what they did so far. The second one ends the process as above. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted() { return flag(); }
  static const std::atomic<bool>& flag();
};

[[noreturn]] void end_interrupted();  // with code 130, and the word where there is one

// Calls f(), which writes a file; a signal that comes meanwhile ends the process after that.
template <class F>
void finish(const F& f) {
  {
    const InterruptScope scope;
    f();
    if (!InterruptScope::interrupted()) return;
  }
  end_interrupted();
}

}  // namespace cp::cli
