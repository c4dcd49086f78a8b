// Runs one whole training step of a layout on the simulated fabric, with data, and proves it against one
// device in float64: the loss and that of each row, the norm of all gradients, every updated parameter, and
// every state of the optimizer. An AdamW that begins with zeros has (1 - beta1) times the clipped gradient as
// its first moment, so that every gradient is proved with it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/step_buffers.h"
#include "shared/transformer/step_plan.h"
#include "sim/proof/reference/reference_step.h"
#include "sim/proof/run/error_sizes.h"

namespace cp::sim {

struct StepProofOptions {
  std::uint64_t seed = 0;          // of parameters and of the batch
  double ignored = 0.1;            // the share of labels that are ignored
  std::int64_t without_label = 1;  // so many sequences have none, if there are more
  double learning_rate = 1e-3;
  double correction_rate = 1e-2;  // of routers' scores, in models that move them
  // How many times as much as roundings have moved the reference a result may be off (step_tolerance.h).
  double growth = kGrowth;
  std::function<void(std::string_view)> on_phase;
  // For tests that plant a defect in what a rank is given: may change the bytes of an input of a micro-batch
  // (step_plan.h) before the step runs.
  std::function<void(Rank, const Buffer&, std::span<std::byte>)> on_input;
};

// A tensor in one role, on all ranks that own elements of it.
struct TensorProof {
  std::string tensor, role;       // "parameter", "first moment"
  double error = 0, allowed = 0;  // the largest error, and what is allowed of it
  double allowed_root = 0;        // of the root mean square of errors
  std::string finding;            // empty if it holds
  bool moved_away = false;        // the finding is that roundings move it by its own size
  // Of a first moment, if it is multiplied with what the rank's norm should have clipped it by, and with what
  // it did.
  bool differs_unclipped = false;
  bool differs_beside_scale = false;  // then in more than StepProof::gradient_scale
  bool holds() const { return finding.empty(); }
};

// A row of the global batch whose loss is another one than on one device.
struct RowProof {
  std::int64_t sequence = 0, row = 0;
  double loss = 0, expected = 0;
  bool ends_shard = false;  // the next row is on another rank
  Rank rank = -1;
};

struct StepProof {
  std::int64_t labelled = 0;
  // Of experts by tokens, in all layers; and those of them that the layout drops (dropped_tokens.h).
  std::int64_t choices = 0, dropped = 0;
  double loss = 0, expected_loss = 0, allowed_loss = 0;
  // Of one row's loss; and those that lose another one, by sequence and row.
  double allowed_row = 0;
  std::vector<RowProof> wrong_rows;
  // The norm of all gradients before they are clipped: the least and the largest that a rank has.
  double least_norm = 0, largest_norm = 0, expected_norm = 0, allowed_norm = 0;
  // The median, over the tensors, of how many times as large their gradients are as they should be, before
  // they are clipped.
  double gradient_scale = 1;
  std::vector<TensorProof> tensors;  // in the order of the reference's parameters
  double plan_s = 0, reference_s = 0, run_s = 0;

  bool loss_holds() const;  // the mean, and that of each row
  bool norm_holds() const;
  bool holds() const;
  // Whether it does not hold, and nothing differs but tensors of whose gradients roundings leave nothing that
  // could be known, and what the optimizer makes of these.
  bool is_unknown() const;
  // In words what differs first: the loss, a gradient of the first tensor in the order of the model, all
  // gradients by a factor, the norm, or a parameter or state.
  std::string finding() const;
};

// What a layout does wrong it does with all data. A choice of a router that hangs on a rounding, or a
// gradient that roundings turn around, comes with some data alone, and what it makes is as large as a
// defect's. So the next seed is taken, of so many: by `cpsim prove` for a step that is_unknown(), by the
// fuzzer for any that does not hold. Chosen: where one case in a thousand has such data, three in a row have
// them once in 1e9.
inline constexpr std::uint64_t kProofSeeds = 3;

// Values of StepBuffers: parameters as the reference has them, and states of zeros.
StepBuffers::Values values_of(const NamedMatrices& parameters);  // which must outlive it

// What the plans' kernels compute, said for the reference.
ReferenceRules reference_rules(const Transformer& model);
// The same, with what the layout drops of experts' tokens.
ReferenceRules reference_rules(const StepRequest& request);
OptimizerRules optimizer_rules(const Workload& workload, double learning_rate);

// Throws InvalidInput for a step that is not of training. It does not check whether the layout is legal.
void require_provable(const StepRequest& request);

// Throws InvalidInput for a layout that is refused and a phase that is not training; and what the fabric
// throws.
StepProof prove_step(const StepRequest& request, const StepProofOptions& options = {});
// The same with given plans, for tests that plant a defect: plans(part, stage) gives those of all ranks that
// hold the stage.
// Those of micro-batches where sequences have documents of their own.
using StepPlans = std::function<std::vector<Plan>(StepPart part, int stage, std::int64_t micro_batch)>;
StepProof prove_step(const StepRequest& request, const StepPlans& plans, const StepProofOptions& options);

}  // namespace cp::sim
