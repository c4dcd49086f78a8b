// Errors: one exception type for each exit code of the command line tools, and the abort for broken
// invariants.
//
// A message says what was wrong with the values in it, why, and the nearest thing that would work.
#pragma once

#include <stdexcept>
#include <string>

#include "shared/base/text.h"

namespace cp {

enum class ExitCode : int {
  success = 0,
  check_failed = 1,
  invalid_input = 2,
  collective_mismatch = 10,
  deadlock = 11,
  timeout = 12,
  peer_lost = 13,
  rendezvous = 14,
  authentication = 15,
  address_in_use = 16,
  bad_trace = 17,
  nondeterminism = 18,
  ledger = 19,
  infeasible = 20,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message) : Error(kCode, message) {}
};

using CheckFailure = ErrorOf<ExitCode::check_failed>;   // a check or a comparison failed
using InvalidInput = ErrorOf<ExitCode::invalid_input>;  // bad usage, bad values, an illegal request
using CollectiveMismatch = ErrorOf<ExitCode::collective_mismatch>;  // ranks disagree about a collective
using Deadlock = ErrorOf<ExitCode::deadlock>;                       // a wait cycle
using Infeasible = ErrorOf<ExitCode::infeasible>;  // legal, but nothing keeps the given limits

[[noreturn]] void invariant_failed(const char* condition, const char* file, int line,
                                   const std::string& context);

// A broken invariant is a defect of this program, never of its input: it aborts with context, in release
// builds too.
#define CP_INVARIANT(condition, ...)  \
  ((condition) ? static_cast<void>(0) \
               : ::cp::invariant_failed(#condition, __FILE__, __LINE__, ::cp::str(__VA_ARGS__)))

}  // namespace cp
