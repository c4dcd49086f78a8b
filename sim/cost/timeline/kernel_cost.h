// How long a kernel takes on a GPU that does nothing else: attention by its shape, products by theirs, all
// else by the bytes it moves. No kernel is faster than the GPU's peak. Where the software's linear layers are
// in FP8, products of 16-bit operands are: their operands are read in 8 bits, and casting them is part of the
// time. Software that serves (SoftwareProfile::stored_products) has weights and activations in the format of
// the products: there the rates of stored operands count, where the cluster has them. What the host does with
// its memory takes as long as host_cost.h says.
#pragma once

#include <cstdint>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/attention_cost.h"
#include "sim/cost/timeline/expert_cost.h"
#include "sim/cost/timeline/grouped_products.h"
#include "sim/cost/timeline/host_cost.h"
#include "sim/cost/timeline/kernel_work.h"

namespace cp::sim {

int bits_of(LinearPrecision precision);  // of an operand: 16, 8 or 4

class KernelCost {
 public:
  // Both must outlive this.
  KernelCost(const Cluster& cluster, const SoftwareProfile& software)
      : cluster_(cluster),
        software_(software),
        attention_(cluster, software),
        experts_(cluster, software),
        host_(host_rates(cluster.node)) {}
  KernelCost(const Cluster& cluster, const SoftwareProfile&& software) = delete;  // it would not
  KernelCost(const Cluster&& cluster, const SoftwareProfile& software) = delete;
  KernelCost(const Cluster&& cluster, const SoftwareProfile&& software) = delete;

  // With the launch. Of kernels that nothing was measured of, attention reaches half of the peak, and others
  // four fifths of theirs.
  double ns(const Kernel& kernel, const Plan& plan) const;
  // The same of a step of the plan that `grouped` was made of: where the products of experts are one call,
  // the first of them takes the time of all, and the others none.
  double ns(StepId step, const Kernel& kernel, const Plan& plan, const GroupedProducts& grouped) const;
  // How many launches the step takes: none if it is part of such a call, and one for each product that is
  // not.
  double launches(StepId step, const Work& work, const GroupedProducts& grouped) const;

  // The parts of it, without the launch. A curve of the cluster counts before its rates. Attention of few
  // rows (decoding) splits its keys over the GPU, and is as fast as the memory lets it, or as the largest
  // kernels.
  double attention_ns(const KernelWork& work, std::int64_t head_dim, bool backward) const;
  double product_ns(const KernelWork& work, DType dtype) const {
    return product_ns(work, dtype, is_fp8(dtype));
  }
  double memory_ns(double bytes) const;
  double recurrence_ns(const KernelWork& work, DType dtype) const;
  // The products of experts, without the launch. Where nothing computes them in one call, as many products
  // apart, each launched.
  double grouped_ns(const GroupedCall& call) const;
  bool groups(DType dtype) const { return experts_.groups(dtype); }
  // Of bytes that another kernel moves beside its own: as fast as the largest ones, without a launch.
  double riding_ns(double bytes) const;

  const AttentionCost& attention() const { return attention_; }

 private:
  bool is_fp8(DType dtype) const;
  bool is_launched_before(StepId step, const GroupedProducts& grouped) const;
  double product_ns(const MatMul& product, const KernelWork& work, const Plan& plan) const;
  double product_ns(const KernelWork& work, DType dtype, bool fp8) const;
  double passes(RowOperation operation) const;
  const ProductRate* product_rate(int bits) const;

  const Cluster& cluster_;
  const SoftwareProfile& software_;
  const AttentionCost attention_;
  const ExpertCost experts_;
  const HostRates host_;
};

}  // namespace cp::sim
