#include "sim/proof/reference/reference_step.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/reference/reference_parameters.h"

namespace cp::sim {
namespace {

void validate_parameters(const Transformer& model, const NamedMatrices& parameters) {
  const NamedMatrices expected = zero_parameters(model);
  for (const auto& [name, matrix] : expected.all()) {
    const Matrix64& given = parameters.at(name);
    if (given.rows != matrix.rows || given.columns != matrix.columns)
      throw InvalidInput(str(name, " is ", given.rows, " x ", given.columns, ", and '", model.name,
                             "' needs ", matrix.rows, " x ", matrix.columns));
  }
  if (parameters.all().size() != expected.all().size())
    throw InvalidInput(str("there are ", parameters.all().size(), " parameters, and '", model.name, "' has ",
                           expected.all().size(), "; make them with draw_parameters()"));
}

void validate_rotary(const RotaryRules& rotary) {
  if (!(rotary.theta > 0 && rotary.factor > 0 && rotary.low <= rotary.high))
    throw InvalidInput(str("theta=", rotary.theta, " and factor=", rotary.factor,
                           " of rotary positions must be above 0, and low=", rotary.low,
                           " at most high=", rotary.high, "; the usual ones are 10000, 1, 1 and 4"));
  if (rotary.scale == RotaryScale::yarn && !(rotary.theta > 1 && rotary.low > 0 && rotary.original > 0))
    throw InvalidInput(str("theta=", rotary.theta, ", low=", rotary.low, " and original=", rotary.original,
                           " of yarn must be above 1, 0 and 0; the usual ones are 10000, 1 and 4096"));
}

void validate_rules(const Transformer& model, const ReferenceRules& rules) {
  if (rules.micro_batch < 1)
    throw InvalidInput(str("micro_batch=", rules.micro_batch, " must be at least 1"));
  if (!(rules.norm_eps >= 0 && rules.key_norm_eps >= 0 && rules.logit_softcap >= 0))
    throw InvalidInput(str("norm_eps=", rules.norm_eps, ", key_norm_eps=", rules.key_norm_eps,
                           " and logit_softcap=", rules.logit_softcap,
                           " must be 0 or more; the usual ones are 1e-6, 1e-6 and 0, no cap"));
  if (!(rules.logit_scale > 0))
    throw InvalidInput(str("logit_scale=", rules.logit_scale, " must be above 0; the usual one is 1"));
  if (rules.norm_centered && model.qk_norm && model.qk_norm_behind_rotary)
    throw InvalidInput("norm_centered with qk_norm_behind_rotary is not described; leave one out");
  validate_rotary(rules.rotary);
  if (rules.window_rotary) validate_rotary(*rules.window_rotary);
  if (!model.experts) return;
  const RouterRules& router = rules.router;
  const std::int64_t count = model.experts->count;
  if (router.groups < 1 || count % router.groups != 0)
    throw InvalidInput(str("groups=", router.groups, " must divide the ", count, " experts; 1 always does"));
  const std::int64_t open = router.top_groups * (count / router.groups);
  if (router.top_groups < 1 || router.top_groups > router.groups || open < model.experts->top_k)
    throw InvalidInput(str("top_groups=", router.top_groups, " of ", router.groups, " groups leave ", open,
                           " experts to choose ", model.experts->top_k,
                           " from; use 1 to groups, and enough for the choice"));
}

// What a batch is to be computed with. Weights are those of each depth's sum in the objective.
struct Weights {
  double labelled;
  std::vector<double> of_sums;
};
Weights weights_of(const Transformer& model, const ReferenceRules& rules, const ReferenceBatch& batch) {
  const std::int64_t labelled = batch.labelled();
  if (labelled == 0)
    throw InvalidInput("no token of the batch has a label, so that it has no mean loss; label one at least");
  Weights weights{static_cast<double>(labelled), {1 / static_cast<double>(labelled)}};
  const double predictions = static_cast<double>(model.prediction_layers);
  weights.of_sums.resize(1 + idx(model.prediction_layers),
                         rules.prediction_weight / (std::max(1.0, predictions) * weights.labelled));
  return weights;
}

// use(pass) for each micro-batch, behind its forward pass.
template <class Use>
ReferenceLoss for_each_micro_batch(const Transformer& model, const ReferenceRules& rules,
                                   const NamedMatrices& parameters, const ReferenceBatch& batch,
                                   const Use& use) {
  validate_parameters(model, parameters);
  validate_rules(model, rules);
  validate_batch(batch, model.vocab);
  const Weights weights = weights_of(model, rules, batch);
  ReferenceLoss loss{batch.labelled(), std::vector<double>(weights.of_sums.size()), 0, {}};
  for (std::int64_t first = 0; first < batch.sequences(); first += rules.micro_batch) {
    const std::int64_t count = std::min(rules.micro_batch, batch.sequences() - first);
    ModelPass pass(model, rules, parameters, batch.part(first, count), first);
    const std::vector<double> sums = pass.losses();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      loss.losses[i] += sums[i] / weights.labelled;
      loss.objective += sums[i] * weights.of_sums[i];
    }
    const std::vector<double>& of_rows = pass.losses_of_rows();
    loss.of_rows.insert(loss.of_rows.end(), of_rows.begin(), of_rows.end());
    loss.choices += pass.choices(), loss.dropped += pass.dropped();
    use(pass, weights.of_sums);
  }
  return loss;
}

// Toward loads that are all alike.
void move_corrections(double rate, const ReferenceGradients& pass, NamedMatrices& parameters) {
  for (const auto& [name, loads] : pass.loads) {
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    std::vector<double>& correction = parameters.at(name).values;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (loads[i] < mean) correction[i] += rate;
      if (loads[i] > mean) correction[i] -= rate;
    }
  }
}

}  // namespace

ReferenceLoss reference_loss(const Transformer& model, const ReferenceRules& rules,
                             const NamedMatrices& parameters, const ReferenceBatch& batch) {
  return for_each_micro_batch(model, rules, parameters, batch,
                              [](const ModelPass&, const std::vector<double>&) {});
}

ReferenceGradients reference_gradients(const Transformer& model, const ReferenceRules& rules,
                                       const NamedMatrices& parameters, const ReferenceBatch& batch) {
  ReferenceGradients result;
  result.gradients = parameters.zeros();
  result.loss = for_each_micro_batch(model, rules, parameters, batch,
                                     [&](ModelPass& pass, const std::vector<double>& weights) {
                                       pass.backward(weights, result.gradients);
                                       for (const auto& [name, loads] : pass.loads()) {
                                         std::vector<double>& sums = result.loads[name];
                                         sums.resize(loads.size());
                                         for (std::size_t i = 0; i < loads.size(); ++i) sums[i] += loads[i];
                                       }
                                       if (rules.keeps_activations)
                                         result.activations.push_back(pass.activations());
                                     });
  return result;
}

ReferenceStep reference_step(const Transformer& model, const ReferenceRules& rules,
                             const OptimizerRules& optimizer, const NamedMatrices& parameters,
                             const OptimizerState& state, const ReferenceBatch& batch) {
  ReferenceStep step;
  step.pass = reference_gradients(model, rules, parameters, batch);
  step.norm = norm_of(step.pass.gradients);
  step.clip_factor = clip_factor(optimizer, step.norm);
  step.parameters = parameters, step.state = state;
  update(optimizer, step.pass.gradients, step.clip_factor, step.parameters, step.state);
  if (model.experts && model.experts->moves_corrections)
    move_corrections(rules.correction_rate, step.pass, step.parameters);
  return step;
}

}  // namespace cp::sim
