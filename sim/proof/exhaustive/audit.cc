#include "sim/proof/exhaustive/audit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "shared/base/text.h"

namespace cp::sim {

namespace {

// The planner and the search add up the same doubles in different orders. Sums of at most a few thousand
// terms differ by less than 1e4 * 2^-53 = 1e-12 of the whole; this is far above it, and far below any real
// difference.
constexpr double kRelativeTolerance = 1e-9;

std::int64_t to_ps(double time_us) { return std::llround(time_us * 1e6); }

bool same_time(double a_us, double b_us) {
  return std::abs(a_us - b_us) <= kRelativeTolerance * std::max(std::abs(a_us), std::abs(b_us));
}

template <class T>
T largest(const std::vector<T>& values) {
  return values.empty() ? T{} : *std::max_element(values.begin(), values.end());
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// The figures of a step, as the planner declares them and as the search counts them.
struct Figures {
  double time_us = 0;
  std::int64_t received_max = 0, received_total = 0, wire_total = 0, temporary = 0;
  bool agrees_with(const Figures& other) const {
    return same_time(time_us, other.time_us) && received_max == other.received_max &&
           received_total == other.received_total && wire_total == other.wire_total &&
           temporary == other.temporary;
  }
  std::string to_string() const {
    return str(time_us, " us, ", received_max, " bytes received (", received_total, " in all, ", wire_total,
               " on the wire), ", temporary, " bytes of temporaries");
  }
};

Figures declared(const RedistributionStep& step) {
  return {step.time_us, step.bytes_received_max, step.bytes_received_total, step.wire_bytes_received_total,
          step.temporary_bytes_max};
}

Figures counted(const MoveCost& cost, bool old_is_temporary, bool new_is_temporary) {
  return {largest(cost.time_us), largest(cost.payload_bytes), sum(cost.payload_bytes), sum(cost.wire_bytes),
          cost.temporary_bytes[old_is_temporary][new_is_temporary]};
}

// Sums over the steps: of what the slowest rank takes in each, and of what a rank receives at most.
struct Totals {
  double time_us = 0;
  std::int64_t time_ps = 0, received_max = 0, received_total = 0;
  void add(const MoveCost& cost) {
    time_us += largest(cost.time_us);
    time_ps += largest(cost.time_ps);
    received_max += largest(cost.payload_bytes);
    received_total += sum(cost.payload_bytes);
  }
};

// The ways to do a step that agree with what is declared of it; several where groups in another order, or
// other senders, lead to the same figures.
std::vector<MoveCost> agreeing(const RedistributionStep& step, const std::vector<const MoveCost*>& ways,
                               bool old_is_temporary, bool new_is_temporary) {
  std::vector<MoveCost> agree;
  for (const MoveCost* cost : ways) {
    if (declared(step).agrees_with(counted(*cost, old_is_temporary, new_is_temporary)))
      agree.push_back(*cost);
  }
  return agree;
}

// How the search counts a step that nothing agrees with: as the fastest way to do it; as declared, on every
// rank, where the rules know no such move.
MoveCost counted_otherwise(const RedistributionStep& step, const std::vector<const MoveCost*>& ways,
                           std::size_t num_ranks) {
  const auto fastest = std::min_element(ways.begin(), ways.end(), [](const MoveCost* a, const MoveCost* b) {
    return largest(a->time_ps) < largest(b->time_ps);
  });
  if (fastest != ways.end()) return **fastest;
  MoveCost cost;
  cost.time_us.assign(num_ranks, step.time_us);
  cost.time_ps.assign(num_ranks, to_ps(step.time_us));
  cost.payload_bytes.assign(num_ranks, step.bytes_received_max);
  return cost;
}

std::string disagreement(const RedistributionStep& step, const std::vector<const MoveCost*>& ways,
                         bool old_is_temporary, bool new_is_temporary) {
  const std::string move = str(name(step.move.kind), " ", placements_to_string(step.move.from), " -> ",
                               placements_to_string(step.move.to));
  if (ways.empty()) return str(move, " is no move by the rules");
  return str(move, " is declared as ", declared(step).to_string(), " and counted as ",
             counted(*ways.front(), old_is_temporary, new_is_temporary).to_string());
}

bool agree(const Redistribution& redistribution, const Totals& totals) {
  return same_time(redistribution.time_us, totals.time_us) &&
         redistribution.bytes_received_max == totals.received_max &&
         redistribution.bytes_received_total == totals.received_total;
}

std::string disagreement(const Redistribution& redistribution, const Totals& totals) {
  return str("the steps add up to ", totals.time_us, " us and ", totals.received_max, " bytes received (",
             totals.received_total, " in all), not to the declared ", redistribution.time_us, " us and ",
             redistribution.bytes_received_max, " bytes (", redistribution.bytes_received_total, ")");
}

}  // namespace

Audit audit(const Redistribution& redistribution, const ExhaustiveSearch& search,
            const ExhaustiveSearch::Chain& cheapest) {
  const std::size_t num_steps = redistribution.steps.size(), num_ranks = search.world().size();
  Audit result;
  std::vector<Totals> sums(1);  // one for each combination of ways
  for (std::size_t i = 0; i < num_steps; ++i) {
    const RedistributionStep& step = redistribution.steps[i];
    const bool old_is_temporary = i > 0, new_is_temporary = i + 1 < num_steps;
    const std::vector<const MoveCost*> ways = search.costs_of(step.move, !new_is_temporary);
    std::vector<MoveCost> agree = agreeing(step, ways, old_is_temporary, new_is_temporary);
    if (agree.empty()) {
      result.misdeclared = disagreement(step, ways, old_is_temporary, new_is_temporary);
      agree.push_back(counted_otherwise(step, ways, num_ranks));
    }
    std::vector<Totals> longer;
    for (const Totals& totals : sums) {
      for (const MoveCost& cost : agree) {
        longer.push_back(totals);
        longer.back().add(cost);
      }
    }
    sums = std::move(longer);
  }
  const auto same = std::find_if(sums.begin(), sums.end(),
                                 [&](const Totals& totals) { return agree(redistribution, totals); });
  const Totals& totals = same == sums.end() ? sums.front() : *same;
  if (same == sums.end() && result.misdeclared.empty()) {
    result.misdeclared = disagreement(redistribution, totals);
  }
  result.excess_ps = totals.time_ps - cheapest.time_ps;
  return result;
}

}  // namespace cp::sim
