// The gradients of the reference of a step against differences of its loss.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "sim/proof/reference/reference_parameters.h"
#include "sim/proof/reference/reference_step.h"
#include "sim/proof/run/input_values.h"
#include "tests/proof/reference_models.h"
#include "tests/support/any_case.h"

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
  // An expert may be chosen by no token.
  EXPECT_TRUE(size > 0 || what.find(".experts.") != std::string::npos) << what << " has no gradient at all";
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
  std::uint64_t seed = 0;
  for (const auto& [name, matrix] : parameters.all()) {
    sim::NamedMatrices direction;
    direction.add(name, random_like(matrix, ++seed));
    expect_slope(of, parameters, pass.gradients, direction, batch, name);
  }
}

}  // namespace
}  // namespace cp::testing
