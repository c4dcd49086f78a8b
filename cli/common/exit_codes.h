// The exit codes of cpsim and cprun: one table, which --help and docs/architecture.md show.
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
// EX_SOFTWARE of sysexits.h: a defect of the program, and nothing that the user did.
inline constexpr int kInternalError = 70;

struct ExitCodeRow {
  int code = 0;
  std::optional<ErrorKind> kind;  // that ends with it, where it is an error's
  const char* meaning = "";       // "a peer or host was lost"
};

// By code, ascending; without the codes of signals, of which there are many.
std::span<const ExitCodeRow> exit_code_table();

// "Exit codes: 0 success; 1 a check or comparison failed; ...; 128 + n for a process that signal n ended", in
// lines of at most `columns` bytes.
std::string exit_codes_text(std::size_t columns);
inline constexpr std::size_t kHelpColumns = 100;

}  // namespace cp::cli
