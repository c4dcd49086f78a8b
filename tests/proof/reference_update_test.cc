// The optimizers of the reference of a step, against numbers that are worked out here.
#include "sim/proof/reference/reference_update.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

sim::NamedMatrices named(const std::vector<double>& values) {
  sim::Matrix64 matrix(1, static_cast<std::int64_t>(values.size()));
  matrix.values = values;
  sim::NamedMatrices all;
  all.add("theta", matrix);
  return all;
}

sim::OptimizerRules rules_of(const char* optimizer) {
  sim::OptimizerRules rules;
  rules.optimizer = parse_optimizer(optimizer);
  rules.learning_rate = 0.5, rules.weight_decay = 0.25, rules.clip_norm.reset();
  return rules;
}

// theta = 2, lr = 1/2, decay = 1/4, b1 = 1/2, b2 = 3/4, eps = 1/4.
// Step 1, g = 4:  m = 2, v = 4; corrected 2 / (1/2) = 4 and 4 / (1/4) = 16, so that the update is
//                 1/2 x 4 / (4 + 1/4) = 8/17, and theta = 2 x (1 - 1/8) - 8/17 = 7/4 - 8/17.
// Step 2, g = 0:  m = 1, v = 3; corrected 1 / (3/4) = 4/3 and 3 / (7/16) = 48/7.
TEST(ReferenceUpdate, AdamWCorrectsItsMomentsAndDecaysApart) {
  sim::OptimizerRules rules = rules_of("adamw");
  rules.beta1 = 0.5, rules.beta2 = 0.75, rules.eps = 0.25;
  sim::NamedMatrices theta = named({2});
  sim::OptimizerState state = sim::begin_optimizer(rules.optimizer, theta);
  sim::update(rules, named({4}), 1, theta, state);
  const double first = 7.0 / 4 - 8.0 / 17;
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], first);
  EXPECT_DOUBLE_EQ(state.first.at("theta").values[0], 2);
  EXPECT_DOUBLE_EQ(state.second.at("theta").values[0], 4);
  sim::update(rules, named({0}), 1, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0],
                   first * 7 / 8 - 0.5 * (4.0 / 3) / (std::sqrt(48.0 / 7) + 0.25));
  EXPECT_EQ(state.steps, 2);
}

// theta = 2, lr = 1/2, decay = 1/4. Step 1: g = 4 + 1/2, theta = 2 - 9/4 = -1/4.
// Step 2, gradient 1: g = 1 - 1/16 = 15/16; with momentum 1/2 it is 15/16 + 9/4 = 51/16.
TEST(ReferenceUpdate, SgdAddsItsDecayToTheGradient) {
  sim::OptimizerRules rules = rules_of("sgd");
  sim::NamedMatrices theta = named({2});
  sim::OptimizerState state = sim::begin_optimizer(rules.optimizer, theta);
  sim::update(rules, named({4}), 1, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], -0.25);
  sim::update(rules, named({1}), 1, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], -0.25 - 15.0 / 32);
  EXPECT_EQ(state.first.numel(), 0);
}

TEST(ReferenceUpdate, MomentumAddsUpGradients) {
  sim::OptimizerRules rules = rules_of("sgd_momentum");
  rules.momentum = 0.5;
  sim::NamedMatrices theta = named({2});
  sim::OptimizerState state = sim::begin_optimizer(rules.optimizer, theta);
  sim::update(rules, named({4}), 1, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], -0.25);
  sim::update(rules, named({1}), 1, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], -0.25 - 51.0 / 32);
  EXPECT_DOUBLE_EQ(state.first.at("theta").values[0], 51.0 / 16);
  EXPECT_EQ(state.second.numel(), 0);
}

// 3, 4 and 12 have the norm 13.
TEST(ReferenceUpdate, ClipsAllGradientsTogether) {
  sim::NamedMatrices gradients = named({3, 4});
  sim::Matrix64 more(1, 1);
  more.values = {-12};
  gradients.add("more", more);
  sim::OptimizerRules rules = rules_of("sgd");
  EXPECT_DOUBLE_EQ(sim::norm_of(gradients), 13);
  EXPECT_EQ(sim::clip_factor(rules, 13), 1);
  rules.clip_norm = 20;
  EXPECT_EQ(sim::clip_factor(rules, 13), 1);
  rules.clip_norm = 6.5;
  EXPECT_DOUBLE_EQ(sim::clip_factor(rules, 13), 6.5 / (13 + 1e-6));
  rules.weight_decay = 0;
  sim::NamedMatrices theta = named({2, 2});
  sim::OptimizerState state = sim::begin_optimizer(rules.optimizer, theta);
  sim::update(rules, named({3, 4}), 0.5, theta, state);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[0], 2 - 0.5 * 1.5);
  EXPECT_DOUBLE_EQ(theta.at("theta").values[1], 2 - 0.5 * 2);
}

TEST(ReferenceUpdate, RefusesTheStateOfOthers) {
  sim::NamedMatrices theta = named({2});
  sim::OptimizerState state;
  EXPECT_THAT(message_of<InvalidInput>([&] { sim::update(rules_of("adamw"), named({4}), 1, theta, state); }),
              HasSubstr("the state of adamw has 0 elements where there are 1 parameters"));
}

}  // namespace
}  // namespace cp::testing
