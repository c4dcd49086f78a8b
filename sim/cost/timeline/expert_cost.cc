#include "sim/cost/timeline/expert_cost.h"

#include <algorithm>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/cost/timeline/widths.h"

namespace cp::sim {
namespace {

// Of a layer's floor the plan's own kernels that sort rows, activate and add up take three launches, half of
// them beside each call.
constexpr double kBeside = 1.5;

}  // namespace

const ExpertRate* chosen_expert_rate(const Cluster& cluster, std::string_view names, int bits) {
  const std::vector<ExpertRate>& rates = cluster.rates.experts;
  const auto first = [&](auto&& wanted) {
    const auto found = std::find_if(rates.begin(), rates.end(), [&](const ExpertRate& rate) {
      return rate.bits == bits && wanted(rate);
    });
    return found == rates.end() ? nullptr : &*found;
  };
  for (const std::string_view each : split(names, ',')) {
    const std::string_view name = trim(each);
    if (name == "none") return nullptr;
    if (const ExpertRate* rate =
            first([&](const ExpertRate& of) { return name == "any" || of.kernel == name; })) {
      return rate;
    }
  }
  return first([](const ExpertRate&) { return true; });
}

ExpertCost::ExpertCost(const Cluster& cluster, const SoftwareProfile& software)
    : cluster_(cluster),
      rate_16_(chosen_expert_rate(cluster, software.expert_kernel, 16)),
      rate_8_(chosen_expert_rate(cluster, software.expert_kernel, 8)),
      fp8_(software.linear_precision == LinearPrecision::fp8 && cluster.gpu.tflops_fp8 > 0) {
  if (rate_16_ != nullptr) kernel_ = rate_16_->kernel;
  const ExpertRate* used = fp8_ ? rate_8_ : rate_16_;
  for (const std::string_view each : split(software.expert_kernel, ',')) {
    const std::string_view name = trim(each);
    named_ = named_ || name == "any" || (used != nullptr && name == used->kernel);
  }
}

double ExpertCost::ns(const GroupedCall& call) const {
  const ExpertRate& rate = *rate_of(call.dtype);
  const double speed = cluster_.gpu.sustained_clock * cluster_.gpu.tflops_16 / cluster_.rates.tflops_16;
  const double us =
      expert_products_us(rate, {call.rows, call.products, call.n, call.k}, cluster_.gpu.hbm_gbps, speed);
  const double launch = cluster_.gpu.kernel_launch_us;
  const double floor = std::max(launch, expert_floor_us(rate) - kBeside * launch);
  return kNsPerUs * (floor - launch + us);
}

double ExpertCost::width() const {
  const ExpertRate* rate = rate_of(DType::bf16);
  if (rate == nullptr) return 0;
  const bool second_hand =
      !named_ || is_second_hand(rate->provenance.origin) || is_second_hand(cluster_.source_of("rates"));
  return widths::by_hand(widths::eight_in_ten(rate->left_out.median, rate->left_out.p90), second_hand);
}

}  // namespace cp::sim
