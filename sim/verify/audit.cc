#include "sim/verify/audit.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "shared/base/text.h"

namespace cp::sim {

namespace {

// Of sums of doubles, in whatever order they were added.
constexpr double kRelativeTolerance = 1e-9;

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

// Sums over the steps, by rank.
struct Totals {
  std::vector<double> time_us;
  std::vector<std::int64_t> time_ps, payload_bytes;
  explicit Totals(std::size_t ranks) : time_us(ranks), time_ps(ranks), payload_bytes(ranks) {}
  void add(const MoveCost& cost) {
    for (std::size_t rank = 0; rank < time_us.size(); ++rank) {
      time_us[rank] += cost.time_us[rank];
      time_ps[rank] += cost.time_ps[rank];
      payload_bytes[rank] += cost.payload_bytes[rank];
    }
  }
};

std::string to_string(const Move& move) {
  return str(name(move.kind), " ", placements_to_string(move.from), " -> ", placements_to_string(move.to));
}

// The ways to do a step that agree with what is declared of it; several where groups in another order, or other
// senders, lead to the same figures.
std::vector<const MoveCost*> agreeing(const RedistributionStep& step,
                                      const std::vector<const MoveCost*>& ways, bool old_is_temporary,
                                      bool new_is_temporary) {
  std::vector<const MoveCost*> agree;
  std::copy_if(ways.begin(), ways.end(), std::back_inserter(agree), [&](const MoveCost* cost) {
    return declared(step).agrees_with(counted(*cost, old_is_temporary, new_is_temporary));
  });
  return agree;
}

bool agree(const Redistribution& redistribution, const Totals& totals) {
  return same_time(redistribution.time_us, largest(totals.time_us)) &&
         redistribution.bytes_received_max == largest(totals.payload_bytes) &&
         redistribution.bytes_received_total == sum(totals.payload_bytes);
}

std::string disagreement(const Redistribution& redistribution, const Totals& totals) {
  return str("the steps add up to ", largest(totals.time_us), " us and ", largest(totals.payload_bytes),
             " bytes received (", sum(totals.payload_bytes), " in all), not to the declared ",
             redistribution.time_us, " us and ", redistribution.bytes_received_max, " bytes (",
             redistribution.bytes_received_total, ")");
}

}  // namespace

Audit audit(const Redistribution& redistribution, const ExhaustiveSearch& search,
            const ExhaustiveSearch::Chain& cheapest) {
  constexpr double kPsPerUs = 1e6;
  const std::size_t num_steps = redistribution.steps.size();
  std::vector<Totals> sums = {Totals(search.world().size())};  // one for each combination of ways
  for (std::size_t i = 0; i < num_steps; ++i) {
    const RedistributionStep& step = redistribution.steps[i];
    const bool old_is_temporary = i > 0, new_is_temporary = i + 1 < num_steps;
    const std::vector<const MoveCost*> ways = search.costs_of(step.move, !new_is_temporary);
    const std::vector<const MoveCost*> agree = agreeing(step, ways, old_is_temporary, new_is_temporary);
    if (agree.empty()) {
      const std::int64_t excess_ps = std::llround(redistribution.time_us * kPsPerUs) - cheapest.time_ps;
      if (ways.empty()) return {str(to_string(step.move), " is no move by the rules"), excess_ps};
      return {str(to_string(step.move), " is declared as ", declared(step).to_string(), " and counted as ",
                  counted(*ways.front(), old_is_temporary, new_is_temporary).to_string()),
              excess_ps};
    }
    std::vector<Totals> longer;
    for (const Totals& totals : sums) {
      for (const MoveCost* cost : agree) {
        longer.push_back(totals);
        longer.back().add(*cost);
      }
    }
    sums = std::move(longer);
  }
  const auto same =
      std::find_if(sums.begin(), sums.end(), [&](const Totals& t) { return agree(redistribution, t); });
  const Totals& totals = same == sums.end() ? sums.front() : *same;
  return {same == sums.end() ? disagreement(redistribution, totals) : "",
          largest(totals.time_ps) - cheapest.time_ps};
}

}  // namespace cp::sim
