#include "sim/timeline/estimate.h"

#include <algorithm>
#include <string_view>

#include "sim/timeline/attention_cost.h"
#include "sim/timeline/expert_cost.h"
#include "sim/timeline/kernel_cost.h"

namespace cp::sim {
namespace {

constexpr double kNsPerUs = 1e3;

// Of numbers that were measured, taken over from another GPU, or that nobody measured. The first is a round number among the
// ninetieth percentiles of `cpsim validate` for attention on systems with curves of their own (5 to 17 %); the others are
// assumed, two and three times as wide.
constexpr double kMeasured = 0.15, kBorrowed = 0.30, kUnmeasured = 0.50;

double of_curves(const Cluster& cluster, bool present, std::string_view prefix) {
  if (!present) return kUnmeasured;
  const bool borrowed =
      std::any_of(cluster.sources.begin(), cluster.sources.end(), [&](const Source& source) {
        return source.borrowed && std::string_view(source.field).starts_with(prefix);
      });
  return borrowed ? kBorrowed : kMeasured;
}

}  // namespace

double uncertainty(const Cluster& cluster, bool attention, bool transfers) {
  double share = kMeasured;
  if (attention) {
    const bool rates = !cluster.rates.attention.empty();
    share = std::max(share,
                     of_curves(cluster, rates || !cluster.attention.empty(), rates ? "rates" : "attention"));
  }
  if (transfers) {
    const bool curves =
        !cluster.transfer.intra_node.empty() && (cluster.nodes == 1 || !cluster.transfer.inter_node.empty());
    share = std::max(share, of_curves(cluster, curves, "transfer"));
  }
  return share;
}

double attention_uncertainty(const Cluster& cluster, const SoftwareProfile& software, std::int64_t head_dim,
                             bool backward) {
  const AttentionCost cost(cluster, software);
  return std::max(cost.width(head_dim, false), backward ? cost.width(head_dim, true) : 0);
}

double product_uncertainty(const Cluster& cluster, const SoftwareProfile& software) {
  if (software.stored_products) {
    double share = 0;
    for (const StoredProductRate& rate : cluster.rates.stored_product) {
      if (rate.bits == bits_of(software.linear_precision)) share = std::max(share, rate.left_out.p90);
    }
    if (share > 0) return std::max(share, of_curves(cluster, true, "rates"));
  }
  if (cluster.matmul_efficiency.empty() && !cluster.rates.product.empty()) {
    double share = of_curves(cluster, true, "rates");
    for (const ProductRate& rate : cluster.rates.product) share = std::max(share, rate.left_out.p90);
    return share;
  }
  const Source* source = cluster.source_of("matmul_efficiency");
  if (cluster.matmul_efficiency.empty() || source == nullptr) return kUnmeasured;
  return source->borrowed || source->text.starts_with("estimate") ? kBorrowed : kMeasured;
}

double expert_uncertainty(const Cluster& cluster, const SoftwareProfile& software) {
  return ExpertCost(cluster, software).width();
}

Strategy as_run_by(Strategy strategy, const SoftwareProfile& software) {
  strategy.send_empty = strategy.send_empty || software.send_empty;
  strategy.input_dtype_gradients = strategy.input_dtype_gradients || !software.dkv_f32;
  return strategy;
}

AttentionEstimate estimate_attention(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                                     const SoftwareProfile& software, const TimelineOptions& options,
                                     const Target& target) {
  request.strategy = as_run_by(request.strategy, software);
  const std::vector<Plan> plans = attention_plans(request, pass, target);
  AttentionEstimate estimate;
  estimate.timeline = replay(plans, cluster, software, options);
  estimate.ranks = static_cast<int>(plans.size());
  estimate.time_us = estimate.timeline.time_ns / kNsPerUs;
  const double kernels =
      attention_uncertainty(cluster, software, request.problem.head_dim, pass != AttentionPass::forward);
  const double share = std::max(kernels, uncertainty(cluster, false, plans.size() > 1));
  estimate.low_us = estimate.time_us * (1 - share), estimate.high_us = estimate.time_us * (1 + share);
  for (const RankTimeline& rank : estimate.timeline.ranks) {
    estimate.exposed_comm_us = std::max(estimate.exposed_comm_us, rank.exposed_comm_ns / kNsPerUs);
    estimate.bytes_received = std::max(estimate.bytes_received, rank.bytes_received);
    estimate.peak_bytes = std::max(estimate.peak_bytes, rank.peak_bytes);
  }
  return estimate;
}

}  // namespace cp::sim
