#include "sim/search/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <sstream>
#include <utility>

#include "shared/base/text.h"
#include "sim/search/evaluate.h"
#include "sim/search/ranking.h"

namespace cp::sim {
namespace {

void scale(Curve& curve, double factor, double most = 1e300) {
  if (curve.empty()) return;
  std::vector<CurvePoint> points = curve.points();
  for (CurvePoint& point : points) point.y = std::min(point.y * factor, most);
  curve = Curve(std::move(points));
}

// Measured ones, of a node or of several.
void scale_collectives(Cluster& cluster, bool across_nodes, double factor) {
  for (CollectiveCurve& curve : cluster.collectives) {
    if ((curve.nodes > 1) == across_nodes) scale(curve.time_us, 1 / factor);
  }
}

struct Rate {
  const char* name;
  std::function<void(Cluster&, double)> change;
};

// Where nothing was measured, kernels run at a share of the peak.
void change_attention(Cluster& cluster, double factor) {
  constexpr double kShare = 0.5;
  if (cluster.attention.empty()) {
    for (const bool backward : {false, true})
      cluster.attention.push_back({backward, true, 128, Curve({{1, kShare * cluster.gpu.tflops_16}}), "any"});
  }
  for (AttentionCurve& curve : cluster.attention) scale(curve.tflops, factor, cluster.gpu.tflops_16);
}

void change_products(Cluster& cluster, double factor) {
  if (cluster.matmul_efficiency.empty()) cluster.gpu.sustained_clock *= factor;
  scale(cluster.matmul_efficiency, factor, 1), scale(cluster.fp8_efficiency, factor, 1);
}

const std::vector<Rate>& rates() {
  static const std::vector<Rate> all{
      {"attention", change_attention},
      {"products", change_products},
      {"memory", [](Cluster& cluster, double factor) { cluster.gpu.hbm_gbps *= factor; }},
      {"NVLink",
       [](Cluster& cluster, double factor) {
         cluster.node.nvlink_gbps *= factor, cluster.node.pcie_gbps *= factor;
         scale(cluster.transfer.intra_node, factor);
         scale_collectives(cluster, false, factor);
       }},
      {"network",
       [](Cluster& cluster, double factor) {
         cluster.network.nic_gbps *= factor;
         scale(cluster.transfer.inter_node, factor);
         scale_collectives(cluster, true, factor);
       }},
      {"latency",
       [](Cluster& cluster, double factor) {
         cluster.network.latency_us /= factor, cluster.transfer.intra_node_latency_us /= factor;
         cluster.gpu.kernel_launch_us /= factor;
       }},
  };
  return all;
}

std::vector<double> times_of(const PlanQuestion& question, const std::vector<ParallelLayout>& layouts) {
  Evaluator evaluator(question);
  std::vector<double> times;
  for (const ParallelLayout& layout : layouts) times.push_back(evaluator.evaluate(layout).step_us);
  return times;
}

// The first in the answer's order that is as fast as the fastest, but for a tie.
int fastest_of(const std::vector<double>& times) {
  const double most = *std::min_element(times.begin(), times.end()) * (1 + kTie);
  return static_cast<int>(std::find_if(times.begin(), times.end(), [&](double us) { return us <= most; }) -
                          times.begin());
}

// Four digits: runs differ by a few in a hundred.
std::string short_time(double us) {
  const double unit = us >= 1e6 ? 1e6 : us >= 1e3 ? 1e3 : 1;
  std::ostringstream out;
  out << std::setprecision(4) << us / unit << (us >= 1e6 ? " s" : us >= 1e3 ? " ms" : " us");
  return out.str();
}

std::string words(const Changed& changed, double us) {
  const std::string what = changed.factor == 1
                               ? "rates as they are"
                               : str(changed.rate, " 10 % ", changed.factor > 1 ? "faster" : "slower");
  return str(what, " (", short_time(us), ")");
}

}  // namespace

bool Sensitivity::robust() const {
  return std::all_of(changes.begin(), changes.end(),
                     [](const Changed& changed) { return changed.best == 0; });
}

Sensitivity sensitivity_of(const PlanAnswer& answer, int top) {
  Sensitivity result;
  for (const Candidate& candidate : answer.best) {
    if (static_cast<int>(result.layouts.size()) == top) break;
    result.layouts.push_back(candidate.layout);
  }
  result.step_us = times_of(answer.question, result.layouts);
  for (const Rate& rate : rates()) {
    for (const double factor : {0.9, 1.1}) {
      PlanQuestion question = answer.question;
      rate.change(question.cluster, factor);
      Changed changed{rate.name, factor, times_of(question, result.layouts), 0};
      changed.best = fastest_of(changed.step_us);
      result.changes.push_back(std::move(changed));
    }
  }
  return result;
}

std::vector<Experiment> next_experiments(const Sensitivity& sensitivity, double noise) {
  std::vector<Changed> states = sensitivity.changes;
  states.insert(states.begin(), Changed{"", 1, sensitivity.step_us, fastest_of(sensitivity.step_us)});
  std::vector<std::pair<std::size_t, std::size_t>> open;  // states that call for different layouts
  for (std::size_t a = 0; a < states.size(); ++a) {
    for (std::size_t b = a + 1; b < states.size(); ++b) {
      if (states[a].best != states[b].best) open.emplace_back(a, b);
    }
  }
  std::vector<Experiment> experiments;
  while (!open.empty() && experiments.size() < 3) {
    std::size_t best_run = 0, most = 0;
    const auto apart = [&](std::size_t run, const auto& pair) {
      const double a = states[pair.first].step_us[run], b = states[pair.second].step_us[run];
      return std::abs(a - b) > noise * std::min(a, b);
    };
    for (std::size_t run = 0; run < sensitivity.layouts.size(); ++run) {
      const auto told = static_cast<std::size_t>(
          std::count_if(open.begin(), open.end(), [&](const auto& pair) { return apart(run, pair); }));
      if (told > most) most = told, best_run = run;
    }
    if (most == 0) break;  // no run tells any of them apart
    const auto widest = *std::max_element(open.begin(), open.end(), [&](const auto& x, const auto& y) {
      const auto gap = [&](const auto& pair) {
        return std::abs(states[pair.first].step_us[best_run] - states[pair.second].step_us[best_run]);
      };
      return gap(x) < gap(y);
    });
    experiments.push_back({sensitivity.layouts[best_run], sensitivity.step_us[best_run],
                           str(words(states[widest.first], states[widest.first].step_us[best_run]), " from ",
                               words(states[widest.second], states[widest.second].step_us[best_run])),
                           static_cast<double>(most) / static_cast<double>(open.size())});
    std::erase_if(open, [&](const auto& pair) { return apart(best_run, pair); });
  }
  return experiments;
}

}  // namespace cp::sim
