// Recurrent layers in float64 against a second definition, as products of matrices, and their gradients
// against differences of the outputs; and what test data are drawn.
#include "sim/proof/run/recurrence_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/run/input_values.h"
#include "sim/proof/run/recurrence_test_data.h"
#include "tests/recurrence/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

std::size_t at(std::int64_t number) { return static_cast<std::size_t>(number); }

// A [dim, dim] matrix, row-major.
using Square = std::vector<double>;

// What a row of a head makes of a state, as a matrix on its left: the words of RecurrenceRule.
Square transition(const RecurrenceProblem& p, const double* k, double log_decay, double beta) {
  Square matrix(at(p.key_dim * p.key_dim));
  for (std::int64_t i = 0; i < p.key_dim; ++i) {
    for (std::int64_t j = 0; j < p.key_dim; ++j) {
      const double erased = p.rule == RecurrenceRule::delta ? beta * k[i] * k[j] : 0;
      matrix[at(i * p.key_dim + j)] = std::exp(log_decay) * ((i == j ? 1 : 0) - erased);
    }
  }
  return matrix;
}

// x becomes x^T matrix.
void multiply(std::vector<double>& x, const Square& matrix) {
  std::vector<double> product(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) product[j] += x[i] * matrix[i * x.size() + j];
  }
  x = product;
}

// Whether a document begins at one of the rows first + 1 .. last.
bool parts(const RecurrenceProblem& p, std::int64_t first, std::int64_t last) {
  return std::any_of(p.cu_seqlens.begin(), p.cu_seqlens.end(),
                     [&](std::int64_t begin) { return first < begin && begin <= last; });
}

// out of row t is the sum over the rows s before it and itself of scale (q_t^T A_t ... A_{s+1} k_s) beta_s
// v_s, with the transitions A: there is no state in it.
std::vector<double> by_matrices(const sim::RecurrenceTestData& data) {
  const RecurrenceProblem& p = data.problem();
  std::vector<double> out(data.v().size());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.value_heads; ++h) {
      const std::int64_t key_head = h / (p.value_heads / p.key_heads);
      const auto key_row = [&](std::int64_t t) {
        return at(((b * p.seq_len + t) * p.key_heads + key_head) * p.key_dim);
      };
      const auto number = [&](std::int64_t t) { return at((b * p.seq_len + t) * p.value_heads + h); };
      for (std::int64_t t = 0; t < p.seq_len; ++t) {
        std::vector<double> x(data.q().begin() + static_cast<std::ptrdiff_t>(key_row(t)),
                              data.q().begin() + static_cast<std::ptrdiff_t>(key_row(t)) + p.key_dim);
        for (std::int64_t s = t; s >= 0 && !parts(p, s, t); --s) {
          const double* const k = data.k().data() + key_row(s);
          double weight = 0;
          for (std::int64_t i = 0; i < p.key_dim; ++i) weight += x[at(i)] * k[i];
          weight *= p.output_scale() * data.beta()[number(s)];
          for (std::int64_t j = 0; j < p.value_dim; ++j)
            out[number(t) * at(p.value_dim) + at(j)] +=
                weight * data.v()[number(s) * at(p.value_dim) + at(j)];
          multiply(x, transition(p, k, data.log_decay()[number(s)], data.beta()[number(s)]));
        }
      }
    }
  }
  return out;
}

