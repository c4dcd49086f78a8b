// RunningKernels: the kernels that run on one rank. While its GPU sends or receives, each of them is slower,
// by a share that depends on the kernel.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/cost/timeline/program.h"

namespace cp::sim {

class RunningKernels {
 public:
  // When a kernel ends if nothing changes. If its speed changes, it gets a new End with another version, and
  // the earlier one does not count any more. at_ns is infinite while the kernel stands still.
  struct End {
    NodeId node = -1;
    std::uint32_t version = 0;
    double at_ns = std::numeric_limits<double>::infinity();
  };

  bool none() const { return kernels_.empty(); }
  bool counts(NodeId node, std::uint32_t version) const;

  // Starts a kernel that takes `ns` alone. Beside transfers it keeps the share `slowest`, in [0, 1], of its
  // speed.
  End begin(double now_ns, NodeId node, double ns, double slowest);
  // Ends a kernel. Returns whether it took longer than it would have taken alone.
  bool end(double now_ns, NodeId node);
  // Tells that from now on transfers are under way, or none is. Returns the new ends of the kernels whose
  // speed has changed.
  std::vector<End> set_disturbed(double now_ns, bool disturbed);

 private:
  struct Kernel {
    NodeId node;
    std::uint32_t version;
    double left_ns;  // of undisturbed time, at `since_ns`
    double since_ns;
    double share;  // of its speed that it has now
    double slowest;
    double alone_end_ns;
  };

  static End end_of(double now_ns, const Kernel& kernel);

  std::vector<Kernel> kernels_;
  bool disturbed_ = false;
  std::uint32_t versions_ = 0;
};

}  // namespace cp::sim
