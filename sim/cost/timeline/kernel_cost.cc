#include "sim/cost/timeline/kernel_cost.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "shared/base/units.h"
#include "shared/plan/host_place.h"
#include "shared/plan/operations.h"
#include "shared/plan/recurrence_rules.h"

namespace cp::sim {
namespace {

// The share of the peak that kernels other than attention are taken to reach if nothing was measured for
// them. An assumption, not fitted: times of such kernels change in proportion to it.
constexpr double kOtherShare = 0.8;
// Of the share of its peak that a product in 16 bits reaches, what one in 8 bits does, with its casts. In
// TensorRT-LLM 1.3 the latter is 1.58 (H100), 1.63 (H200), 1.61 (B200) and 1.63 (L40S) times as fast in the
// median of 675 products of 4,096 and more rows, columns and channels, with twice the peak (tables of
// aiconfigurator-core 0.12.0).
constexpr double kFp8Share = 0.8;

// The table over the vocabulary or its gradients: "parameters/head", "unsharded/head gradients". A tied one
// lies in the embedding, which has no products of its own.
bool is_of_head(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view unit = name.substr(slash + 1, name.find(' ', slash) - slash - 1);
  return unit == "head" || unit == "embedding";
}

// How many times an element of the view is as large as one of 8 bits.
double in_bytes(const View& view, const Plan& plan) {
  return static_cast<double>(size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
}

}  // namespace

int bits_of(LinearPrecision precision) {
  switch (precision) {
    case LinearPrecision::b16:
      return 16;
    case LinearPrecision::fp8:
      return 8;
    case LinearPrecision::nvfp4:
      return 4;
  }
  return 16;
}

double KernelCost::ns(const Kernel& kernel, const Plan& plan) const {
  KernelWork work = work_of(kernel, plan);
  if (software_.fused_rows &&
      (std::holds_alternative<Accumulate>(kernel) || std::holds_alternative<Fill>(kernel)))
    return riding_ns(std::holds_alternative<Fill>(kernel) ? 0 : work.bytes);
  if (const auto* attention = std::get_if<AttentionForward>(&kernel);
      attention != nullptr && software_.fp8_cache) {
    // The plan has keys and values in the dtype of attention; the software reads what the cache holds.
    const double kept = in_bytes(attention->k, plan);
    const double cache = work.bytes_per_key * static_cast<double>(attention->k.shape[1]);
    work.bytes -= cache * (1 - 1 / kept), work.bytes_per_key /= kept;
  }
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
                 return work.products * product_ns(op, work, plan) + (work.products - 1) * launch;
               } else if constexpr (std::is_same_v<T, RecurrenceJoin>) {
                 return recurrence_ns(work, DType::f32);
               } else if constexpr (kIsRecurrence<T>) {
                 return recurrence_ns(work, plan.buffers[static_cast<std::size_t>(op.k.buffer)].dtype);
               } else if constexpr (std::is_same_v<T, AttentionMerge>) {
                 return memory_ns(work.bytes * (is_absent(op.lse) ? 1 : software_.merge_passes));
               } else if constexpr (std::is_same_v<T, Copy>) {
                 return memory_ns(work.bytes * software_.pack_passes);
               } else if constexpr (std::is_same_v<T, RowKernel>) {
                 return memory_ns(work.bytes * passes(op.operation));
               } else {
                 return memory_ns(work.bytes);
               }
             },
             kernel);
}

double KernelCost::ns(StepId step, const Kernel& kernel, const Plan& plan,
                      const GroupedProducts& grouped) const {
  if (is_launched_before(step, grouped)) return 0;
  const GroupedCall* call = grouped.begun_by(step);
  if (call == nullptr || !experts_.groups(call->dtype)) return ns(kernel, plan);
  return cluster_.gpu.kernel_launch_us * kNsPerUs + experts_.ns(*call);
}

bool KernelCost::is_launched_before(StepId step, const GroupedProducts& grouped) const {
  return grouped.is_within(step) && experts_.groups(grouped.dtype_of(step));
}