double largest_size(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

RC_GTEST_PROP(RecurrenceReference, EqualsSumsOverAllEarlierRows, ()) {
  const sim::RecurrenceTestData data(any_recurrence(), pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  const std::vector<double> expected = by_matrices(data);
  RC_ASSERT(data.out().size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    RC_ASSERT(std::abs(data.out()[i] - expected[i]) <= 1e-12 * (1 + largest_size(expected)));
}

using Tensor64 = std::vector<double> sim::RecurrenceValues::*;

double loss(const RecurrenceProblem& problem, const sim::RecurrenceValues& values) {
  const std::vector<double> out =
      sim::reference_recurrence({problem, values.q, values.k, values.v, values.log_decay, values.beta}).out;
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * values.dout[i];
  return sum;
}

// Each element of each gradient is a difference of the loss <out, dout>, in float64: the central one is off
// by a sixth of the square of the step times the third derivative, and by the rounding of two losses over two
// steps. Both are about 1e-10 of sizes near 1.
void expect_differences(const RecurrenceProblem& problem) {
  const sim::RecurrenceValues values = sim::RecurrenceTestData(problem, 1).inputs();
  const sim::RecurrenceGradients gradients = sim::reference_recurrence_gradients(
      {problem, values.q, values.k, values.v, values.log_decay, values.beta}, values.dout);
  struct Case {
    const char* name;
    Tensor64 input;
    const std::vector<double>& gradient;
  };
  const Case cases[] = {{"q", &sim::RecurrenceValues::q, gradients.dq},
                        {"k", &sim::RecurrenceValues::k, gradients.dk},
                        {"v", &sim::RecurrenceValues::v, gradients.dv},
                        {"log_decay", &sim::RecurrenceValues::log_decay, gradients.dlog_decay},
                        {"beta", &sim::RecurrenceValues::beta, gradients.dbeta}};
  constexpr double kStep = 0x1p-15;
  for (const Case& c : cases) {
    ASSERT_EQ(c.gradient.size(), (values.*c.input).size()) << c.name;
    for (std::size_t i = 0; i < c.gradient.size(); ++i) {
      sim::RecurrenceValues after = values, before = values;
      (after.*c.input)[i] += kStep, (before.*c.input)[i] -= kStep;
      const double difference = (loss(problem, after) - loss(problem, before)) / (2 * kStep);
      ASSERT_NEAR(c.gradient[i], difference, 1e-7 * (1 + std::abs(difference)))
          << c.name << "[" << i << "], " << name(problem.rule);
    }
  }
}

TEST(RecurrenceReference, GradientsAreDifferencesOfTheOutputs) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    RecurrenceProblem problem;
    problem.rule = rule;
    problem.seq_len = 11;
    problem.key_heads = 2, problem.value_heads = 4;
    problem.key_dim = 3, problem.value_dim = 5;
    expect_differences(problem);
    problem.cu_seqlens = {0, 1, 4, 4, 11};  // within blocks of four rows, and at the begin of one
    problem.batch = 2, problem.key_heads = 1, problem.value_heads = 2;
    problem.key_dim = 5, problem.value_dim = 2, problem.scale = -1.5;
    expect_differences(problem);
    problem.seq_len = 1, problem.cu_seqlens = {};
    problem.key_dim = problem.value_dim = 1;
    expect_differences(problem);
  }
}

// What bounds errors.
RC_GTEST_PROP(RecurrenceReference, NormsAreThoseOfWhatTheRowsMake, ()) {
  RecurrenceProblem problem = any_recurrence();
  problem.key_dim = 1;  // a column is a number, which out and dv show
  problem.scale = 1;
  const sim::RecurrenceTestData data(problem, pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  const std::int64_t each = problem.value_heads / problem.key_heads;
  for (std::size_t i = 0; i < data.out().size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / problem.value_dim;
    const std::size_t key = at(row / each);
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-12 * (1 + std::abs(b)); };
    RC_ASSERT(near(std::abs(data.q()[key]) * data.forward().state_norms[i], std::abs(data.out()[i])));
    RC_ASSERT(near(data.beta()[at(row)] * data.backward().dwritten[i], data.dv()[i]));
    RC_ASSERT(near(std::abs(data.k()[key]) * data.backward().dstate_norms[i],
                   std::abs(data.backward().dwritten[i])));
  }
}

// ---- test data ----

RecurrenceProblem long_problem(RecurrenceRule rule, DType dtype) {
  RecurrenceProblem problem;
  problem.rule = rule, problem.dtype = dtype;
  problem.seq_len = 500;
  problem.key_heads = 1, problem.value_heads = 2;
  problem.key_dim = 16, problem.value_dim = 8;
  return problem;
}

TEST(RecurrenceTestData, HasTheSizesThatItSays) {
  const RecurrenceProblem problem = long_problem(RecurrenceRule::delta, DType::f32);
  const sim::RecurrenceTestData data(problem, 7);
  const auto mean_square = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return sum / static_cast<double>(values.size());
  };
  for (const std::vector<double>* tensor : {&data.q(), &data.v(), &data.dout()})
    EXPECT_NEAR(mean_square(*tensor), 1, 0.1);
  EXPECT_NEAR(mean_square(data.k()) * 16, 1, 0.1);
  for (const double decay : data.log_decay()) EXPECT_TRUE(decay <= 0 && decay >= -4.0 / 500) << decay;
  for (const double beta : data.beta()) EXPECT_TRUE(beta > 0 && beta <= 4 * 16.0 / 500) << beta;
  EXPECT_EQ(sim::RecurrenceTestData(problem, 7).k(), data.k());
  EXPECT_NE(sim::RecurrenceTestData(problem, 8).k(), data.k());
}

// Twice as much of what the first row writes, and half of the loss at the last: both show at the other end.
TEST(RecurrenceTestData, LetsTheFirstRowBeSeenAtTheEnd) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    const sim::RecurrenceTestData data(long_problem(rule, DType::f32), 1);
    sim::RecurrenceValues changed = data.inputs();
    for (std::size_t i = 0; i < 16; ++i) changed.v[i] *= 2, changed.dout[changed.dout.size() - 1 - i] *= 2;
    const sim::RecurrenceTestData other(data.problem(), changed);
    double out = 0, dv = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t last = data.out().size() - 1 - i;
      out = std::max(out, std::abs(other.out()[last] - data.out()[last]));
      dv = std::max(dv, std::abs(other.dv()[i] - data.dv()[i]));
    }
    EXPECT_GT(out, 1e-4 * largest_size(data.out())) << name(rule);
    EXPECT_GT(dv, 1e-4 * largest_size(data.dv())) << name(rule);
  }
}

TEST(RecurrenceTestData, RoundsToTheDtype) {
  const sim::RecurrenceTestData data(long_problem(RecurrenceRule::delta, DType::bf16), 1);
  for (const std::vector<double>* tensor : {&data.q(), &data.k(), &data.v(), &data.dout()}) {
    for (const double value : *tensor) {
      int exponent = 0;
      const double scaled = std::frexp(value, &exponent) * 256;  // bf16 has 8 bits
      ASSERT_EQ(scaled, std::floor(scaled));
    }
  }
  for (const std::vector<double>* tensor : {&data.log_decay(), &data.beta()}) {
    for (const double value : *tensor) ASSERT_EQ(value, static_cast<double>(static_cast<float>(value)));
  }
}

TEST(RecurrenceTestData, RefusesATensorOfAnotherSize) {
  const RecurrenceProblem problem = long_problem(RecurrenceRule::decay, DType::f32);
  sim::RecurrenceValues values = sim::RecurrenceTestData(problem, 1).inputs();
  values.beta.pop_back();
  EXPECT_THROW(sim::RecurrenceTestData(problem, values), InvalidInput);
}

}  // namespace
}  // namespace cp::testing
