// Trainer: what one rank does in each step of a training, on any device. All
// ranks make one, of the same request, and make the same calls.
//
//   cp::Trainer trainer(request, device, cp::InitialParameters(request.model, seed));
//   for (std::int64_t step = 1; step <= steps; ++step) {
//     const cp::StepSums own = trainer.step({tokens, labels, rate.at(step), step});
//     // the loss is the sum of own.loss over the ranks, divided by own.labelled
//   }
//
// The plans of the step are prepared once and run in each step (shared/plan/prepared_plan.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
  // Parameters, and states of the optimizer, begin with these values, which are asked for in the first step.
  // before_use, if there is one, gets each
  // plan before the device prepares it: ranks compare them there (contract 2). A collective call. The device
  // and, where its memory is not the host's, `memory` must outlive this. Throws InvalidInput as step_plan()
  // does, and what the device throws.
  Trainer(StepRequest request, Device& device, const StepBuffers::Values& values,
          const std::function<void(const Plan&)>& before_use = {}, DeviceMemory* memory = nullptr);

  // One step, with an update. Appends what it issues to the trace, if there is one.
  StepSums step(StepBatch batch, RankTrace* trace = nullptr);
  // The loss of a batch. Gradients are computed and forgotten.
  StepSums evaluate(StepBatch batch, RankTrace* trace = nullptr);

  const StepRequest& request() const { return request_; }
  const StepBuffers& buffers() const { return buffers_; }

 private:
  double own_losses() const;
  StepSums micro_batches(StepBatch batch, RankTrace* trace);
  void run(const std::vector<PartRun>& runs, RankTrace* trace);

  const StepRequest request_;
  Device& device_;
  StepBuffers buffers_;
  bool has_losses_ = false;
  std::map<std::pair<StepPart, int>, Plan> plans_;  // by part and stage
  std::map<std::pair<StepPart, int>, std::unique_ptr<PreparedPlan>> prepared_;
};

}  // namespace cp
