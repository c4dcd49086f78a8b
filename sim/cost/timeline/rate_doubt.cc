#include "sim/cost/timeline/rate_doubt.h"

#include <algorithm>

#include "sim/cost/timeline/attention_cost.h"
#include "sim/cost/timeline/expert_cost.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/widths.h"

namespace cp::sim {
namespace {

// Of a rate of the cluster's, by its own errors.
double width_of(const Cluster& cluster, const Provenance& rate, const LeftOut& left_out) {
  return widths::by_hand(widths::eight_in_ten(left_out.median, left_out.p90),
                         is_second_hand(rate.origin) || is_second_hand(cluster.source_of("rates")));
}

}  // namespace

double transfer_width(const Cluster& cluster, bool across_nodes) {
  const Curve& curve = across_nodes ? cluster.transfer.inter_node : cluster.transfer.intra_node;
  if (curve.empty()) return widths::kUnmeasured;
  const Source* source = cluster.source_of(across_nodes ? "transfer.inter_node" : "transfer.intra_node");
  return widths::by_hand(widths::kTransferElsewhere, is_second_hand(source));
}

double product_width(const Cluster& cluster, LinearPrecision precision) {
  const bool fp8 = precision != LinearPrecision::b16 && cluster.gpu.tflops_fp8 > 0;
  const Curve& own = fp8 ? cluster.fp8_efficiency : cluster.matmul_efficiency;
  const auto& rates = cluster.rates.product;
  const auto rate = std::find_if(rates.begin(), rates.end(),
                                 [&](const ProductRate& each) { return each.bits == (fp8 ? 8 : 16); });
  if (own.empty() && rate != rates.end()) return width_of(cluster, rate->provenance, rate->left_out);
  const Source* source = cluster.source_of(own.empty() || !fp8 ? "matmul_efficiency" : "fp8_efficiency");
  if ((own.empty() && cluster.matmul_efficiency.empty()) || source == nullptr) return widths::kUnmeasured;
  return widths::by_hand(widths::kKernelElsewhere, is_second_hand(source));
}

double product_width(const Cluster& cluster, const SoftwareProfile& software) {
  double width = 0;
  for (const StoredProductRate& rate : cluster.rates.stored_product) {
    if (software.stored_products && rate.bits == bits_of(software.linear_precision))
      width = std::max(width, width_of(cluster, rate.provenance, rate.left_out));
  }
  return width == 0 ? product_width(cluster, software.linear_precision) : width;
}

Doubt doubt_of(const Cluster& cluster, const SoftwareProfile& software, std::int64_t head_dim,
               WorkKinds kinds) {
  Doubt doubt;
  const auto set = [&](Rate rate, double width) { doubt[rate] = widths::deviation(width); };
  const AttentionCost attention(cluster, software);
  set(Rate::attention_forward, kinds.absorbed ? attention.absorbed_width(head_dim)
                               : kinds.decode ? attention.decode_width(head_dim)
                                              : attention.width(head_dim, false));
  set(Rate::attention_backward, attention.width(head_dim, true));
  const double of_experts = kinds.experts ? ExpertCost(cluster, software).width() : 0;
  set(Rate::products, std::max(product_width(cluster, software), of_experts));
  const Source* memory = cluster.source_of("memory_efficiency");
  const bool known = is_first_hand(memory) && !cluster.memory_efficiency.empty();
  set(Rate::memory, known ? widths::kKernelElsewhere : widths::kBorrowed);
  set(Rate::inside, transfer_width(cluster, false));
  set(Rate::network, transfer_width(cluster, true));
  for (const Rate rate : {Rate::launch, Rate::latency, Rate::offload}) set(rate, widths::kBorrowed);
  set(Rate::host, widths::kHost);
  doubt.of_all = widths::kOfAll, doubt.of_strategy = widths::kOfStrategy, doubt.of_kind = widths::kOfKind;
  return doubt;
}

}  // namespace cp::sim
