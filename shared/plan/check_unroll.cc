#include "shared/plan/check_unroll.h"

#include <algorithm>
#include <numeric>

#include "shared/base/index.h"
#include "shared/plan/operations.h"

namespace cp::checker {
namespace {

// The most steps of a rank that the checker unrolls. Chosen: at some tens of bytes for each (estimated) a
// plan near the limit takes some GiB. Our builders' periods are the slots of a unit, mostly 1 or 2, and their
// unrolled plans have thousands of steps.
constexpr std::int64_t kMaxNodes = std::int64_t{1} << 26;

}  // namespace

// Let L be the period after which all slots come back.
//   - Who wrote a byte last is, from iteration L on, the same in each L-th iteration: 2L iterations show
//     every read.
//   - Two steps of the body that touch a byte unordered do so at most L iterations apart: else the first
//     one's next turn on this byte is closer, and no more ordered. Before and after the Repeat, its first and
//     last L iterations count.
//   - A chain of waits through the Repeat need not come back to a stream that it left, so it takes at most
//     streams - 1 edges; it exists when the Repeat has as many iterations as these edges go back, and one
//     more.
//   - A stack (an advance without period) has other bytes in each iteration: all of them are needed.
std::int64_t Unrolled::iterations(const RankPlan& rank, const Repeat& repeat) {
  std::int64_t period = 1, most_back = 0;
  for (const Step& step : repeat.steps) {
    for (const Edge& edge : step.after) most_back = std::max<std::int64_t>(most_back, edge.iterations_back);
    for_each_access(step.work, rank.index_for(step.work), [&](const Access& access) {
      const Advance& advance = access.view->advance;
      if (advance.stride == 0 || rank.buffer(*access.view).kind == BufferKind::input) return;
      const bool all = advance.period == 0 || period >= repeat.count;
      period = all ? repeat.count : std::lcm(period, advance.period);
    });
  }
  const auto streams = static_cast<std::int64_t>(rank.plan->streams.size());
  const std::int64_t enough = std::max(2 * period, most_back * (streams - 1) + 1);
  if (enough >= repeat.count) return repeat.count;
  return enough + (repeat.count - enough) % period;
}

void Unrolled::assign(const RankPlan& rank) {
  place_steps(rank);
  run_clocks(rank);
}

void Unrolled::place_steps(const RankPlan& rank) {
  places_.clear();
  refs_.clear();
  for (const Segment& segment : rank.plan->segments) {
    const Repeat* repeat = std::get_if<Repeat>(&segment);
    const std::size_t begin = places_.size(), body = repeat == nullptr ? 1 : repeat->steps.size();
    const std::int64_t turns = repeat == nullptr ? 1 : iterations(rank, *repeat);
    const auto first = static_cast<Node>(refs_.size());
    if (body > 0 && turns > (kMaxNodes - first) / static_cast<std::int64_t>(body)) {
      throw CheckFailure(str("rank ", rank.plan->self, ": a Repeat of ", repeat->count,
                             " iterations has to be unrolled ", turns, " times, more than the ", kMaxNodes,
                             " steps that can be checked; shorten the periods of its views"));
    }
    for (std::size_t i = 0; i < body; ++i) {
      places_.push_back({first + static_cast<Node>(i), static_cast<Node>(body), turns});
    }
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < body; ++i) refs_.push_back(&rank.steps[begin + i]);
    }
  }
}

void Unrolled::run_clocks(const RankPlan& rank) {
  streams_ = rank.plan->streams.size();
  clocks_.assign(refs_.size() * streams_, 0);
  last_on_stream_.assign(streams_, -1);
  for (Node node = 0; node < size(); ++node) {
    const Step& step = *ref(node).step;
    std::int32_t* mine = clock(node);
    const auto join_with = [&](Node earlier) {
      if (earlier < 0) return;
      const std::int32_t* theirs = clock(earlier);
      for (std::size_t s = 0; s < streams_; ++s) mine[s] = std::max(mine[s], theirs[s]);
    };
    Node& last = last_on_stream_[idx(step.stream)];
    join_with(last);
    for (const Edge& edge : step.after) join_with(named(rank, edge, node));
    ++mine[idx(step.stream)];
    last = node;
  }
}

// The execution that an edge means, -1 for none.
Node Unrolled::named(const RankPlan& rank, const Edge& edge, Node from) const {
  const Place& place = places_[idx(edge.step)];
  const bool same_repeat = rank.steps[idx(edge.step)].segment == ref(from).segment;
  const std::int64_t turn = same_repeat ? iteration(from) - edge.iterations_back : place.iterations - 1;
  return turn < 0 ? -1 : static_cast<Node>(place.first + turn * place.body);
}

}  // namespace cp::checker
