#include "sim/cost/timeline/running_kernels.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp::sim {

bool RunningKernels::counts(NodeId node, std::uint32_t version) const {
  return std::any_of(kernels_.begin(), kernels_.end(),
                     [&](const Kernel& kernel) { return kernel.node == node && kernel.version == version; });
}

RunningKernels::End RunningKernels::end_of(double now_ns, const Kernel& kernel) {
  if (kernel.share == 0 && kernel.left_ns > 0) return {kernel.node, kernel.version};
  const double ns = kernel.left_ns == 0 ? 0 : kernel.left_ns / kernel.share;
  return {kernel.node, kernel.version, now_ns + ns};
}

RunningKernels::End RunningKernels::begin(double now_ns, NodeId node, double ns, double slowest) {
  kernels_.push_back({node, ++versions_, ns, now_ns, disturbed_ ? slowest : 1, slowest, now_ns + ns});
  return end_of(now_ns, kernels_.back());
}

bool RunningKernels::end(double now_ns, NodeId node) {
  const auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                                   [&](const Kernel& running) { return running.node == node; });
  CP_INVARIANT(kernel != kernels_.end(), "step ", node, " does not run");
  // Rounding, where its speed changed and came back, is no slowing down.
  const bool slowed = now_ns > kernel->alone_end_ns * (1 + 1e-12);
  kernels_.erase(kernel);
  return slowed;
}

std::vector<RunningKernels::End> RunningKernels::set_disturbed(double now_ns, bool disturbed) {
  disturbed_ = disturbed;
  std::vector<End> ends;
  for (Kernel& kernel : kernels_) {
    const double share = disturbed ? kernel.slowest : 1;
    if (share == kernel.share) continue;
    kernel.left_ns = std::max(0.0, kernel.left_ns - (now_ns - kernel.since_ns) * kernel.share);
    kernel.share = share, kernel.since_ns = now_ns, kernel.version = ++versions_;
    ends.push_back(end_of(now_ns, kernel));
  }
  return ends;
}

}  // namespace cp::sim
