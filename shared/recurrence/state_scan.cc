#include "shared/recurrence/state_scan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "shared/base/text.h"

namespace cp::detail {

std::vector<ScanPlace> scan_order(const std::vector<Chunk>& chunks, RecurrencePass pass) {
  std::vector<ScanPlace> places;
  for (const Chunk& chunk : chunks) {
    const bool forward = pass == RecurrencePass::forward;
    places.push_back({chunk.index, forward ? chunk.comes_in : chunk.goes_on,
                      forward ? chunk.goes_on : chunk.comes_in, chunk.hands_on()});
  }
  if (pass == RecurrencePass::backward) std::reverse(places.begin(), places.end());
  return places;
}

StateScanWriter::StateScanWriter(PlanBuilder& builder, const RecurrenceRequest& request, RecurrencePass pass,
                                 std::vector<ScanPlace> places, std::vector<ScanViews> views, int index)
    : builder_(builder),
      request_(request),
      problem_(request.problem),
      pass_(pass),
      places_(std::move(places)),
      views_(std::move(views)),
      index_(index),
      compute_(builder.stream("compute")) {
  for (std::size_t p = 0; p < places_.size(); ++p) first_.push_back(places_[p].passes ? first_[p - 1] : p);
}

void StateScanWriter::write() {
  switch (request_.strategy.scan) {
    case StateScan::sequential:
      return sequential();
    case StateScan::recursive_doubling:
      return recursive_doubling();
    case StateScan::all_gather:
      return all_gather();
    case StateScan::heads:  // has one chunk
      return;
  }
}

// Each place adds what came in to its own, and hands the sum on. Chains of different documents go on side by
// side: a hop moves all states that have come equally far.
void StateScanWriter::sequential() {
  std::vector<std::vector<std::size_t>> hops;
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (!places_[p].sends) continue;
    const std::size_t hop = p - first_[p];
    if (hops.size() <= hop) hops.resize(hop + 1);
    hops[hop].push_back(p);
  }
  for (std::size_t hop = 0; hop < hops.size(); ++hop) {
    std::vector<Way> ways;
    for (const std::size_t p : hops[hop]) {
      if (own(p) && places_[p].passes)
        join(views_[p].transition, views_[p].incoming, views_[p].state, str("state behind ", text(p)));
      ways.push_back({p, p + 1, false, views_[p + 1].incoming, {}});
    }
    exchange(ways, str("states, hop ", hop + 1));
  }
}

// After the round of distance d each place has the pair of up to 2d places, ending with its own (Hillis and
// Steele). A pair that begins where nothing comes in is complete, and needs no transition any more.
void StateScanWriter::recursive_doubling() {
  const auto reaches_back = [&](std::size_t p, std::size_t distance) {
    return places_[p].sends && p >= distance && p - distance >= first_[p];
  };
  for (std::size_t distance = 1; distance < places_.size(); distance *= 2) {
    std::vector<Way> ways;
    for (std::size_t p = 0; p < places_.size(); ++p) {
      if (!reaches_back(p, distance)) continue;
      Way way{p - distance, p, reaches_back(p - distance, distance), {}, {}};
      if (own(p)) {
        way.state = new_state("state from afar");
        if (way.with_transition) way.transition = new_transition("transition from afar");
      }
      ways.push_back(way);
    }
    if (ways.empty()) break;
    exchange(ways, str("pairs of ", distance, distance == 1 ? " chunk" : " chunks"));
    for (const Way& way : ways) {
      if (!own(way.to)) continue;
      ScanViews& here = views_[way.to];
      const std::string label = str("pair of ", text(way.to));
      join(here.transition, way.state, here.state, label);
      if (!way.with_transition) continue;
      // What comes first in the sequence is on the right; the backward pass meets it last.
      const bool forward = pass_ == RecurrencePass::forward;
      const View joined = new_transition("transition of more chunks");
      builder_.add(compute_,
                   RecurrenceJoin{forward ? here.transition : way.transition,
                                  forward ? way.transition : here.transition, joined, false, false},
                   label);
      here.transition = joined;
    }
  }
  std::vector<Way> ways;
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (places_[p].sends) ways.push_back({p, p + 1, false, views_[p + 1].incoming, {}});
  }
  exchange(ways, "states to the next chunks");
}

