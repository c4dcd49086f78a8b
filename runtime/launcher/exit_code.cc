#include "runtime/launcher/exit_code.h"

#include <algorithm>

namespace cp::runtime {

// The codes must stay as they are, because scripts compare with them. 18 is free; nothing ever ended with it.
// Not to be used are 64 to 78, which sysexits.h has, and those from 126 on, which shells have.
int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::check_failed:
      return 1;
    case ErrorKind::invalid_input:
      return 2;
    case ErrorKind::collective_mismatch:
      return 10;
    case ErrorKind::deadlock:
      return 11;
    case ErrorKind::timeout:
      return 12;
    case ErrorKind::peer_lost:
      return 13;
    case ErrorKind::rendezvous:
      return 14;
    case ErrorKind::authentication:
      return 15;
    case ErrorKind::address_in_use:
      return 16;
    case ErrorKind::bad_trace:
      return 17;
    case ErrorKind::ledger:
      return 19;
    case ErrorKind::infeasible:
      return 20;
    case ErrorKind::cancelled:
      return 21;
  }
  invariant_failed("a known kind", __FILE__, __LINE__, str(static_cast<int>(kind)));
}

std::optional<ErrorKind> kind_of_exit_code(int code) {
  const auto* const found =
      std::ranges::find_if(kErrorKinds, [&](ErrorKind kind) { return exit_code(kind) == code; });
  if (found == kErrorKinds.end()) return std::nullopt;
  return *found;
}

}  // namespace cp::runtime
