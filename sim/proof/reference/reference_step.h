// A whole training step on one device in float64: what steps of plans, under whatever layout, are held
// against. It is written apart from plans and kernels (model_pass.h says what layers compute).
//
// The loss is the sum over all labelled tokens of the global batch, divided by their number, which is known
// before the first micro-batch: so the micro-batches' gradients are added up, and none is weighed by its own
// number of labels. Losses of prediction layers are divided by the same number.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shared/transformer/model.h"
#include "sim/proof/reference/matrix64.h"
#include "sim/proof/reference/model_pass.h"
#include "sim/proof/reference/reference_batch.h"
#include "sim/proof/reference/reference_rules.h"
#include "sim/proof/reference/reference_update.h"

namespace cp::sim {

// All three functions throw InvalidInput if the model, the batch or the rules make no sense, if the
// parameters are not those of the model, if no token of the batch has a label, and if OpenBLAS is not found.

struct ReferenceLoss {
  std::int64_t labelled = 0;   // tokens that have a label
  std::vector<double> losses;  // of the model, and of each depth of prediction
  // What gradients are of: the model's loss, and ReferenceRules::prediction_weight times the mean of the
  // others.
  double objective = 0;
  // The model's own loss of each token of the batch; 0 where it has no label.
  std::vector<double> of_rows = {};
  // Of experts by tokens, in all layers; and those of them that were dropped (ReferenceRules::drops).
  std::int64_t choices = 0, dropped = 0;

  double loss() const { return losses.front(); }
};
ReferenceLoss reference_loss(const Transformer& model, const ReferenceRules& rules,
                             const NamedMatrices& parameters, const ReferenceBatch& batch);

struct ReferenceGradients {
  ReferenceLoss loss;
  NamedMatrices gradients;  // with the parameters' names and order
  // ModelPass::loads() of all micro-batches together.
  std::map<std::string, std::vector<double>, std::less<>> loads = {};
  // Of each micro-batch, if the rules keep them.
  std::vector<std::vector<NamedActivation>> activations;
};
ReferenceGradients reference_gradients(const Transformer& model, const ReferenceRules& rules,
                                       const NamedMatrices& parameters, const ReferenceBatch& batch);

struct ReferenceStep {
  ReferenceGradients pass;
  double norm = 0, clip_factor = 1;  // of the gradients, which are those before clipping
  NamedMatrices parameters;          // updated
  OptimizerState state;

  double clipped_norm() const { return norm * clip_factor; }
};
ReferenceStep reference_step(const Transformer& model, const ReferenceRules& rules,
                             const OptimizerRules& optimizer, const NamedMatrices& parameters,
                             const OptimizerState& state, const ReferenceBatch& batch);

}  // namespace cp::sim
