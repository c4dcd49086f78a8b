#include "sim/planner/search/measurements.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "shared/base/text.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

constexpr const char* kProfile = "cprun profile --nproc-per-node ";
constexpr const char* kOut = " -o mine.txtpb";

// From where on the best layout takes a tie's width more than another one, between a rate as it is and one
// that is changed, where it does: times are close to straight lines in between.
double turning_factor(double factor, double best_us, double other_us, double changed_best_us,
                      double changed_other_us) {
  const auto beyond = [](double best, double other) { return best - (1 + kTie) * other; };
  const double before = std::min(0.0, beyond(best_us, other_us));
  const double after = std::max(0.0, beyond(changed_best_us, changed_other_us));
  return after > before ? 1 + (factor - 1) * before / (before - after) : factor;
}

}  // namespace

MeasurementCommand measurement_command(const PlanQuestion& question, Rate rate) {
  const Cluster& cluster = question.cluster;
  const int of_node = cluster.node.gpus;
  if (rate == Rate::offload) return {"nvbandwidth -t host_to_device_memcpy_ce", "", ""};
  const bool of_links = rate == Rate::inside || rate == Rate::network || rate == Rate::latency;
  if (!of_links) return {str(kProfile, 1, kOut), "", ""};
  if (rate == Rate::inside || cluster.nodes == 1) {
    return {str(kProfile, of_node, kOut), "", str("all_gather_perf -b 1M -e 1G -f 2 -g ", of_node)};
  }
  const auto on = [&](int machine) {
    return str(kProfile, of_node, " --nnodes 2 --node-rank ", machine, " --rdzv-endpoint HOST:PORT", kOut);
  };
  return {on(0), on(1),
          str("mpirun -np ", 2 * of_node, " -N ", of_node, " all_gather_perf -b 1M -e 1G -f 2 -g 1")};
}

std::vector<RateMeasurement> measurements(const PlanQuestion& question, const Sensitivity& sensitivity) {
  std::map<std::string, RateMeasurement> by_rate;
  double all_us = 0;
  for (const Changed& changed : sensitivity.changes) {
    const auto best = static_cast<std::size_t>(changed.best);
    const double regret_us = changed.step_us[0] - changed.step_us[best];
    if (changed.best == 0 || regret_us <= 0) continue;
    RateMeasurement& of = by_rate[changed.rate];
    of.rate = changed.rate;
    of.command = measurement_command(question, changed.measured);
    of.regret_us += regret_us / 2;
    all_us += regret_us / 2;
    const double turn = turning_factor(changed.factor, sensitivity.step_us[0], sensitivity.step_us[best],
                                       changed.step_us[0], changed.step_us[best]);
    of.turns.push_back({turn, changed.best, regret_us / changed.step_us[0]});
  }
  std::vector<RateMeasurement> found;
  for (auto& [rate, of] : by_rate) {
    of.settles = of.regret_us / all_us;
    found.push_back(std::move(of));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.regret_us > b.regret_us; });
  return found;
}

}  // namespace cp::sim
