// An error is an exception that says as data what happened (its kind) and what it is about (its facts). A
// broken invariant is no error of this sort: CP_INVARIANT aborts.
//
//   throw InvalidInput(str("a mesh of ", size, " ranks; a world of ", world, " has room for as many"));
//   throw Deadlock(message, {.culprits = {2}, .group = "tp[0,1,2,3]", .sequence = 17});
//   ...
//   catch (const Error& error) { error.kind(); error.facts().culprits; }
//
// A message says what was wrong, with the values, why, and the nearest thing that would work. It is for
// people: code that has to decide something asks for the kind and the facts, and never searches the text
// (contract 13). Errors do not know exit codes; runtime/launcher/exit_code.h has them, and
// cli/common/exit_codes.h says what they mean.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/text.h"
#include "shared/base/types.h"

namespace cp {

enum class ErrorKind : std::uint8_t {
  check_failed,         // a check or a comparison failed
  invalid_input,        // bad usage, bad values, an illegal request
  collective_mismatch,  // ranks disagree about a collective
  deadlock,             // a cycle of waits
  timeout,              // something did not happen in its time
  peer_lost,            // a rank, or the connection to it, is gone
  rendezvous,           // ranks cannot find one another, or may not join
  authentication,       // a token or a seal is wrong
  address_in_use,
  bad_trace,   // not a trace file, or damaged
  ledger,      // what was computed or moved is not what had to be
  infeasible,  // legal, but nothing stays within the given limits
  cancelled,   // stopped because of an error elsewhere, which is reported there
};

inline constexpr std::array kErrorKinds = {
    ErrorKind::check_failed, ErrorKind::invalid_input,  ErrorKind::collective_mismatch,
    ErrorKind::deadlock,     ErrorKind::timeout,        ErrorKind::peer_lost,
    ErrorKind::rendezvous,   ErrorKind::authentication, ErrorKind::address_in_use,
    ErrorKind::bad_trace,    ErrorKind::ledger,         ErrorKind::infeasible,
    ErrorKind::cancelled,
};

std::string_view name(ErrorKind kind);  // "collective_mismatch"

// What an error is about. The code that throws fills in what it knows.
struct ErrorFacts {
  // The ranks at fault, ascending; for a transfer, its sender and its receiver. Empty: not known.
  std::vector<Rank> culprits = {};
  bool is_tie = false;  // only one of the culprits is at fault, and the evidence fits each of them alike
  Rank sender = -1, receiver = -1;         // of the transfer that is wrong; -1 if it is none
  std::string operation = {}, group = {};  // "all_gather", "cp[0,1,2,3]"
  std::int64_t sequence = -1;              // number of the collective on its group; -1: not known
  Rank rank = -1;                          // the rank that met the error; -1: not known, or none
  std::int64_t step = -1;                  // step of that rank's plan (a StepId); -1: not known
  // What would help, if the code that throws knows more than its message says. what() has it behind the
  // message.
  std::string advice = {};
  bool operator==(const ErrorFacts&) const = default;
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view message, ErrorFacts facts = {});

  // what() is the text for people: the message and, behind it, the advice.
  ErrorKind kind() const { return kind_; }
  std::string_view message() const { return std::string_view(what()).substr(0, message_bytes_); }
  const ErrorFacts& facts() const { return *facts_; }

 private:
  ErrorKind kind_;
  std::size_t message_bytes_;
  std::shared_ptr<const ErrorFacts> facts_;  // shared, so that copying an exception cannot throw
};

// One type for each kind, so that catch can choose a kind.
template <ErrorKind kKind>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(std::string_view message, ErrorFacts facts = {})
      : Error(kKind, message, std::move(facts)) {}
};

using CheckFailure = ErrorOf<ErrorKind::check_failed>;
using InvalidInput = ErrorOf<ErrorKind::invalid_input>;
using CollectiveMismatch = ErrorOf<ErrorKind::collective_mismatch>;
using Deadlock = ErrorOf<ErrorKind::deadlock>;
using Timeout = ErrorOf<ErrorKind::timeout>;
using PeerLost = ErrorOf<ErrorKind::peer_lost>;
using Infeasible = ErrorOf<ErrorKind::infeasible>;

// Throws an ErrorOf<kind>. An error that crossed a thread or a connection as data can so be caught by its
// type again.
[[noreturn]] void throw_error(ErrorKind kind, std::string_view message, ErrorFacts facts = {});

[[noreturn]] void invariant_failed(const char* condition, const char* file, int line,
                                   const std::string& context);

// A broken invariant is a defect of this program, never of its input: it aborts with context, in release
// builds too.
#define CP_INVARIANT(condition, ...)  \
  ((condition) ? static_cast<void>(0) \
               : ::cp::invariant_failed(#condition, __FILE__, __LINE__, ::cp::str(__VA_ARGS__)))

}  // namespace cp
