// Patterns in closed form.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "shared/base/index.h"
#include "sim/cost/network/flow_network.h"
#include "sim/cost/network/flow_transfers.h"
#include "sim/cost/network/pattern_internal.h"

namespace cp::sim {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
// Of so many of the slowest hops the waits are followed; further ones matter when latency is most of the time
// alone.
constexpr std::size_t kSlowestHops = 64;
// Messages of all-to-all that are looked at; all of them in groups of up to 256.
constexpr int kSampledMessages = 1 << 16;

struct Hop {
  double leave_ns, latency_ns;
};

// Of a ring: rates when every rank sends.
std::vector<std::vector<Hop>> ring_hops(const Topology& topology, const TransferCurves& curves,
                                        std::span<const int> gpus, const Pattern& pattern) {
  const std::size_t n = gpus.size();
  const double bytes = internal::message_bytes(pattern, static_cast<int>(n));
  MessageBounds bounds(topology, curves);
  FlowNetwork network(topology.capacities());
  std::vector<std::vector<Hop>> hops;
  std::vector<FlowId> flows;
  for (int channel = 0; channel < pattern.channels; ++channel) {
    const std::vector<int> order = internal::ring_order(topology, gpus, channel);
    hops.emplace_back();
    for (std::size_t i = 0; i < n; ++i) {
      const int source = gpus[idx(order[i])], target = gpus[idx(order[(i + 1) % n])];
      const double cap = bounds.cap(topology.inside(source, target), bytes);
      const Route route = topology.route(source, target);
      flows.push_back(network.start(0, route.links(), bytes, cap));
      hops.back().push_back({0, bounds.latency_ns(source, target)});
    }
  }
  for (std::size_t i = 0; i < flows.size(); ++i) hops[i / n][i % n].leave_ns = bytes / network.rate(flows[i]);
  return hops;
}

// A chain of waits makes `steps` sends: over a window of m <= steps hops in a row, each at least once, with
// all others on the slowest hop of the window; each hop that it moves along, and the last one, adds its
// latency. So it takes
//   steps * slowest + sum over the window of (leave + latency - slowest),
// here at its most over the windows that have a hop of that slowest time and no slower one; rings go round.
double longest_with(double slowest, const std::vector<Hop>& hops, std::size_t steps) {
  struct Begin {
    std::size_t at;
    double sum;  // of what comes before it
  };
  double best = kNone, sum = 0;
  std::vector<Begin>
      least;  // from `head` on: begins by place, their sums rising, so that the first is the least
  std::vector<Begin> waiting;  // with no slowest hop behind them yet
  std::size_t head = 0;
  for (std::size_t i = 0, at = 0; i < hops.size() + steps; ++i, at = at + 1 == hops.size() ? 0 : at + 1) {
    const Hop& hop = hops[at];
    if (hop.leave_ns > slowest) {
      least.clear(), waiting.clear(), head = 0, sum = 0;
      continue;
    }
    // Of those that wait, an earlier one with a sum that is no less can only be worse.
    while (!waiting.empty() && waiting.back().sum >= sum) waiting.pop_back();
    waiting.push_back({i, sum});
    sum += hop.leave_ns + hop.latency_ns - slowest;
    if (hop.leave_ns == slowest) {
      for (const Begin& begin : waiting) {
        while (least.size() > head && least.back().sum >= begin.sum) least.pop_back();
        least.push_back(begin);
      }
      waiting.clear();
    }
    while (least.size() > head && i + 1 - least[head].at > steps) ++head;
    if (least.size() > head) best = std::max(best, sum - least[head].sum);
  }
  return static_cast<double>(steps) * slowest + best;
}

double longest_chain(const std::vector<Hop>& hops, std::size_t steps) {
  std::vector<double> slowest;
  double latency = 0;
  for (const Hop& hop : hops) {
    slowest.push_back(hop.leave_ns);
    latency = std::max(latency, hop.latency_ns);
  }
  std::sort(slowest.begin(), slowest.end(), std::greater<>());
  slowest.erase(std::unique(slowest.begin(), slowest.end()), slowest.end());
  if (slowest.size() > kSlowestHops) slowest.resize(kSlowestHops);
  double best = 0;
  for (const double hop : slowest) {
    if (static_cast<double>(steps) * (hop + latency) <= best) break;  // at most
    best = std::max(best, longest_with(hop, hops, steps));
  }
  return best;
}

// One step of all-to-all with all its messages under way together.
double step_ns(const Topology& topology, MessageBounds& bounds, std::span<const int> gpus, double bytes,
               std::size_t step, std::vector<double>& load) {
  const auto target_of = [&](std::size_t r) { return gpus[(r + step) % gpus.size()]; };
  std::fill(load.begin(), load.end(), 0.0);
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    const Route route = topology.route(gpus[r], target_of(r));
    for (const LinkId link : route.links()) load[idx(link)] += bytes;
  }
  double slowest = 0;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    const int source = gpus[r], target = target_of(r);
    const Route route = topology.route(source, target);
    double leave = bytes / bounds.limit(route, topology.inside(source, target), bytes);
    for (const LinkId link : route.links()) {
      leave = std::max(leave, load[idx(link)] / topology.capacities()[idx(link)]);
    }
    slowest = std::max(slowest, leave + bounds.latency_ns(source, target));
  }
  return slowest;
}

double pairwise_ns(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                   const Pattern& pattern) {
  const int n = static_cast<int>(gpus.size()), steps = n - 1;
  const double bytes = internal::message_bytes(pattern, n);
  const int samples = std::min(steps, std::max(8, kSampledMessages / n));
  MessageBounds bounds(topology, curves);
  std::vector<double> load(topology.num_links());
  double sum = 0;
  for (int i = 0; i < samples; ++i) {
    // Far apart, and in no rhythm with nodes or rails.
    const double golden = 0.6180339887498949 * i;
    const int step = samples == steps ? i : static_cast<int>((golden - std::floor(golden)) * steps);
    sum += step_ns(topology, bounds, gpus, bytes, idx(step) + 1, load);
  }
  return samples == 0 ? 0 : sum / samples * steps;
}

}  // namespace

double aggregate_ns(const Topology& topology, const TransferCurves& curves, std::span<const int> gpus,
                    const Pattern& pattern) {
  internal::check(topology, gpus, pattern);
  if (!internal::is_ring(pattern)) return pairwise_ns(topology, curves, gpus, pattern);
  const int steps = internal::num_steps(pattern, static_cast<int>(gpus.size()));
  double slowest = 0;
  if (steps == 0) return 0;
  for (const std::vector<Hop>& hops : ring_hops(topology, curves, gpus, pattern)) {
    slowest = std::max(slowest, longest_chain(hops, idx(steps)));
  }
  return slowest;
}

}  // namespace cp::sim
