#include "runtime/planned_work.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "shared/base/dtype.h"
#include "shared/plan/operations.h"

namespace cp::runtime {
namespace {

double pairs_of(const MaskSlice& slice) {
  const bool is_window = slice.kind == MaskSlice::Kind::window;
  const std::int64_t keys = is_window ? std::min(slice.k_len, slice.window) : slice.k_len;
  return static_cast<double>(slice.q_len) * static_cast<double>(keys);
}

// 2 flops for each pair, head and dimension of k and of v. Backward has at most 8 such products of matrices
// where forward has 2 (runtime/cuda/attention_backward.cu computes scores again for each gradient).
template <class Op>
double attention_seconds(const Op& op, double products) {
  double pairs = 0;
  for (const MaskSlice& slice : op.slices) pairs += pairs_of(slice);
  const double dims = static_cast<double>(std::max(op.q.shape.at(3), op.v.shape.at(3)));
  const double flops =
      2 * products * pairs * dims * static_cast<double>(op.q.shape[0]) * static_cast<double>(op.q.shape[2]);
  return flops /
         (op.engine == AttentionEngine::fused ? SlowestRates::kFusedFlops : SlowestRates::kExactFlops);
}

double seconds_of_flops(const Kernel& kernel) {
  if (const auto* forward = std::get_if<AttentionForward>(&kernel)) return attention_seconds(*forward, 2);
  if (const auto* backward = std::get_if<AttentionBackward>(&kernel)) return attention_seconds(*backward, 8);
  if (const auto* product = std::get_if<MatMul>(&kernel)) {
    return 2 * static_cast<double>(product->a.numel()) * static_cast<double>(product->b.shape.back()) /
           SlowestRates::kProductsFlops;
  }
  return 0;
}

double seconds_of(const Plan& plan, const Step& step) {
  const auto* kernel = std::get_if<Kernel>(&step.work);
  if (kernel == nullptr) return 0;
  double bytes = 0;
  for_each_access(plan, step.work, [&](const Access& access) {
    const DType dtype = plan.buffers.at(static_cast<std::size_t>(access.view->buffer)).dtype;
    bytes += static_cast<double>(access.view->numel()) * static_cast<double>(size_bytes(dtype)) *
             (access.reads && access.writes ? 2 : 1);
  });
  return SlowestRates::kLaunchSeconds + bytes / SlowestRates::kMemoryBytes + seconds_of_flops(*kernel);
}

}  // namespace

std::chrono::milliseconds planned_time(const Plan& plan) {
  double seconds = 0;
  for (const Segment& segment : plan.segments) {
    if (const auto* step = std::get_if<Step>(&segment)) {
      seconds += seconds_of(plan, *step);
      continue;
    }
    const auto& repeat = std::get<Repeat>(segment);
    double once = 0;
    for (const Step& step : repeat.steps) once += seconds_of(plan, step);
    const bool meets = std::ranges::any_of(repeat.steps, is_collective);
    seconds += meets ? once : once * static_cast<double>(repeat.count);
  }
  // A day is more than any timeout, and no product of it overflows.
  constexpr double kMost = 86'400;
  return std::chrono::milliseconds(std::llround(std::min(seconds, kMost) * 1000));
}

}  // namespace cp::runtime
