// Patterns in which no message can slow another one down: rates are constant, and only the waits are left to
// follow.
#include <algorithm>

#include "shared/base/index.h"
#include "sim/cost/network/flow_transfers.h"
#include "sim/cost/network/pattern_internal.h"

namespace cp::sim::internal {
namespace {

// What rounding may add to a sum of rates that fill a link.
constexpr double kRounding = 1e-12;

bool within(const Topology& topology, const std::vector<double>& most) {
  for (std::size_t link = 0; link < most.size(); ++link) {
    if (most[link] > topology.capacities()[link] * (1 + kRounding)) return false;
  }
  return true;
}

// A hop of a ring: how long its messages take to leave, and then to arrive.
struct Hop {
  double leave_ns, arrive_ns;
};

// At any time a hop has one message under way at most.
std::optional<std::vector<std::vector<Hop>>> ring_hops(const Topology& topology, const TransferCurves& curves,
                                                       std::span<const int> gpus, const Pattern& pattern,
                                                       const std::vector<std::vector<int>>& orders) {
  MessageBounds bounds(topology, curves);
  const int n = static_cast<int>(gpus.size());
  const double bytes = message_bytes(pattern, n);
  std::vector<double> most(topology.num_links(), 0);
  std::vector<std::vector<Hop>> hops(orders.size());
  for (std::size_t channel = 0; channel < orders.size(); ++channel) {
    for (int i = 0; i < n; ++i) {
      const int source = gpus[idx(orders[channel][idx(i)])],
                target = gpus[idx(orders[channel][idx((i + 1) % n)])];
      const Route route = topology.route(source, target);
      const double limit = bounds.limit(route, topology.inside(source, target), bytes);
      for (const LinkId link : route.links()) most[idx(link)] += limit;
      hops[channel].push_back({bytes / limit, bounds.latency_ns(source, target)});
    }
  }
  if (!within(topology, most)) return std::nullopt;
  return hops;
}

std::optional<std::vector<double>> folded_ring(const Topology& topology, const TransferCurves& curves,
                                               std::span<const int> gpus, const Pattern& pattern) {
  const std::size_t n = gpus.size();
  const int steps = num_steps(pattern, static_cast<int>(n));
  std::vector<std::vector<int>> orders;
  for (int channel = 0; channel < pattern.channels; ++channel) {
    orders.push_back(ring_order(topology, gpus, channel));
  }
  if (steps == 0) return std::vector<double>(n, 0.0);
  const auto hops = ring_hops(topology, curves, gpus, pattern, orders);
  if (!hops) return std::nullopt;
  std::vector<double> finish(n, 0);
  for (std::size_t channel = 0; channel < orders.size(); ++channel) {
    const std::vector<Hop>& hop = (*hops)[channel];
    std::vector<double> start(n, 0), left(n), arrived(n + 1);  // arrived[i]: at i, from the one before
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < n; ++i) {
        left[i] = start[i] + hop[i].leave_ns;
        arrived[i + 1] = left[i] + hop[i].arrive_ns;
      }
      arrived[0] = arrived[n];
      for (std::size_t i = 0; i < n; ++i) start[i] = std::max(left[i], arrived[i]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      double& at = finish[idx(orders[channel][i])];
      at = std::max(at, start[i]);
    }
  }
  return finish;
}

// A message from each rank to each other one.
template <class Visit>
void for_each_message(const Topology& topology, std::span<const int> gpus, bool by_target,
                      const Visit& visit) {
  const int n = static_cast<int>(gpus.size());
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      const int source = gpus[idx(by_target ? b : a)], target = gpus[idx(by_target ? a : b)];
      visit(a, topology.route(source, target), topology.inside(source, target));
    }
  }
}

// At any time a rank sends at most in_flight messages and receives as many. On each link: the most that its
// senders can want together, each with its fastest message there; the same for its receivers; the less of the
// two.
bool pairwise_fits(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                   const Pattern& pattern) {
  MessageBounds bounds(topology, curves);
  const double bytes = message_bytes(pattern, static_cast<int>(gpus.size()));
  std::vector<double> most[2];
  for (const bool by_target : {false, true}) {
    std::vector<double>& sum = most[by_target ? 1 : 0];
    sum.assign(topology.num_links(), 0);
    std::vector<double> of_one(topology.num_links(), 0);
    std::vector<int> last(topology.num_links(), -1);
    for_each_message(topology, gpus, by_target, [&](int one, const Route& route, bool inside) {
      const double limit = bounds.limit(route, inside, bytes) * pattern.in_flight;
      for (const LinkId id : route.links()) {
        const std::size_t link = idx(id);
        if (last[link] != one) last[link] = one, of_one[link] = 0;
        if (limit > of_one[link]) sum[link] += limit - of_one[link], of_one[link] = limit;
      }
    });
  }
  for (std::size_t link = 0; link < most[0].size(); ++link)
    most[0][link] = std::min(most[0][link], most[1][link]);
  return within(topology, most[0]);
}

std::optional<std::vector<double>> folded_pairwise(const Topology& topology, const TransferCurves& curves,
                                                   std::span<const int> gpus, const Pattern& pattern) {
  if (!pairwise_fits(topology, curves, gpus, pattern)) return std::nullopt;
  MessageBounds bounds(topology, curves);
  const std::size_t n = gpus.size(), window = idx(pattern.in_flight);
  const double bytes = message_bytes(pattern, static_cast<int>(n));
  // over[step % window]: by rank, when all steps up to this one are over, which opens the step `window`
  // later.
  std::vector<std::vector<double>> over(window, std::vector<double>(n, 0.0));
  std::vector<double> before(n, 0), closed(n);
  for (std::size_t step = 1; step < n; ++step) {
    std::vector<double>& opened = over[step % window];
    std::fill(closed.begin(), closed.end(), 0.0);
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t to = r + step < n ? r + step : r + step - n;
      const Route route = topology.route(gpus[r], gpus[to]);
      const double limit = bounds.limit(route, topology.inside(gpus[r], gpus[to]), bytes);
      const double left = std::max(opened[r], opened[to]) + bytes / limit;
      closed[r] = std::max(closed[r], left);
      closed[to] = std::max(closed[to], left + bounds.latency_ns(gpus[r], gpus[to]));
    }
    for (std::size_t r = 0; r < n; ++r) before[r] = opened[r] = std::max(before[r], closed[r]);
  }
  return before;
}

}  // namespace

std::optional<std::vector<double>> folded(const Topology& topology, const TransferCurves& curves,
                                          std::span<const int> gpus, const Pattern& pattern) {
  return is_ring(pattern) ? folded_ring(topology, curves, gpus, pattern)
                          : folded_pairwise(topology, curves, gpus, pattern);
}

}  // namespace cp::sim::internal
