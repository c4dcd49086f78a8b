// How long a kernel takes on a GPU that does nothing else: attention by the pairs that its mask allows, products by their
// flops, all else by the bytes it moves. No kernel is faster than the GPU's peak. Where
// the software's linear layers are in FP8, products of 16-bit operands are.
#pragma once

#include <cstdint>

#include "shared/plan/plan.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"

namespace cp::sim {

// What a kernel does, counted from its views and slices.
struct KernelWork {
  double flops = 0;  // of products; attention: of allowed pairs alone
  double bytes = 0;  // read and written
  // Attention alone, over batches and query heads: pairs in slices without a diagonal, and in those with one.
  double full_pairs = 0, diagonal_pairs = 0;
  double rows = 0;  // query rows that share a kv head: heads of a group x queries
};
KernelWork work_of(const Kernel& kernel, const Plan& plan);

class KernelCost {
 public:
  // Both must outlive this.
  KernelCost(const Cluster& cluster, const SoftwareProfile& software)
      : cluster_(cluster), software_(software) {}

  // With the launch. Attention of few rows (decoding) splits its keys over the GPU, and is as fast as that of the largest kernels
  // where memory lets it. Without a curve for it attention reaches half of the peak, and other kernels four fifths of theirs.
  double ns(const Kernel& kernel, const Plan& plan) const;

  // The parts of it, without the launch.
  double attention_ns(const KernelWork& work, std::int64_t head_dim, bool backward) const;
  double product_ns(const KernelWork& work, DType dtype) const;
  double memory_ns(double bytes) const;

 private:
  const AttentionCurve* attention_curve(bool backward, bool causal, std::int64_t head_dim) const;

  const Cluster& cluster_;
  const SoftwareProfile& software_;
};

}  // namespace cp::sim
