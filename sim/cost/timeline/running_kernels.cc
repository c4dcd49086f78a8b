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

std::vector<RunningKernels::End> RunningKernels::adapt(double now_ns) {
  const auto merges = std::count_if(kernels_.begin(), kernels_.end(),
                                    [](const Kernel& kernel) { return kernel.kind.merges; });
  const GpuShares shares(static_cast<int>(merges), static_cast<int>(std::ssize(kernels_) - merges));
  std::vector<End> ends;
  for (Kernel& kernel : kernels_) {
    const double among = shares.of(kernel.kind.merges), beside = disturbed_ ? kernel.kind.slowest : 1;
    kernel.beside_kernels = kernel.beside_kernels || among < 1;
    kernel.beside_transfers = kernel.beside_transfers || beside < 1;
    if (among * beside == kernel.share) continue;
    if (kernel.share > 0)
      kernel.left_ns = std::max(0.0, kernel.left_ns - (now_ns - kernel.since_ns) * kernel.share);
    kernel.share = among * beside, kernel.since_ns = now_ns, kernel.version = ++versions_;
    ends.push_back(end_of(now_ns, kernel));
  }
  return ends;
}

std::vector<RunningKernels::End> RunningKernels::begin(double now_ns, NodeId node, double ns, Kind kind) {
  kernels_.push_back({node, kind, ns, now_ns, now_ns + ns});
  return adapt(now_ns);
}

RunningKernels::Ended RunningKernels::end(double now_ns, NodeId node) {
  const auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                                   [&](const Kernel& running) { return running.node == node; });
  CP_INVARIANT(kernel != kernels_.end(), "step ", node, " does not run");
  // Rounding, where its speed changed and came back, is no slowing down.
  const bool slowed = now_ns > kernel->alone_end_ns * (1 + 1e-12);
  Ended ended{slowed && kernel->beside_transfers, slowed && kernel->beside_kernels, {}};
  kernels_.erase(kernel);
  ended.others = adapt(now_ns);
  return ended;
}

std::vector<RunningKernels::End> RunningKernels::set_disturbed(double now_ns, bool disturbed) {
  disturbed_ = disturbed;
  return adapt(now_ns);
}

}  // namespace cp::sim
