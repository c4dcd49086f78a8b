// The exit codes of processes that end because of an Error. By these codes a rank's process tells its
// launcher what happened, whichever program it runs. Job ends with them (job.h), and main() of your own
// program should, too. cpsim and cprun end with the same codes; cli/common/exit_codes.h describes all of
// theirs in words.
#pragma once

#include <optional>

#include "shared/base/error.h"

namespace cp::runtime {

int exit_code(ErrorKind kind);

// The code that stands for a process that a signal ended, as in shells.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// Returns the kind of error that a process ended for; nothing for 0, for 128 + n of signal n, and for a
// program's own codes. This is the only place that reads exit codes.
std::optional<ErrorKind> kind_of_exit_code(int code);

}  // namespace cp::runtime
