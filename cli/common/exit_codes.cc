#include "cli/common/exit_codes.h"

#include <algorithm>
#include <vector>

namespace cp::cli {
namespace {

const char* meaning(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::check_failed:
      return "a check or comparison failed";
    case ErrorKind::invalid_input:
      return "bad input";
    case ErrorKind::collective_mismatch:
      return "collectives that do not match";
    case ErrorKind::deadlock:
      return "deadlock";
    case ErrorKind::timeout:
      return "stall or timeout";
    case ErrorKind::peer_lost:
      return "a peer or host was lost";
    case ErrorKind::rendezvous:
      return "ranks cannot find one another";
    case ErrorKind::authentication:
      return "a wrong token";
    case ErrorKind::address_in_use:
      return "address in use";
    case ErrorKind::bad_trace:
      return "bad trace";
    case ErrorKind::ledger:
      return "a ledger does not add up";
    case ErrorKind::infeasible:
      return "nothing fits";
    case ErrorKind::cancelled:
      return "stopped because of another error";
  }
  invariant_failed("a known kind", __FILE__, __LINE__, str(static_cast<int>(kind)));
}

std::vector<ExitCodeRow> make_table() {
  std::vector<ExitCodeRow> rows = {{kSuccess, std::nullopt, "success"},
                                   {kInternalError, std::nullopt, "an internal error"}};
  for (const ErrorKind kind : kErrorKinds) rows.push_back({exit_code(kind), kind, meaning(kind)});
  std::ranges::sort(rows, {}, &ExitCodeRow::code);
  return rows;
}

}  // namespace

std::span<const ExitCodeRow> exit_code_table() {
  static const std::vector<ExitCodeRow> rows = make_table();
  return rows;
}

std::string exit_codes_text(std::size_t columns) {
  std::string text = "Exit codes:";
  std::size_t line = text.size();
  const auto add = [&](const std::string& part) {
    const bool fits = line + 1 + part.size() <= columns;
    text += fits ? " " : "\n  ";
    line = fits ? line + 1 + part.size() : 2 + part.size();
    text += part;
  };
  for (const ExitCodeRow& row : exit_code_table()) add(str(row.code, " ", row.meaning, ";"));
  add(str(exit_code_of_signal(0), " + n for a process that signal n ended"));
  return text;
}

}  // namespace cp::cli
