// How long the products of a rank's experts take in one call, by the rates of the kernel that the software
// runs.
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

  // Whether operands of this type are multiplied in one call: the software does so, and the cluster has a
  // rate of it. A curve of the cluster's own products says nothing of them.
  bool groups(DType dtype) const { return rate_of(dtype) != nullptr; }

  // Beyond the launch; groups(call.dtype). Gradients of matrices are as fast as other products of as many
  // flops and bytes: assumed.
  double ns(const GroupedCall& call) const;

  // How far the truth may lie from ns(), as a factor each way: the ninetieth percentile of the rate's errors
  // on rows that were left out of its fit; at least 0.3 where the rate was taken over, or another kernel than
  // the software's was measured. 0: groups() nothing.
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

// Which kernel computes a rank's experts: as chosen_kernel() of attention. Null: none is named that the
// cluster has in so many bits.
const ExpertRate* chosen_expert_rate(const Cluster& cluster, std::string_view names, int bits);

}  // namespace cp::sim
