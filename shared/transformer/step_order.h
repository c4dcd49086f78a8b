// The order in which a rank runs the parts of a training step. It is the planner's: passes come in the order
// of the pipeline schedule (pipeline.h), 1F1B or interleaved 1F1B, and keep the activations of no more
// micro-batches than in_flight().
//
// What stages hand to one another are parts of their own, because 1F1B has no order of passes in which each
// could begin with its receive and end with its send: with two stages, rank 0 would send the rows of its
// second forward pass while rank 1 sends it the gradients of the first one, and both would wait. So a
// transfer has a place of its own in the lists of both ranks.
//
// A rank issues its list in order, and its passes run one after the other. Transfers of each kind are in a
// lane of their own (lane_of()), and run beside the passes: a run waits for the one before it in its lane,
// for those that `after` names, and for nothing else.
//
// Why no rank waits for ever. All passes and transfers of all ranks have a time on one clock: that of the
// schedule if a forward pass takes 1 and a backward pass 2. A pass stands at its begin. Gradients stand at
// the end of the pass that makes them. Rows stand at the end of the pass that makes them, too, or later, when
// the rank that takes them has a slot for them; that is so at the begin of the pass that takes them at last.
// Where times are equal, transfers stand before passes, gradients before rows, and then stages and
// micro-batches count. That is one order of everything, and the list of a rank is what it has part in, in
// this order. A pass takes time, so that it stands behind the transfers that it needs and before those that
// need it. Whatever is first in this order and has not been done can be done: all its ranks have done all
// that comes before it in their lists. That holds for any number of ranks, stages and micro-batches, and even
// where a rank does one thing after the other and both sides of a transfer wait for each other; devices that
// keep collectives in the order of issue come near that (runtime/nccl/nccl_order.h). In lanes a run waits for
// less, and for nothing that stands behind it.
//
// Why no place is written too early. There are two kinds of slots. The first, `slot`, has what passes alone
// read and write, of one stage in one micro-batch, from the forward to the backward pass; passes are in one
// lane. The second, `rows`, has what transfers touch, from the arrival of the stage's input until the
// gradients of that input have left; its next user waits for that. The gradients of a stage's output come
// into the place of the output itself, and wait until that has left. Gradients that leave from a place beside
// the slots have kLeavingGradients of these.
//
// How long it takes. Where no transfer takes longer than the shortest pass, passes begin when the planner
// says (run_pipeline()); tests hold the two to each other. That is why a rank that takes rows has a slot of
// the second kind more than it has passes in flight (slots_of_rows()): without it, each transfer of the
// steady state would stand between two passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "shared/plan/device.h"
#include "shared/transformer/step_plan.h"

namespace cp {

// One run of a part of the step on a rank.
struct PartRun {
  StepPart part = StepPart::micro_batch;
  int stage = 0;
  std::int64_t micro_batch = 0;  // 0 of what is done once a step
  // Of the activations of this stage and micro-batch: slots of a rank are used again. 0 of what has none.
  int slot = 0, rows = 0;
  // The runs of other lanes that it waits for, by their numbers in the list.
  std::vector<std::size_t> after = {};

  bool operator==(const PartRun&) const = default;
};

struct StepOrder {
  std::vector<PartRun> passes;   // with the transfers between them
  std::vector<PartRun> updates;  // behind all passes: the update of each stage, and before it all reductions
  int slots = 0, row_slots = 0;  // that the passes take
};

// Passes, reductions and updates are in lane 0.
LaneId lane_of(StepPart part);

// How many slots of rows a rank has: as many as it has passes in flight (in_flight()), and one more if it
// takes rows of another rank. The next pass's rows come into it, or the last gradients leave from it, while
// the rank computes.
std::int64_t slots_of_rows(int rank, int ranks, int virtual_stages, std::int64_t micro_batches);
// Whether transfers read or write this buffer of the caller's among the activations: inputs of layers, or
// what stands for them between stages.
bool holds_rows(std::string_view buffer);
// Whether gradients leave a stage from this one, beside the activations.
bool holds_leaving_gradients(std::string_view buffer);

// Of a stage: one is made while the other one leaves.
inline constexpr int kLeavingGradients = 2;

// Of a request whose phase is training and whose layout is legal.
StepOrder step_order(const StepRequest& request, Rank self);

// Proves, of these plans, that all ranks meet in the step and none waits for ever: check_sequences()
// (check_sequences.h) of what each rank runs, with its errors.
using PlanOfRank = std::function<const Plan&(StepPart part, int stage, Rank self, std::int64_t micro_batch)>;
void check_step_order(const StepRequest& request, const PlanOfRank& plans);
// The same of the plans that step_plan() makes.
void check_step_order(const StepRequest& request);

}  // namespace cp
