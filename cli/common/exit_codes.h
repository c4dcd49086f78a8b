// The exit codes of cpsim and cprun. There is one table of them, which --help and docs/architecture.md show.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"

namespace cp::cli {

using runtime::exit_code;
using runtime::exit_code_of_signal;

inline constexpr int kSuccess = 0;
// A defect of the program, and nothing that the user did. The number is EX_SOFTWARE of sysexits.h.
inline constexpr int kInternalError = 70;

struct ExitCodeRow {
  int code = 0;
  std::optional<ErrorKind> kind;  // the kind of error that ends with this code, if it is an error's
  const char* meaning = "";       // "a peer or host was lost"
};

// All codes in ascending order. The codes of signals are not among them, since there are many.
std::span<const ExitCodeRow> exit_code_table();

// The table as text: "Exit codes: 0 success; 1 a check or comparison failed; ...; 128 + n for a process that
// signal n ended". A line has at most `columns` bytes, and breaks only between two codes.
std::string exit_codes_text(std::size_t columns);
// The width of all help texts, in bytes. Chosen: it fits beside another window on most screens, and flags
// with their descriptions need more than 80.
inline constexpr std::size_t kHelpColumns = 100;

}  // namespace cp::cli
