#include "shared/base/error.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace cp {
namespace {

std::string text_of(std::string_view message, const std::string& advice) {
  return advice.empty() ? std::string(message) : str(message, "; ", advice);
}

// Most errors have none.
std::shared_ptr<const ErrorFacts> shared(ErrorFacts facts) {
  static const auto none = std::make_shared<const ErrorFacts>();
  return facts == *none ? none : std::make_shared<const ErrorFacts>(std::move(facts));
}

// In a template, and not in a switch of its own for each use: a kind that is added is caught as its type
// everywhere.
template <std::size_t... kPlaces>
void throw_kind(ErrorKind kind, std::string_view message, ErrorFacts facts,
                std::index_sequence<kPlaces...> /*all*/) {
  const auto throw_if = [&]<ErrorKind kKind>() {
    if (kind == kKind) throw ErrorOf<kKind>(message, std::move(facts));
  };
  (throw_if.template operator()<kErrorKinds[kPlaces]>(), ...);
}

}  // namespace

std::string_view name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::check_failed:
      return "check_failed";
    case ErrorKind::invalid_input:
      return "invalid_input";
    case ErrorKind::collective_mismatch:
      return "collective_mismatch";
    case ErrorKind::deadlock:
      return "deadlock";
    case ErrorKind::timeout:
      return "timeout";
    case ErrorKind::peer_lost:
      return "peer_lost";
    case ErrorKind::rendezvous:
      return "rendezvous";
    case ErrorKind::authentication:
      return "authentication";
    case ErrorKind::address_in_use:
      return "address_in_use";
    case ErrorKind::bad_trace:
      return "bad_trace";
    case ErrorKind::ledger:
      return "ledger";
    case ErrorKind::infeasible:
      return "infeasible";
    case ErrorKind::cancelled:
      return "cancelled";
  }
  invariant_failed("a known kind", __FILE__, __LINE__, str(static_cast<int>(kind)));
}

Error::Error(ErrorKind kind, std::string_view message, ErrorFacts facts)
    : std::runtime_error(text_of(message, facts.advice)),
      kind_(kind),
      message_bytes_(message.size()),
      facts_(shared(std::move(facts))) {}

void throw_error(ErrorKind kind, std::string_view message, ErrorFacts facts) {
  throw_kind(kind, message, std::move(facts), std::make_index_sequence<kErrorKinds.size()>());
  invariant_failed("a known kind", __FILE__, __LINE__, str(static_cast<int>(kind)));
}

void invariant_failed(const char* condition, const char* file, int line, const std::string& context) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, condition, context.c_str());
  std::abort();
}

}  // namespace cp
