// How long a kernel takes on a GPU that does nothing else: attention by its shape, products by theirs, all else by the bytes it moves.
// No kernel is faster than the GPU's peak. What the host does with its memory takes as long as host_cost.h says. Where the software's linear layers are in FP8, products of 16-bit operands are: their
// operands are read in 8 bits, and casting them is part of the time.
#pragma once

#include <cstdint>

#include "shared/plan/plan.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"
#include "sim/timeline/attention_cost.h"
#include "sim/timeline/host_cost.h"
#include "sim/timeline/kernel_work.h"

namespace cp::sim {

class KernelCost {
 public:
  // Both must outlive this.
  KernelCost(const Cluster& cluster, const SoftwareProfile& software)
      : cluster_(cluster),
        software_(software),
        attention_(cluster, software),
        host_(host_rates(cluster.node)) {}

  // With the launch. Of kernels that nothing was measured of, attention reaches half of the peak, and others four fifths of theirs.
  double ns(const Kernel& kernel, const Plan& plan) const;

  // The parts of it, without the launch. A curve of the cluster counts before its rates. Attention of few rows (decoding) splits its
  // keys over the GPU, and is as fast as the memory lets it, or as the largest kernels.
  double attention_ns(const KernelWork& work, std::int64_t head_dim, bool backward) const;
  double product_ns(const KernelWork& work, DType dtype) const;
  double memory_ns(double bytes) const;

  const AttentionCost& attention() const { return attention_; }

 private:
  const ProductRate* product_rate(int bits) const;

  const Cluster& cluster_;
  const SoftwareProfile& software_;
  const AttentionCost attention_;
  const HostRates host_;
};

}  // namespace cp::sim
