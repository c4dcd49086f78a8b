// ExpertCost: how long the products of a rank's experts take if one call computes all of them, by the rates
// of the kernel that the software runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/grouped_products.h"

namespace cp::sim {

class ExpertCost {
 public:
  // `cluster` must outlive this.
  ExpertCost(const Cluster& cluster, const SoftwareProfile& software);

  // True if operands of this type are multiplied in one call: the software does so, and the cluster has a
  // rate for it. A curve of the cluster for ordinary products says nothing about such calls.
  bool groups(DType dtype) const { return rate_of(dtype) != nullptr; }

  // The time of a call in ns, without its launch. groups(call.dtype) must be true. It is an assumption that
  // gradients of matrices are as fast as other products of the same flops and bytes.
  double ns(const GroupedCall& call) const;

  // How far the truth may lie from ns(), as a share each way (widths.h). Eight in ten of the rate's errors,
  // on rows that were left out of its fit, are below it. It is at least widths::kBorrowed if the rate is
  // second-hand, or if the software does not name this kernel. 0 if there is no rate for 16 bits.
  double width() const;

  const std::string& kernel() const { return kernel_; }  // of 16 bits; empty: of none

 private:
  const ExpertRate* rate_of(DType dtype) const {
    return dtype == DType::f32 ? nullptr : fp8_ ? rate_8_ : rate_16_;
  }

  const Cluster& cluster_;
  const ExpertRate *rate_16_ = nullptr, *rate_8_ = nullptr;
  std::string kernel_;
  bool fp8_ = false;
  bool named_ = false;  // the software names the kernel
};

// Returns the rate of the kernel that computes a rank's experts, chosen as chosen_kernel() chooses that of
// attention. Null if the cluster has none of the named kernels with so many bits.
const ExpertRate* chosen_expert_rate(const Cluster& cluster, std::string_view names, int bits);

}  // namespace cp::sim
