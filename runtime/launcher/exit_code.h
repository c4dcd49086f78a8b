// What a process ends with that ends because of an Error. The codes are how a rank's process tells its
// launcher what happened, whichever program it runs: Job ends with them (job.h), and main() of a program of
// one's own does well to. cpsim and cprun end with the same ones; cli/common/exit_codes.h has all of theirs,
// in words.
#pragma once

#include <optional>

#include "shared/base/error.h"

namespace cp::runtime {

int exit_code(ErrorKind kind);

// Of a process that a signal ended, as shells say it.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// The kind that a process ended for; nothing for 0, for 128 + n of signal n, and for codes of a program's
// own. The one place where exit codes are read.
std::optional<ErrorKind> kind_of_exit_code(int code);

}  // namespace cp::runtime
