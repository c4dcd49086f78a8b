#include "sim/timeline/kernel_cost.h"

#include <algorithm>
#include <type_traits>

#include "shared/plan/operations.h"

namespace cp::sim {
namespace {

constexpr double kOtherShare = 0.8;  // of the peak, where nothing was measured
// Of the share of its peak that a product in 16 bits reaches, what one in 8 bits does, with its casts. In TensorRT-LLM 1.3 the latter is
// 1.58 (H100), 1.63 (H200), 1.61 (B200) and 1.63 (L40S) times as fast in the median of 675 products of 4,096 and more rows, columns
// and channels, with twice the peak (tables of aiconfigurator-core 0.12.0).
constexpr double kFp8Share = 0.8;
constexpr double kNsPerUs = 1e3;

}  // namespace

double KernelCost::ns(const Kernel& kernel, const Plan& plan) const {
  const KernelWork work = work_of(kernel, plan);
  const double launch = cluster_.gpu.kernel_launch_us * kNsPerUs;
  switch (place_of(kernel, plan)) {
    case KernelPlace::host:
      return work.bytes / host_.memory_gbps;
    case KernelPlace::host_copy:  // of what it reads and writes, half goes each way
      return launch + work.bytes / 2 / host_.copy_gbps;
    case KernelPlace::gpu:
      break;
  }
  return launch +
         std::visit(
             [&](const auto& op) {
               using T = std::remove_cvref_t<decltype(op)>;
               if constexpr (std::is_same_v<T, AttentionForward> || std::is_same_v<T, AttentionBackward>) {
                 return attention_ns(work, op.q.shape[3], std::is_same_v<T, AttentionBackward>);
               } else if constexpr (std::is_same_v<T, MatMul>) {
                 return product_ns(work, plan.buffers[static_cast<std::size_t>(op.a.buffer)].dtype);
               } else if constexpr (std::is_same_v<T, AttentionMerge>) {
                 return memory_ns(work.bytes * (is_absent(op.lse) ? 1 : software_.merge_passes));
               } else if constexpr (std::is_same_v<T, Copy>) {
                 return memory_ns(work.bytes * software_.pack_passes);
               } else {
                 return memory_ns(work.bytes);
               }
             },
             kernel);
}

double KernelCost::attention_ns(const KernelWork& work, std::int64_t head_dim, bool backward) const {
  return std::max(attention_.ns(work, head_dim, backward), memory_ns(work.bytes));
}

const ProductRate* KernelCost::product_rate(int bits) const {
  const auto& rates = cluster_.rates.product;
  const auto found =
      std::find_if(rates.begin(), rates.end(), [&](const ProductRate& rate) { return rate.bits == bits; });
  return found == rates.end() ? nullptr : &*found;
}

double KernelCost::product_ns(const KernelWork& work, DType dtype) const {
  const Gpu& gpu = cluster_.gpu;
  const bool fp8 =
      software_.linear_precision == LinearPrecision::fp8 && dtype != DType::f32 && gpu.tflops_fp8 > 0;
  const Curve& own = fp8 ? cluster_.fp8_efficiency : cluster_.matmul_efficiency;
  const ProductRate* rate = dtype == DType::f32 || !own.empty() ? nullptr : product_rate(fp8 ? 8 : 16);
  if (rate != nullptr) {
    const double speed = gpu.sustained_clock * gpu.tflops_16 / cluster_.rates.tflops_16;
    const double us = product_us(*rate, work.m, work.n, work.k, gpu.hbm_gbps, speed);
    return kNsPerUs * (us - std::min(rate->floor_us, gpu.kernel_launch_us));
  }
  const double peak = (fp8                   ? gpu.tflops_fp8
                       : dtype == DType::f32 ? gpu.tflops_f32
                                             : gpu.tflops_16) *
                      gpu.sustained_clock;
  const Curve& efficiency = own.empty() ? cluster_.matmul_efficiency : own;
  double share = efficiency.empty() ? kOtherShare : std::min(efficiency.at(work.flops), 1.0);
  if (fp8 && own.empty()) share *= kFp8Share;
  // Operands in 8 bits are half of those in 16; the result is in 16.
  const double bytes = fp8 ? (work.m + work.n) * work.k + 2 * work.m * work.n : work.bytes;
  return std::max(work.flops / (peak * share) * 1e-3, memory_ns(bytes));
}

double KernelCost::memory_ns(double bytes) const {
  if (bytes == 0) return 0;
  const double share =
      cluster_.memory_efficiency.empty() ? kOtherShare : std::min(cluster_.memory_efficiency.at(bytes), 1.0);
  return bytes / (cluster_.gpu.hbm_gbps * share);
}

}  // namespace cp::sim
