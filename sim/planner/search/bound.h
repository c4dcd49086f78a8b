// How fast a layout can be at best: a lower bound of its step on the timeline, in closed form and a few
// microseconds.
//
// Kernels of a rank run one after the other, so that their sum is a bound; forward, transfers between
// tensor-parallel regions and those before and behind attention hide behind nothing; backward the chain of
// input gradients is a bound, transfers included. All weights must be gathered and all gradients be
// scattered. No link and no kernel is faster than its peak.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/nccl_model.h"
#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

class StepBound {
 public:
  explicit StepBound(const PlanQuestion& question);  // which must outlive this

  // Of one layout that is not refused.
  double ns(const ParallelLayout& layout) const { return step_ns(layout, shared(layout), false, nullptr); }
  // Sharper, of a layout in training, with its attention replayed alone.
  double ns(const ParallelLayout& layout, const AttentionTimes& attention) const {
    return step_ns(layout, shared(layout), false, &attention);
  }
  // Of all members of its family (layout_space.h): attention shared evenly, nothing moved for it, nothing
  // computed again.
  double family_ns(const ParallelLayout& layout) const {
    return step_ns(layout, shared(layout), true, nullptr);
  }

 private:
  friend class FamilyBound;

  struct Pass {
    double forward_ns = 0, backward_ns = 0;
  };
  struct Attention {
    Pass kernels;  // of the rank that has most pairs, or what comes to it meanwhile where that takes longer
    Pass moved;    // before and behind it
  };
  // Neighbours in a group of cp ranks: how far apart in the cluster.
  struct Ranks {
    std::int64_t stride = 1, size = 1;
  };

  // Of a layer: weights gathered, gradients scattered, and both through the port that they share.
  struct Sharding {
    double gather_ns = 0, scatter_ns = 0, port_gather_ns = 0, port_scatter_ns = 0;
    double ns(std::int64_t gathers, std::int64_t scatters) const;  // of so many
  };
  // Of a product forward, and of those for the gradients of its input and of its weights: the same flops in
  // other shapes.
  struct Products {
    double forward_ns = 0, input_ns = 0, weight_ns = 0;
  };
  // What members of a family with as many rows share. Times of one layer, where nothing else is said.
  struct Shared {
    LocalSizes sizes;
    Products products;
    double last_product_ns = 0;
    double positions_ns = 0, forward_rows_ns = 0, backward_rows_ns = 0;
    double mlp_again_ns = 0;               // products of chunks that the backward pass makes again
    double gather_ns = 0, regions_ns = 0;  // between tensor-parallel regions, in one direction
    Sharding shards;
    double shards_once_ns = 0;         // of whole parameters and gradients, in the update
    double update_ns = 0;              // of the step
    std::vector<std::int64_t> stages;  // their layers
  };

  Shared shared(const ParallelLayout& layout) const;
  double step_ns(const ParallelLayout& layout, const Shared& shared, bool whole_family,
                 const AttentionTimes* replayed) const;
  Pass layer(const ParallelLayout& layout, const Shared& shared, bool whole_family,
             const AttentionTimes* replayed) const;
  Attention attention(const ParallelLayout& layout, const LocalSizes& sizes, bool whole_family) const;
  // Pairs that the last rows of a sequence see, of a head.
  double pairs_of_last(std::int64_t rows) const;
  // Of an all-to-all or a gather: bytes from each of the other ranks.
  double from_each_ns(double bytes, const Ranks& ranks) const;
  // Of a message to the next rank of a ring, where that takes longest.
  double hop_ns(double bytes, const Ranks& ranks) const;
  std::int64_t on_a_node(const Ranks& ranks) const;
  Pass head(const ParallelLayout& layout, const LocalSizes& sizes, bool whole_family) const;
  double update_ns(const ParallelLayout& layout, const LocalSizes& sizes, std::int64_t layers) const;
  // Of that many parameters of a layer, or more.
  Sharding sharding(const ParallelLayout& layout, std::int64_t parameters) const;
  Spread spread_of_ranks(const Ranks& first, const Ranks& second) const;

  Products experts(std::int64_t rows, std::int64_t number, std::int64_t k, std::int64_t n) const;
  double product(std::int64_t m, std::int64_t k, std::int64_t n) const;
  Products products(std::int64_t m, std::int64_t k, std::int64_t n) const;
  double memory(double bytes) const { return bytes / best_hbm_; }
  // Between tensor-parallel regions.
  double region(CollectiveKind kind, double bytes, std::int64_t stride, std::int64_t size) const;

  const PlanQuestion& question_;
  const KernelCost kernels_;
  const double pairs_;       // of a sequence and head
  double best_hbm_ = 0;      // bytes a ns
  double best_product_ = 0;  // flops a ns
  double launch_ns_ = 0;     // of each kernel
};

// Bounds of the members of one family, one after the other.
class FamilyBound {
 public:
  explicit FamilyBound(const StepBound& bound) : bound_(bound) {}  // which must outlive this

  // The same as StepBound::ns.
  double ns(const ParallelLayout& member);

 private:
  const StepBound& bound_;
  std::optional<StepBound::Shared> shared_;
};

}  // namespace cp::sim
