// The order in which a rank runs the parts of a training step. It is the planner's: passes come in the order
// of the pipeline schedule (pipeline.h), 1F1B or interleaved 1F1B, and keep the activations of no more
// micro-batches than in_flight().
//
// What stages hand to one another are parts of their own, because 1F1B has no order of passes in which each
// could begin with its receive and end with its send: with two stages, rank 0 would send the rows of its
// second forward pass while rank 1 sends it the gradients of the first one, and both would wait. So a
// transfer has a place of its own in the lists of both ranks.
//
// Why no rank waits for ever. All passes and transfers of all ranks have a time on one clock: that of the
// schedule if a forward pass takes 1 and a backward pass 2. A pass stands at its begin. Rows stand at the
// begin of the pass that takes them, gradients at the end of the pass that makes them; where times are equal,
// transfers stand before passes, gradients before rows, and then stages and micro-batches count. That is one
// order of everything, and the list of a rank is what it has part in, in this order. A pass takes time, so
// that it stands behind the transfers that it needs and before those that need it. Whatever is first in this
// order and has not been done can be done: all its ranks have done all that comes before it in their lists.
// That holds for any number of ranks, stages and micro-batches, and even where a rank does one thing after
// the other and both sides of a transfer wait for each other.
//
// Why no place is written too early. A slot has the activations of one stage in one micro-batch, from the
// arrival of its input, right before its forward pass, until the gradients of that input have left, right
// behind its backward pass. The gradients of its output come into the place of the output itself, which has
// left before.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shared/transformer/step_plan.h"

namespace cp {

// One run of a part of the step on a rank.
struct PartRun {
  StepPart part = StepPart::micro_batch;
  int stage = 0;
  std::int64_t micro_batch = 0;  // 0 of what is done once a step
  // Of the activations of this stage and micro-batch: slots of a rank are used again. 0 of what has none.
  int slot = 0;

  bool operator==(const PartRun&) const = default;
};

struct StepOrder {
  std::vector<PartRun> passes;   // with the transfers between them
  std::vector<PartRun> updates;  // behind all passes: the update of each stage, and before it all reductions
  int slots = 0;                 // that the passes take
};

// Of a request whose phase is training and whose layout is legal.
StepOrder step_order(const StepRequest& request, Rank self);

// Proves, of these plans, that all ranks meet in the step and none waits for ever: check_sequences()
// (check_sequences.h) of what each rank runs, with its errors.
using PlanOfRank = std::function<const Plan&(StepPart part, int stage, Rank self, std::int64_t micro_batch)>;
void check_step_order(const StepRequest& request, const PlanOfRank& plans);
// The same of the plans that step_plan() makes.
void check_step_order(const StepRequest& request);

}  // namespace cp
