// What Ctrl-C does: a command stops with exit code 130, and leaves neither half a report nor a half-written
// file.
#pragma once

#include <atomic>
#include <csignal>
#include <string_view>

#include "cli/common/exit_codes.h"

namespace cp::cli {

inline constexpr int kInterruptedExitCode = exit_code_of_signal(SIGINT);

// From here on SIGINT and SIGTERM end the process at once, with the exit codes 130 and 143 and one line on
// standard error: "<program>: interrupted". Nothing needs to be cleaned up: a report is printed in one go at
// the end, and files are written inside finish(). A signal that was ignored when the process started stays
// ignored.
//
// Call it first of all in main(). `program` may have at most 40 characters, since the line is made
// beforehand: a signal handler may not allocate memory.
void handle_interrupts(std::string_view program);

// The same for a process whose launcher says how it ended: it prints nothing, and dies of the signal itself.
void handle_interrupts_quietly();

// While an InterruptScope exists, the first of these signals only sets interrupted(). It is for loops that
// have results to show when they are stopped. The second signal ends the process as above. Only one may exist
// at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted() { return flag(); }
  static const std::atomic<bool>& flag();
};

[[noreturn]] void end_interrupted();  // ends with code 130, and prints the line unless it is to be quiet

// Calls f(), which writes a file. A signal that arrives meanwhile ends the process only after f() has
// returned.
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
