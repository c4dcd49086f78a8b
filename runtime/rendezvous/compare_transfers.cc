#include "runtime/rendezvous/compare_transfers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/errors.h"
#include "runtime/rendezvous/frame.h"
#include "shared/base/text.h"
#include "shared/plan/transfer_check.h"
#include "traces/trace_proto.h"

namespace cp::runtime {
namespace {

// What each rank has to say, whatever its size: one gathering holds so much of all together.
std::vector<std::string> gather_in_pieces(RendezvousClient& client, const std::string& own,
                                          RendezvousClient::TimeLimit limit) {
  std::vector<std::string> all;
  std::size_t longest = 0;
  for (const std::string& text : client.all_gather("sizes of checksums", std::to_string(own.size()), limit)) {
    all.emplace_back();
    longest = std::max(longest, static_cast<std::size_t>(parse_int(text, "size")));
  }
  const std::size_t piece = std::max<std::size_t>(kMaxValueBytes / 2 / all.size(), 1);
  for (std::size_t begin = 0; begin < longest; begin += piece) {
    const std::string_view part =
        begin < own.size() ? std::string_view(own).substr(begin, piece) : std::string_view();
    const std::vector<std::string> parts = client.all_gather("checksums", part, limit);
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] += parts[rank];
  }
  return all;
}

}  // namespace

void compare_transfers(RendezvousClient& client, const RankTrace& trace, RendezvousClient::TimeLimit limit) {
  RankTrace own;
  own.rank = trace.rank, own.observed = trace.observed;
  std::vector<RankTrace> traces;
  for (const std::string& bytes : gather_in_pieces(client, to_proto(own).SerializeAsString(), limit)) {
    proto::RankTrace message;
    if (!message.ParseFromString(bytes))
      throw RendezvousError(str("the checksums of rank ", traces.size(), " cannot be read"));
    traces.push_back(from_proto(message));
  }
  const auto fault = find_transfer_fault(traces);
  if (!fault) return;
  const ErrorFacts& facts = fault->facts();
  const bool is_named = facts.receiver >= 0
                            ? facts.receiver == trace.rank
                            : std::ranges::find(facts.culprits, trace.rank) != facts.culprits.end();
  if (is_named) throw *fault;
}

}  // namespace cp::runtime
