#include "sim/cost/timeline/estimate.h"

#include <algorithm>
#include <utility>

#include "shared/base/units.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/cost/timeline/path_chains.h"
#include "sim/cost/timeline/rate_doubt.h"

namespace cp::sim {
namespace {

double host_us(const std::vector<Plan>& plans, const SoftwareProfile& software) {
  double most_ns = 0;
  for (const Plan& plan : plans) {
    double ns = 0;
    for (const StepRef& step : steps_of(plan))
      ns += static_cast<double>(step.count) * issue_ns(*step.step, software);
    most_ns = std::max(most_ns, ns);
  }
  return most_ns / kNsPerUs;
}

}  // namespace

Option option_of(const AttentionEstimate& estimate) {
  Option option{.chains = estimate.chains};
  option.attention_share = estimate.ranks > 1 ? 1 : 0;
  return option;
}

Doubt doubt_of(const AttentionEstimate& estimate, const Cluster& cluster, const SoftwareProfile& software,
               std::int64_t head_dim) {
  Doubt doubt = doubt_of(cluster, software, head_dim);
  if (estimate.ranks == 1) doubt.of_all = doubt.of_kind = 0;
  return doubt;
}

Strategy as_run_by(Strategy strategy, const SoftwareProfile& software) {
  strategy.send_empty = strategy.send_empty || software.send_empty;
  strategy.input_dtype_gradients = strategy.input_dtype_gradients || !software.dkv_f32;
  return strategy;
}

RepeatedCalls repeated_calls(const std::vector<Plan>& plans, const Cluster& cluster,
                             const SoftwareProfile& software, const TimelineOptions& options) {
  RepeatedCalls calls;
  calls.timeline = replay(plans, cluster, without_host(software), options);
  calls.host_us = host_us(plans, software);
  calls.time_us = std::max(calls.timeline.time_ns / kNsPerUs, calls.host_us);
  return calls;
}

AttentionEstimate estimate_attention(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                                     const SoftwareProfile& software, const TimelineOptions& options,
                                     const Target& target) {
  request.strategy = as_run_by(request.strategy, software);
  const std::vector<Plan> plans = attention_plans(request, pass, target);
  AttentionEstimate estimate;
  RepeatedCalls calls = repeated_calls(plans, cluster, software, options);
  estimate.timeline = std::move(calls.timeline);
  estimate.ranks = static_cast<int>(plans.size());
  estimate.host_us = calls.host_us, estimate.time_us = calls.time_us;
  estimate.chains = path_chains(estimate.timeline, plans, cluster, software);
  estimate.chains.emplace_back()[Rate::host] = estimate.host_us;
  const Interval interval =
      interval_of(option_of(estimate), doubt_of(estimate, cluster, software, request.problem.head_dim));
  estimate.low_us = interval.low, estimate.high_us = interval.high;
  for (const RankTimeline& rank : estimate.timeline.ranks) {
    estimate.exposed_comm_us = std::max(estimate.exposed_comm_us, rank.exposed_comm_ns / kNsPerUs);
    estimate.bytes_received = std::max(estimate.bytes_received, rank.bytes_received);
    estimate.peak_bytes = std::max(estimate.peak_bytes, rank.peak_bytes);
  }
  return estimate;
}

}  // namespace cp::sim
