// RunningKernels: the kernels that run on one rank. While its GPU sends or receives, each of them is slower,
// by a share that depends on the kernel; and merges share the GPU with what they run beside (merge_stream.h).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/cost/timeline/merge_stream.h"
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
  // How a kernel keeps its speed: the share of it, in [0, 1], beside transfers; whether it is a merge that
  // runs beside others.
  struct Kind {
    double slowest = 1;
    bool merges = false;
  };

  bool none() const { return kernels_.empty(); }
  bool counts(NodeId node, std::uint32_t version) const;

  // Starts a kernel that takes `ns` alone. Returns its end, and the new ends of those whose speed it changes.
  std::vector<End> begin(double now_ns, NodeId node, double ns, Kind kind);
  // Ends a kernel.
  struct Ended {
    // Whether it took longer than it would have taken alone, and beside what.
    bool beside_transfers = false, beside_kernels = false;
    std::vector<End> others;  // the new ends of those whose speed has changed
  };
  Ended end(double now_ns, NodeId node);
  // Tells that from now on transfers are under way, or none is. Returns the new ends of the kernels whose
  // speed has changed.
  std::vector<End> set_disturbed(double now_ns, bool disturbed);

 private:
  struct Kernel {
    NodeId node;
    Kind kind;
    double left_ns;  // of undisturbed time, at `since_ns`
    double since_ns;
    double alone_end_ns;
    double share = -1;  // of its speed that it has now; -1: not known yet
    std::uint32_t version = 0;
    bool beside_transfers = false, beside_kernels = false;  // ever slowed by them
  };

  static End end_of(double now_ns, const Kernel& kernel);
  // Gives each kernel the speed that it has beside all others. Returns the ends of those that got another.
  std::vector<End> adapt(double now_ns);

  std::vector<Kernel> kernels_;
  bool disturbed_ = false;
  std::uint32_t versions_ = 0;
};

}  // namespace cp::sim