double KernelCost::launches(StepId step, const Work& work, const GroupedProducts& grouped) const {
  if (is_launched_before(step, grouped)) return 0;
  const auto* kernel = std::get_if<Kernel>(&work);
  const auto* product = kernel != nullptr ? std::get_if<MatMul>(kernel) : nullptr;
  const GroupedCall* call = grouped.begun_by(step);
  if (product == nullptr || (call != nullptr && experts_.groups(call->dtype))) return 1;
  return static_cast<double>(num_products(*product));
}

double KernelCost::grouped_ns(const GroupedCall& call) const {
  if (experts_.groups(call.dtype)) return experts_.ns(call);
  const KernelWork one = product_work(call.rows / call.products, call.n, call.k);
  return call.products * (cluster_.gpu.kernel_launch_us * kNsPerUs + product_ns(one, call.dtype));
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

double KernelCost::passes(RowOperation operation) const {
  switch (operation) {
    case RowOperation::rotary:
    case RowOperation::rotary_backward:
      return software_.rotary_passes;
    case RowOperation::cross_entropy:
    case RowOperation::cross_entropy_backward:
      return software_.loss_passes;
    case RowOperation::optimizer:
      return software_.optimizer_passes;
    default:
      return 1;
  }
}

bool KernelCost::is_fp8(DType dtype) const {
  return software_.linear_precision != LinearPrecision::b16 && dtype != DType::f32 &&
         cluster_.gpu.tflops_fp8 > 0;
}

double KernelCost::product_ns(const MatMul& product, const KernelWork& work, const Plan& plan) const {
  const auto buffer = [&](const View& view) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(view.buffer)];
  };
  const DType dtype = buffer(product.a).dtype;
  const auto of_head = [&](const View& view) { return is_of_head(buffer(view).name); };
  const bool in_16_bits =
      !software_.fp8_head && (of_head(product.a) || of_head(product.b) || of_head(product.out));
  const bool fp8 = is_fp8(dtype) && !in_16_bits;
  double ns = product_ns(work, dtype, fp8);
  // Read in 16 bits and written in 8, as the left one is in the rates.
  if (fp8 && software_.fp8_casts_both) ns += memory_ns(3 * work.n * work.k);
  return ns;
}

double KernelCost::product_ns(const KernelWork& work, DType dtype, bool fp8) const {
  const Gpu& gpu = cluster_.gpu;
  if (software_.stored_products && dtype != DType::f32) {
    const int bits = fp8 ? bits_of(software_.linear_precision) : 16;
    if (const auto* stored = find_stored_product(cluster_.rates.stored_product, bits, work.m)) {
      const double speed = gpu.sustained_clock * gpu.tflops_16 / cluster_.rates.tflops_16;
      return kNsPerUs * (stored_product_us(*stored, work.m, work.n, work.k, gpu.hbm_gbps, speed) -
                         std::min(stored->floor_us, gpu.kernel_launch_us));
    }
  }
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

// Nobody's rates of these kernels are known here.
double KernelCost::recurrence_ns(const KernelWork& work, DType dtype) const {
  const Gpu& gpu = cluster_.gpu;
  const double peak = (dtype == DType::f32 ? gpu.tflops_f32 : gpu.tflops_16) * gpu.sustained_clock;
  return std::max(work.flops / (peak * kOtherShare) * 1e-3, memory_ns(work.bytes));
}

double KernelCost::riding_ns(double bytes) const {
  double share = kOtherShare;
  for (const CurvePoint& point : cluster_.memory_efficiency.points())
    share = std::max(share, std::min(point.y, 1.0));
  return bytes / (cluster_.gpu.hbm_gbps * share);
}

double KernelCost::memory_ns(double bytes) const {
  if (bytes == 0) return 0;
  const double share =
      cluster_.memory_efficiency.empty() ? kOtherShare : std::min(cluster_.memory_efficiency.at(bytes), 1.0);
  return bytes / (cluster_.gpu.hbm_gbps * share);
}

}  // namespace cp::sim
