// What all parts of the bound share. Internal to sim/planner/search.
#pragma once

#include <cstdint>

#include "shared/transformer/layout_axes.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/step_plan.h"

namespace cp::sim::bound_terms {

// All constants of the bound err towards a lower one. One that errs too far only lets more layouts be
// replayed; one that does not err enough breaks the promise that no layout beats its bound, on which the
// search rests. The property StepBound.IsBelowTheTimeline (tests/planner/bound_test.cc) fails then.

// Formulas divide exactly what plans split into whole rows and heads, and add up in another order than the
// replay. A per mille covers both.
inline constexpr double kSlack = 0.999;

inline double real(std::int64_t number) { return static_cast<double>(number); }

// The request's micro-batch, as that many sequences of one token that no other rank has a part of.
inline void one_token_each(StepRequest& request) {
  Workload& workload = request.workload;
  workload.global_batch = request.layout.micro_batch * request.layout.dp_shard;
  workload.seq_len = 1, workload.cached = 0, workload.cu_seqlens.clear();
  if (workload.phase == Phase::decode) workload.seq_len = 2, workload.cached = workload.new_tokens = 1;
}

// Neighbours in a group of tp, cp or sharding ranks are that many ranks apart.
struct Strides {
  std::int64_t tp = 1, cp = 1, dp = 1, replicas = 1, pp = 1;
  bool cp_is_slower = false;  // than dp: neighbours among dp x cp are neighbours of dp
};
inline Strides strides_of(const ParallelLayout& layout) {
  Strides strides;
  std::int64_t stride = 1;
  bool has_cp = false;  // from the fastest axis on
  for (const LayoutAxis axis : axes_of(layout.order)) {
    switch (axis) {
      case LayoutAxis::tp:
        strides.tp = stride;
        break;
      case LayoutAxis::pp:
        strides.pp = stride;
        break;
      case LayoutAxis::cp:
        strides.cp = stride, has_cp = true;
        break;
      case LayoutAxis::dp_shard:
        strides.dp = stride, strides.cp_is_slower = !has_cp;
        break;
      case LayoutAxis::dp_replicate:
        strides.replicas = stride;
        break;
    }
    stride *= size_of(layout, axis);
  }
  return strides;
}

}  // namespace cp::sim::bound_terms