// Every pair goes at once to all ranks that it reaches, which join what they get in the order of the scan.
void StateScanWriter::all_gather() {
  std::vector<Way> ways;
  std::vector<ScanViews> here = views_;  // by place: where this rank has the pair
  std::vector<bool> needed(places_.size());
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (!places_[p].sends) continue;
    std::set<int> reached;  // ranks that have it already
    for (std::size_t to = p + 1; to == p + 1 || places_[to - 1].passes; ++to) {
      if (!places_[to].receives) break;
      if (own(to)) needed[p] = true;
      // The state goes where the next chunk wants it, if that is on this rank.
      if (places_[to].index != places_[p].index && reached.insert(places_[to].index).second) {
        Way way{p, to, places_[p].passes, {}, {}};
        if (own(to)) {
          way.state = own(p + 1) ? views_[p + 1].incoming : new_state("state of another chunk");
          if (way.with_transition) way.transition = new_transition("transition of another chunk");
          here[p] = {way.state, way.transition, {}};
        }
        ways.push_back(way);
      }
      if (!places_[to].sends) break;
    }
  }
  exchange(ways, "pairs of all chunks");
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (!needed[p]) continue;
    if (own(p) && own(p + 1)) {
      builder_.add(compute_, Copy{here[p].state, views_[p + 1].incoming}, "state of the chunk before");
      here[p].state = views_[p + 1].incoming;
    }
    if (places_[p].passes)
      join(here[p].transition, here[p - 1].state, here[p].state, str("state behind ", text(p)));
  }
}

View StateScanWriter::temporary(const char* name, std::int64_t rows, std::int64_t columns) {
  const Shape shape = {problem_.batch, problem_.value_heads, rows, columns};
  return dense_view(builder_.temporary(name, DType::f32, numel(shape)), 0, shape);
}

void StateScanWriter::exchange(const std::vector<Way>& ways, const std::string& label) {
  Exchange exchange;
  std::vector<Count> counts;
  for (const Way& way : ways) {
    const ScanPlace &from = places_[way.from], &to = places_[way.to];
    if (from.index == to.index) {
      if (from.index != index_) continue;
      builder_.add(compute_, Copy{views_[way.from].state, way.state}, label);
      if (way.with_transition)
        builder_.add(compute_, Copy{views_[way.from].transition, way.transition}, label);
      continue;
    }
    counts.push_back({from.index, to.index, problem_.state_numel()});
    if (way.with_transition) counts.push_back({from.index, to.index, problem_.transition_numel()});
    if (from.index == index_) {
      exchange.sends.push_back({to.index, views_[way.from].state});
      if (way.with_transition) exchange.sends.push_back({to.index, views_[way.from].transition});
    } else if (to.index == index_) {
      exchange.recvs.push_back({from.index, way.state});
      if (way.with_transition) exchange.recvs.push_back({from.index, way.transition});
    }
  }
  if (counts.empty()) return;
  exchange.group = builder_.group("cp", request_.ranks);
  exchange.counts = counts_digest(std::move(counts));
  builder_.add(builder_.stream("comm"), std::move(exchange), label);
}

void StateScanWriter::join(const View& transition, const View& in, const View& out,
                           const std::string& label) {
  builder_.add(compute_, RecurrenceJoin{transition, in, out, true, pass_ == RecurrencePass::backward}, label);
}

std::string StateScanWriter::text(std::size_t place) const {
  return str("chunk ", pass_ == RecurrencePass::forward ? place : places_.size() - 1 - place);
}

}  // namespace cp::detail
