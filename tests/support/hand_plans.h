// Three plans written by hand, without any planner: what the plan types, the checker and every device must be
// able to carry.
//
//   ring_backward       gradients of ring attention: head-tail shards of packed documents, keys and values
//                       one step ahead of the computation on a second stream, f32 gradients one step behind
//   uneven_reduce       Partial(sum) to an uneven Shard: a padded ReduceScatter, or an Exchange and
//                       Accumulates
//   prefetched_blocks   a Repeat of two-layer blocks whose next layer's weights are gathered on a stream of
//                       their own
//
// Each comes with its inputs and with what the outputs must be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp::testing {

using BufferValues = std::map<std::string, std::vector<double>>;  // by buffer name

struct PlanCase {
  std::string name;
  std::vector<Plan> plans;             // by rank
  std::vector<BufferValues> inputs;    // by rank: inputs and inouts
  std::vector<BufferValues> expected;  // by rank: outputs and inouts
  double tolerance = 0;                // absolute; 0: equal bit for bit
};

// `dtype` of q, k, v and dout.
PlanCase ring_backward(int ranks, DType dtype);

enum class UnevenReduce : std::uint8_t { reduce_scatter, exchange };
// `rows` rows over the ranks by the rule of torch.chunk.
PlanCase uneven_reduce(int ranks, std::int64_t rows, UnevenReduce form, DType dtype);

// `blocks` >= 2 blocks of two layers.
PlanCase prefetched_blocks(int ranks, std::int64_t blocks);

// The plans above at the given number of ranks, in all their forms.
std::vector<PlanCase> hand_plans(int ranks);

// One rank's plan of one all-reduce, in place, of an inout x of four f32.
Plan all_reduce_plan(Rank self, std::vector<Rank> ranks);

// Runs the rank's plan on the device with its inputs and returns its outputs.
BufferValues run_plan_case(const PlanCase& plan_case, Rank rank, Device& device, RankTrace* trace = nullptr);

// Where the outputs differ from what they must be, in words; empty when nowhere.
std::string compare_outputs(const PlanCase& plan_case, Rank rank, const BufferValues& outputs);

}  // namespace cp::testing
