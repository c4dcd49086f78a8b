#include "sim/timeline/kernel_cost.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "shared/plan/operations.h"

namespace cp::sim {
namespace {

constexpr double kAttentionShare = 0.5, kOtherShare = 0.8;  // of the peak, where nothing was measured
constexpr double kFewRows = 64;  // one tile of a kernel: its keys are split instead
constexpr double kNsPerUs = 1e3;

double count(std::int64_t number) { return static_cast<double>(number); }

double bytes_of(const View& view, const Plan& plan) {
  return count(view.numel() * size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
}

// Pairs of one head that a slice allows.
double pairs_of(const MaskSlice& slice) {
  if (slice.kind == MaskSlice::Kind::full) return count(slice.q_len) * count(slice.k_len);
  // Keys j in (i + diagonal - window, i + diagonal], cut to [0, k_len).
  const auto below = [&](double reach, double rows, double keys) {
    // Sum over i in [0, rows) of clamp(i + reach, 0, keys).
    const double first = std::clamp(-reach, 0.0, rows), last = std::clamp(keys - reach, first, rows);
    const double rising = last - first;
    return rising * (first + reach) + rising * (rising - 1) / 2 + (rows - last) * keys;
  };
  const double rows = count(slice.q_len), keys = count(slice.k_len), reach = count(slice.diagonal) + 1;
  const double up_to = below(reach, rows, keys);
  if (slice.kind == MaskSlice::Kind::causal) return up_to;
  return up_to - below(reach - count(slice.window), rows, keys);
}

void add_pairs(const std::vector<MaskSlice>& slices, double heads, KernelWork& work) {
  for (const MaskSlice& slice : slices) {
    (slice.kind == MaskSlice::Kind::full ? work.full_pairs : work.diagonal_pairs) += heads * pairs_of(slice);
  }
}

}  // namespace

KernelWork work_of(const Kernel& kernel, const Plan& plan) {
  KernelWork work;
  const View* workspace = nullptr;  // what a fused kernel does there is part of its speed
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { op.workspace; }) workspace = &op.workspace;
      },
      kernel);
  const auto add_bytes = [&](const Access& access) {
    if (access.view == workspace) return;
    const double bytes = bytes_of(*access.view, plan);
    work.bytes += (access.reads ? bytes : 0) + (access.writes ? bytes : 0);
  };
  std::visit([&](const auto& op) { for_each_access_of(op, 0, add_bytes); }, kernel);
  std::visit(
      [&](const auto& op) {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, MatMul>) {
          work.flops = 2 * count(op.a.shape[0]) * count(op.a.shape[1]) * count(op.b.shape[1]);
        } else if constexpr (std::is_same_v<T, AttentionForward> || std::is_same_v<T, AttentionBackward>) {
          add_pairs(op.slices, count(op.q.shape[0]) * count(op.q.shape[2]), work);
          work.rows = count(op.q.shape[1] * (op.q.shape[2] / std::max<std::int64_t>(1, op.k.shape[2])));
          const double d = count(op.q.shape[3]), dv = count(op.v.shape[3]);
          double per_pair =
              2 * (d + dv);  // backward: the scores and their gradients, and a product for each gradient
          if constexpr (std::is_same_v<T, AttentionBackward>) {
            per_pair += (is_absent(op.dq) ? 0 : 2 * d) + (is_absent(op.dk) ? 0 : 2 * d) +
                        (is_absent(op.dv) ? 0 : 2 * dv);
          }
          work.flops = per_pair * (work.full_pairs + work.diagonal_pairs);
        }
      },
      kernel);
  return work;
}

double KernelCost::ns(const Kernel& kernel, const Plan& plan) const {
  const KernelWork work = work_of(kernel, plan);
  const double launch = cluster_.gpu.kernel_launch_us * kNsPerUs;
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

// The curve of that pass: of the software's kernel before others, then of the nearest head size, then for the mask; null when
// there is none.
const AttentionCurve* KernelCost::attention_curve(bool backward, bool causal, std::int64_t head_dim) const {
  const AttentionCurve* best = nullptr;
  const auto distance = [&](const AttentionCurve& curve) {
    const bool other = software_.attention_kernel != "any" && curve.kernel != software_.attention_kernel;
    return (other ? 1 << 20 : 0) + std::abs(curve.head_dim - head_dim) * 2 + (curve.causal == causal ? 0 : 1);
  };
  for (const AttentionCurve& curve : cluster_.attention) {
    if (curve.backward == backward && (best == nullptr || distance(curve) < distance(*best))) best = &curve;
  }
  return best;
}

// A kernel with both kinds of slices does one after the other, each as fast as a kernel of all these pairs.
double KernelCost::attention_ns(const KernelWork& work, std::int64_t head_dim, bool backward) const {
  const double pairs = work.full_pairs + work.diagonal_pairs;
  if (pairs == 0) return 0;
  const double flops_per_pair = work.flops / pairs, peak = cluster_.gpu.tflops_16;
  double flop_ns = 0;
  for (const bool causal : {false, true}) {
    const double share = causal ? work.diagonal_pairs : work.full_pairs;
    if (share == 0) continue;
    const AttentionCurve* curve = attention_curve(backward, causal, head_dim);
    const double size = work.rows <= kFewRows && curve != nullptr ? curve->tflops.points().back().x : pairs;
    const double tflops = curve == nullptr ? kAttentionShare * peak : std::min(curve->tflops.at(size), peak);
    flop_ns += share * flops_per_pair / tflops * 1e-3;
  }
  return std::max(flop_ns, memory_ns(work.bytes));
}

double KernelCost::product_ns(const KernelWork& work, DType dtype) const {
  const Gpu& gpu = cluster_.gpu;
  const bool fp8 =
      software_.linear_precision == LinearPrecision::fp8 && dtype != DType::f32 && gpu.tflops_fp8 > 0;
  const double peak = (fp8                   ? gpu.tflops_fp8
                       : dtype == DType::f32 ? gpu.tflops_f32
                                             : gpu.tflops_16) *
                      gpu.sustained_clock;
  const Curve& efficiency =
      fp8 && !cluster_.fp8_efficiency.empty() ? cluster_.fp8_efficiency : cluster_.matmul_efficiency;
  const double share = efficiency.empty() ? kOtherShare : std::min(efficiency.at(work.flops), 1.0);
  return std::max(work.flops / (peak * share) * 1e-3, memory_ns(work.bytes));
}

double KernelCost::memory_ns(double bytes) const {
  if (bytes == 0) return 0;
  const double share =
      cluster_.memory_efficiency.empty() ? kOtherShare : std::min(cluster_.memory_efficiency.at(bytes), 1.0);
  return bytes / (cluster_.gpu.hbm_gbps * share);
}

}  // namespace cp::sim
