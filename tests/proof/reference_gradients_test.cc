// The gradients of the reference of a step against differences of its loss.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/planner/models/read_model.h"
#include "sim/proof/reference/reference_parameters.h"
#include "sim/proof/reference/reference_step.h"
#include "sim/proof/run/input_values.h"
#include "tests/proof/reference_models.h"

namespace cp::testing {
namespace {

// The slope of the objective along a direction, by the difference of fourth order
//   (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h
// whose error is h^4/30 of the fifth derivative, and what rounds the losses, divided by h. Losses of about 3
// are sums of some thousand terms, with errors of some 1e-15: so h = 1e-5 leaves 1e-9. It also keeps h^4 far
// below that where a norm divides by rows of 0.01 to 0.1, whose fifth derivative is up to 1e10.
double slope(const ReferenceCase& of, const sim::NamedMatrices& parameters,
             const sim::NamedMatrices& direction, const sim::ReferenceBatch& batch) {
  constexpr double kStep = 1e-5;
  const auto at = [&](double t) {
    sim::NamedMatrices moved = parameters;
    for (const auto& [name, way] : direction.all()) {
      std::vector<double>& values = moved.at(name).values;
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += t * kStep * way.values[i];
    }
    return sim::reference_loss(of.model, of.rules, moved, batch).objective;
  };
  return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
}

// Along a direction with random numbers in the place of each element, so that the gradient of each counts.
void expect_slope(const ReferenceCase& of, const sim::NamedMatrices& parameters,
                  const sim::NamedMatrices& gradients, const sim::NamedMatrices& direction,
                  const sim::ReferenceBatch& batch, const std::string& what) {
  double expected = 0, size = 0;
  for (const auto& [name, way] : direction.all()) {
    const std::vector<double>& gradient = gradients.at(name).values;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      expected += gradient[i] * way.values[i];
      size += std::abs(gradient[i] * way.values[i]);
    }
  }
  EXPECT_GT(size, 0) << what << " has no gradient at all";
  EXPECT_NEAR(slope(of, parameters, direction, batch), expected, 1e-8 * (1 + size)) << what;
}

sim::Matrix64 random_like(const sim::Matrix64& matrix, std::uint64_t seed) {
  sim::Matrix64 random(matrix.rows, matrix.columns);
  random.values = sim::random_values(matrix.rows * matrix.columns, seed);
  return random;
}

class EachReferenceCase : public ::testing::TestWithParam<ReferenceCase> {};
INSTANTIATE_TEST_SUITE_P(ReferenceGradients, EachReferenceCase, ::testing::ValuesIn(reference_cases()),
                         [](const auto& of) { return str(of.index); });

TEST_P(EachReferenceCase, EveryParametersGradientIsTheSlopeOfTheLoss) {
  const ReferenceCase& of = GetParam();
  SCOPED_TRACE(of.name);
  const sim::NamedMatrices parameters = sim::draw_parameters(of.model, 3);
  const sim::ReferenceBatch batch = tiny_batch(of.model);
  const sim::ReferenceGradients pass = sim::reference_gradients(of.model, of.rules, parameters, batch);
  // Each by itself, and all experts of a layer together: one of them may be chosen by no token.
  std::uint64_t seed = 0;
  std::map<std::string, sim::NamedMatrices> directions;
  for (const auto& [name, matrix] : parameters.all()) {
    if (sim::is_trained(name))
      directions[name.substr(0, name.find(".experts."))].add(name, random_like(matrix, ++seed));
    else
      EXPECT_EQ(pass.gradients.at(name), sim::Matrix64(matrix.rows, matrix.columns)) << name;
  }
  for (const auto& [what, direction] : directions)
    expect_slope(of, parameters, pass.gradients, direction, batch, what);
}

// A preset with each kind of its layers once, and with small sizes in the place of its own.
ReferenceCase scaled_down(const std::string& preset) {
  ReferenceCase of{preset, sim::find_model(preset).model, {}};
  Transformer& model = of.model;
  const Transformer tiny = tiny_model();
  model.hidden = tiny.hidden, model.vocab = tiny.vocab, model.intermediate = tiny.intermediate;
  model.head_dim = tiny.head_dim;
  model.kv_heads = model.kv_heads == model.q_heads ? tiny.q_heads : tiny.kv_heads;
  model.q_heads = tiny.q_heads;
  if (model.latent) model.latent = Latent{model.latent->q_rank > 0 ? 5 : 0, 7, 2, 3};
  if (model.experts) {
    const std::int64_t top_k = std::min<std::int64_t>(2, model.experts->top_k);
    const Experts& all = *model.experts;
    model.experts =
        Experts{4, top_k, 5, all.shared > 0 ? 6 : 0, all.shared_gate, all.biases, all.corrects_scores};
    model.numerics.router.groups = model.numerics.router.top_groups = 1;  // which the rules have, too
    of.rules.router.normalized = top_k > 1;  // of one weight nothing would be left to learn
  }
  if (model.recurrence) {
    Recurrence& r = *model.recurrence;
    r.key_heads = 2, r.value_heads = 4, r.key_dim = 3, r.value_dim = 5;
  }
  std::vector<LayerKind> layers = model.kinds;
  for (LayerKind& kind : layers) {
    if (kind.window) kind.window = 3;
    if (kind.chunk) kind.chunk = 4;
  }
  model.layers = std::ssize(layers);
  set_layers(model, layers);
  of.rules.micro_batch = 3;
  of.rules.activation = sim::MlpActivation::silu;  // max(x, 0)^2 has no third derivative at 0
  return of;
}

TEST(ReferenceGradients, OfEveryPresetAreTheSlopeOfTheLoss) {
  for (const std::string& preset : sim::model_names()) {
    SCOPED_TRACE(preset);
    const ReferenceCase of = scaled_down(preset);
    const sim::NamedMatrices parameters = sim::draw_parameters(of.model, 3);
    const sim::ReferenceBatch batch = tiny_batch(of.model);
    const sim::ReferenceGradients pass = sim::reference_gradients(of.model, of.rules, parameters, batch);
    sim::NamedMatrices direction;
    for (const auto& [name, matrix] : parameters.all())
      direction.add(name, random_like(matrix, 1 + std::size(direction.all())));
    expect_slope(of, parameters, pass.gradients, direction, batch, "all parameters together");
  }
}

}  // namespace
}  // namespace cp::testing
