// Trainer: what one rank does in each step of a training, on any device. All ranks make one, of the same
// request, and make the same calls.
//
//   cp::Trainer trainer(request, device, cp::InitialParameters(request.model, seed));
//   for (std::int64_t step = 1; step <= steps; ++step) {
//     const cp::StepSums own = trainer.step({tokens, labels, rate.at(step), step, seed});
//     // the loss is the sum of own.loss over the ranks, divided by own.labelled
//   }
//
// The plans of the step are prepared once and run in each step (shared/plan/prepared_plan.h), those of
// transfers between pipeline stages in lanes of their own, beside the passes (step_order.h). Where documents
// are packed into sequences, which differ from step to step, plans of micro-batches are made and prepared
// anew for each step that has others: a plan says which queries meet which keys, so that nothing that no
// document has is computed or sent. Those of the step before are forgotten. So they are where a training that
// drops weights (Workload::attention_dropout) begins or ends an evaluation, which drops none. Which plans are
// made, and in which order, follows from the documents of the whole batch, which all ranks know: none waits
// for a rank that has a plan already.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/trace.h"
#include "shared/transformer/step_buffers.h"
#include "shared/transformer/step_order.h"

namespace cp {

// What a rank knows of a step.
struct StepSums {
  double loss = 0;            // of the rank's labelled rows; 0 on ranks whose losses another rank has, too
  std::int64_t labelled = 0;  // of the whole batch
  double gradient_norm = 0;   // of all gradients, before clipping; 0 of an evaluation
};

class Trainer {
 public:
  using Documents = std::vector<std::vector<std::int64_t>>;

  // Parameters, and states of the optimizer, begin with these values, which are asked for in the first step.
  // before_use, if there is one, gets each plan before the device prepares it, in the first step and wherever
  // new ones are made: ranks compare them there (contract 2). The device and, where its memory is not
  // the host's, `memory` must outlive this. Throws InvalidInput as step_plan() does.
  Trainer(StepRequest request, Device& device, const StepBuffers::Values& values,
          const std::function<void(const Plan&)>& before_use = {}, DeviceMemory* memory = nullptr);

  // One step, with an update, a collective call. Appends what it issues to the trace, if there is one.
  // `documents`: cu_seqlens of each sequence, in place of those of the workload
  // (Workload::cu_seqlens_of_sequence). Throws what step_plan() and the device throw.
  StepSums step(StepBatch batch, RankTrace* trace = nullptr, Documents documents = {});
  // The loss of a batch, of which nothing is dropped. Gradients are computed and forgotten.
  StepSums evaluate(StepBatch batch, RankTrace* trace = nullptr, Documents documents = {});

  const StepRequest& request() const { return request_; }
  const StepBuffers& buffers() const { return buffers_; }

 private:
  double own_losses() const;
  // Part, stage, and the first micro-batch of those of a step that have its plan; 0 where all have one.
  using Key = std::tuple<StepPart, int, std::int64_t>;

  StepSums micro_batches(StepBatch batch, RankTrace* trace, Documents documents, double dropout);
  void make_plans(Documents documents, double dropout);
  Key key(const PartRun& run) const;
  void run(const std::vector<PartRun>& runs, RankTrace* trace);
  PreparedPlan& prepare(const PartRun& run);

  StepRequest request_;   // with the documents of the step, and what it drops
  const double dropout_;  // what steps of the training do
  Device& device_;
  StepBuffers buffers_;
  bool has_losses_ = false;
  const std::function<void(const Plan&)> before_use_;
  bool has_plans_ = false;
  std::vector<std::int64_t> first_alike_;  // of each micro-batch the first one with the same documents
  std::map<Key, Plan> plans_;
  std::map<Key, std::unique_ptr<PreparedPlan>> prepared_;
  // By part and stage: what is prepared, the last one last.
  std::map<std::pair<StepPart, int>, std::vector<Key>> kept_;
};

}  // namespace cp
