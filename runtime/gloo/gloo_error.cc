#include "runtime/gloo/gloo_error.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "runtime/errors.h"

namespace cp::runtime {
namespace {

// Gloo has one type, IoException, for a peer that is slow and for one that is gone, and no code: its words
// alone tell them apart. These are all sentences about time of Gloo 0.5.0 (git 5b14351 of May 2022), and the
// kernel's for ETIMEDOUT, which Gloo appends:
//   transport/tcp/unbound_buffer.cc  "Timed out waiting 30000ms for recv operation to complete"
//   transport/tcp/pair.cc            "Connect timeout [...]", "Read timeout [...]", "Send timeout [...]",
//                                    "Write timeout [...]"
//   rendezvous/*_store.cc            "Wait timeout for key(s): [...]"
//   transport/ibverbs/*.cc           "Timeout waiting for memory region from [...]"
constexpr std::array<std::string_view, 8> kOfTime = {
    "Timed out waiting", "Connect timeout", "Read timeout",    "Send timeout",
    "Write timeout",     "Wait timeout",    "Timeout waiting", "Connection timed out"};

// transport/tcp/pair.cc says this in every wait on a connection that the timeout of another wait, or abort(),
// has closed.
constexpr std::string_view kClosedHere = "Application timeout caused pair closure";

}  // namespace

void throw_gloo(const gloo::Exception& error, const std::string& what, ErrorFacts facts) {
  const std::string_view words = error.what();
  const auto says = [&](std::string_view sentence) { return words.find(sentence) != std::string_view::npos; };
  if (says(kClosedHere))
    throw PeerLost(str(what, ": the connections were closed on this side"), std::move(facts));
  const std::string message = str(what, ": ", words);
  if (std::ranges::any_of(kOfTime, says)) throw Timeout(message, std::move(facts));
  throw PeerLost(message, std::move(facts));
}

// When a send of Gloo breaks a connection, Gloo goes on with the descriptor that it has just closed, and a
// check fails there, which is not a gloo::Exception. The message of a failed check begins with the path of
// its source file, and that tells the transport's checks from others.
void throw_gloo(const gloo::EnforceNotMet& error, const std::string& what, ErrorFacts facts) {
  const std::string words = error.what();
  if (words.find("gloo/transport/") == std::string::npos) throw;
  throw PeerLost(str(what, ": a connection broke (", words, ")"), std::move(facts));
}

}  // namespace cp::runtime
