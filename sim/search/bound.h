// How fast a layout can be at best: a lower bound of its step on the timeline, in closed form and a few microseconds.
//
// Kernels of a rank run one after the other, so that their sum is a bound; forward, transfers between tensor-parallel regions and
// those before and behind attention hide behind nothing; backward the chain of input gradients is a bound, transfers included. All
// weights must be gathered and all gradients be scattered. No link and no kernel is faster than its peak.
#pragma once

#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"
#include "sim/search/question.h"
#include "sim/timeline/collective_cost.h"
#include "sim/timeline/kernel_cost.h"

namespace cp::sim {

class StepBound {
 public:
  explicit StepBound(const PlanQuestion& question);  // which must outlive this

  // Of one layout that is not refused.
  double ns(const ParallelLayout& layout) const { return step_ns(layout, false); }
  // Of all members of its family (layout_space.h): attention shared evenly, nothing moved for it, nothing computed again.
  double family_ns(const ParallelLayout& layout) const { return step_ns(layout, true); }

 private:
  struct Pass {
    double forward_ns = 0, backward_ns = 0;
  };
  struct Attention {
    Pass kernels;         // of the rank that has most pairs
    double moved_ns = 0;  // before and behind it, forward
    double forward_ns() const { return kernels.forward_ns + moved_ns; }
  };

  double step_ns(const ParallelLayout& layout, bool whole_family) const;
  Pass layer(const ParallelLayout& layout, const LocalSizes& sizes, bool whole_family) const;
  Attention attention(const ParallelLayout& layout, const LocalSizes& sizes, bool whole_family) const;
  double transfers_ns(const ParallelLayout& layout, const LocalSizes& sizes) const;
  Pass head(const ParallelLayout& layout, const LocalSizes& sizes) const;
  double update_ns(const ParallelLayout& layout, const LocalSizes& sizes, std::int64_t layers) const;
  double sharding_ns(const ParallelLayout& layout, std::int64_t numel, std::int64_t element_bytes) const;

  double product(std::int64_t m, std::int64_t k, std::int64_t n) const;
  double memory(double bytes) const { return bytes / best_hbm_; }
  double best_rate(const ParallelLayout& layout, std::int64_t stride, std::int64_t size) const;
  double collective(CollectiveKind kind, double bytes, std::int64_t stride, std::int64_t size) const;

  const PlanQuestion& question_;
  const KernelCost kernels_;
  const double pairs_;                               // of a sequence and head
  double forward_tflops_ = 0, backward_tflops_ = 0;  // of attention, at best
  double best_hbm_ = 0;                              // bytes a ns
};

}  // namespace cp::sim
