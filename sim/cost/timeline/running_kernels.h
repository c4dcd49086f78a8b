// The kernels that run on one rank, each as fast as the transfers of its GPU let it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/cost/timeline/program.h"

namespace cp::sim {

class RunningKernels {
 public:
  // When a kernel ends if nothing changes; a change of its speed makes another one that counts instead. at_ns
  // is infinite while it stands still.
  struct End {
    NodeId node = -1;
    std::uint32_t version = 0;
    double at_ns = std::numeric_limits<double>::infinity();
  };

  bool none() const { return kernels_.empty(); }
  bool counts(NodeId node, std::uint32_t version) const;

  // One that takes `ns` when left alone; `slowest`, in [0, 1], is what it keeps of its speed beside
  // transfers.
  End begin(double now_ns, NodeId node, double ns, double slowest);
  // Whether it took longer than alone.
  bool end(double now_ns, NodeId node);
  // Transfers are under way from now on, or none is any more. The new ends of those whose speed has changed.
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
