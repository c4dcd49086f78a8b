// Runs one whole training step of a layout on the simulated fabric, with data, and proves it against one
// device in float64: the loss, the number of labels, every updated parameter, and every state of the
// optimizer. An AdamW that begins with zeros has (1 - beta1) times the clipped gradient as its first moment,
// so that every gradient is proved with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/step_plan.h"
#include "sim/proof/reference/reference_step.h"

namespace cp::sim {

struct StepProofOptions {
  std::uint64_t seed = 0;          // of parameters and of the batch
  double ignored = 0.1;            // the share of labels that are ignored
  std::int64_t without_label = 1;  // so many sequences have none, if there are more
  double learning_rate = 1e-3;
  std::function<void(std::string_view)> on_phase;
};

// A tensor in one role, on all ranks that own elements of it.
struct TensorProof {
  std::string tensor, role;           // "parameter", "first moment"
  double error = 0, allowed = 0;      // the largest error, and what is allowed of it
  double allowed_root = 0;            // of the root mean square of errors
  std::string finding;                // empty if it holds
  bool differs_beside_scale = false;  // of a first moment: in more than StepProof::gradient_scale
  bool holds() const { return finding.empty(); }
};

struct StepProof {
  std::int64_t labelled = 0;
  double loss = 0, expected_loss = 0, allowed_loss = 0;
  // The median, over the tensors, of how many times as large their gradients are as they should be.
  double gradient_scale = 1;
  std::vector<TensorProof> tensors;  // in the order of the reference's parameters
  double plan_s = 0, reference_s = 0, run_s = 0;

  bool loss_holds() const;
  bool holds() const;
  // In words what differs first: the loss, or the first tensor in the order of the model.
  std::string finding() const;
};

// What the plans' kernels compute, said for the reference.
ReferenceRules reference_rules(const Transformer& model);
OptimizerRules optimizer_rules(const Workload& workload, double learning_rate);

// Throws InvalidInput for a step that is not of training, or that hosts cannot run whole: layers with a
// recurrence. It does not check whether the layout is legal.
void require_provable(const StepRequest& request);

// Throws InvalidInput for a layout that is refused, a phase that is not training, and a model with layers
// that no host kernel computes; and what the fabric throws.
StepProof prove_step(const StepRequest& request, const StepProofOptions& options = {});
// The same with given plans, for tests that plant a defect: plans(part, stage) gives those of all ranks that
// hold the stage.
using StepPlans = std::function<std::vector<Plan>(StepPart part, int stage)>;
StepProof prove_step(const StepRequest& request, const StepPlans& plans, const StepProofOptions& options);

}  // namespace cp::sim
