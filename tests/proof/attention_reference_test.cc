// Attention in float64 against the definition: triple loops over a mask written here from the words of
// shared/context_parallel/problem.h; and its gradients against differences of its outputs.
#include "sim/proof/run/attention_reference.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/kernels/philox.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/context_parallel/finite_differences.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/attention_definition.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

// May query i see key j?
bool sees(const AttentionProblem& problem, std::int64_t i, std::int64_t j) {
  const std::int64_t p = i + problem.query_offset.value_or(problem.kv_len - problem.q_len);
  if (problem.causal && j > p) return false;
  if (problem.window && j <= p - *problem.window) return false;
  if (problem.window && j >= p + *problem.window) return false;
  if (problem.chunk && std::floor(static_cast<double>(p) / static_cast<double>(*problem.chunk)) !=
                           std::floor(static_cast<double>(j) / static_cast<double>(*problem.chunk)))
    return false;
  if (problem.cu_seqlens.empty()) return true;
  for (std::size_t d = 0; d + 1 < problem.cu_seqlens.size(); ++d) {
    const std::int64_t begin = problem.cu_seqlens[d], end = problem.cu_seqlens[d + 1];
    if (begin <= p && p < end && begin <= j && j < end) return true;
  }
  return false;
}

// [batch, heads, seq, dim] as [batch, seq, heads, dim]; with heads and seq_len exchanged, back.
std::vector<double> exchanged(const std::vector<double>& in, std::int64_t batch, std::int64_t heads,
                              std::int64_t seq_len, std::int64_t dim) {
  std::vector<double> out(in.size());
  std::size_t from = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < seq_len; ++i) {
        for (std::int64_t d = 0; d < dim; ++d)
          out[static_cast<std::size_t>(((b * seq_len + i) * heads + h) * dim + d)] = in[from++];
      }
    }
  }
  return out;
}

struct Everything {
  std::vector<double> out, lse, dq, dk, dv;  // [batch, heads, seq, dim]
  std::vector<double> dsinks;                // [heads]
};

// What dropout makes of a weight, by the generator that the kernels have.
double kept(const AttentionProblem& p, std::uint64_t seed, std::int64_t b, std::int64_t h, std::int64_t i,
            std::int64_t j) {
  const std::uint32_t threshold = dropout_threshold(p.dropout.probability);
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i),
               static_cast<std::uint32_t>(b * p.q_heads + h), static_cast<std::uint32_t>(p.dropout.layer)}},
             seed);
  return words.words[j % 4] < threshold ? 0 : 0x1p32 / (0x1p32 - threshold);
}

Everything by_definition(const sim::AttentionTestData& data) {
  const AttentionProblem& p = data.problem();
  AttentionInputs inputs{{p.batch, p.q_len, p.kv_len, p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim},
                         p.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim))),
                         [&](std::int64_t i, std::int64_t j) { return sees(p, i, j); },
                         exchanged(data.q(), p.batch, p.q_heads, p.q_len, p.head_dim),
                         exchanged(data.k(), p.batch, p.kv_heads, p.kv_len, p.head_dim),
                         exchanged(data.v(), p.batch, p.kv_heads, p.kv_len, p.v_head_dim),
                         p.softcap,
                         data.sinks()};
  if (p.drops()) {
    inputs.kept = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      return kept(p, data.seed(), b, h, i, j);
    };
  }
  const AttentionOutputs forward = reference_forward(inputs);
  const AttentionGradients gradients =
      reference_backward(inputs, exchanged(data.dout(), p.batch, p.q_heads, p.q_len, p.v_head_dim));
  return {exchanged(forward.out, p.batch, p.q_len, p.q_heads, p.v_head_dim),
          forward.lse,
          exchanged(gradients.dq, p.batch, p.q_len, p.q_heads, p.head_dim),
          exchanged(gradients.dk, p.batch, p.kv_len, p.kv_heads, p.head_dim),
          exchanged(gradients.dv, p.batch, p.kv_len, p.kv_heads, p.v_head_dim),
          gradients.dsinks};
}

// The same sums as those of one rank in f32, with roundings 2^-29 times as large.
constexpr double kOfDouble = 0x1p-29;

sim::AttentionTolerances tolerances_of(const sim::AttentionTestData& data) {
  Target target = host_target();
  target.name = "no host";  // its sums, as those compared here, are made term after term
  return sim::attention_tolerances(data, {data.problem(), {0}, Strategy{}, true}, true, target);
}

Bounded bounded(const std::vector<double>& values, const sim::TensorTolerance& tolerance, std::int64_t dim) {
  Bounded result{values, std::vector<double>(values.size())};
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.bounds[i] = kOfDouble * tolerance.at(i / static_cast<std::size_t>(dim), values[i]);
  }
  return result;
}

// Where two computations differ, each within its bound; empty if nowhere.
std::string difference(const char* name, const std::vector<double>& actual,
                       const std::vector<double>& expected, const sim::TensorTolerance& tolerance,
                       std::int64_t dim) {
  const Bounded found = bounded(actual, tolerance, dim);
  if (actual.size() != expected.size()) return str(name, " has ", actual.size(), " elements");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // also -inf
    const double off = std::abs(actual[i] - expected[i]);
    if (off <= 2 * found.bounds[i]) continue;  // false for NaN
    return str(name, "[", i, "] is ", actual[i], ", by definition ", expected[i], ", off by ", off, " where ",
               2 * found.bounds[i], " is allowed");
  }
  return "";
}

// Of each head: what all of its rows add, and each may be off.
Bounded dsinks_of(const sim::AttentionTestData& data, const sim::AttentionTolerances& tolerances) {
  const AttentionProblem& p = data.problem();
  const auto heads = static_cast<std::size_t>(p.sinks ? p.q_heads : 0);
  Bounded dsinks{std::vector<double>(heads), std::vector<double>(heads)};
  for (std::size_t row = 0; row < data.backward().row_dsink.size(); ++row) {
    const std::size_t head = row / static_cast<std::size_t>(p.q_len) % heads;
    dsinks.values[head] += data.backward().row_dsink[row];
    dsinks.bounds[head] += kOfDouble * (std::sqrt(tolerances.row_dsink2[row]) + tolerances.row_dsink[row] +
                                        0x1p-24 * static_cast<double>(p.q_len * p.batch));
  }
  return dsinks;
}

std::string dsinks_difference(const sim::AttentionTestData& data, const std::vector<double>& expected,
                              const sim::AttentionTolerances& tolerances) {
  const Bounded found = dsinks_of(data, tolerances);
  for (std::size_t head = 0; head < expected.size(); ++head) {
    if (std::abs(found.values[head] - expected[head]) <= 2 * found.bounds[head]) continue;
    return str("dsinks[", head, "] is ", found.values[head], ", by definition ", expected[head]);
  }
  return "";
}

std::string difference_from_definition(const sim::AttentionTestData& data) {
  const AttentionProblem& p = data.problem();
  const sim::AttentionTolerances t = tolerances_of(data);
  const Everything expected = by_definition(data);
  return difference("out", data.out(), expected.out, t.out, p.v_head_dim) +
         difference("lse", data.lse(), expected.lse, t.lse, 1) +
         difference("dq", data.dq(), expected.dq, t.dq, p.head_dim) +
         difference("dk", data.dk(), expected.dk, t.dk, p.head_dim) +
         difference("dv", data.dv(), expected.dv, t.dv, p.v_head_dim) +
         dsinks_difference(data, expected.dsinks, t);
}

// Roundings are counted in f32, whatever the generator draws.
AttentionProblem in_f32(AttentionProblem problem) {
  problem.dtype = DType::f32;
  return problem;
}

RC_GTEST_PROP(AttentionReference, EqualsTheDefinition, ()) {
  const AttentionProblem problem = in_f32(*any_problem());
  const sim::AttentionTestData data(problem, pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  RC_ASSERT(difference_from_definition(data) == "");
}

// More queries than a tile has, and more cells.
TEST(AttentionReference, TilesEqualTheDefinition) {
  AttentionProblem problem;
  problem.q_len = 300, problem.kv_len = 5000;
  problem.head_dim = 2, problem.v_head_dim = 1;
  for (const bool causal : {false, true}) {
    problem.causal = causal;
    EXPECT_EQ(difference_from_definition(sim::AttentionTestData(problem, 1)), "");
  }
}

RC_GTEST_PROP(AttentionReference, GradientsAreDifferencesOfTheOutputs, ()) {
  const AttentionProblem problem = in_f32(*any_problem());
  RC_PRE(problem.q_len > 0 && problem.kv_len > 0);
  const sim::AttentionValues values =
      small_inputs(problem, pick("seed", rc::gen::inRange<std::uint64_t>(0, 1000)));
  const sim::AttentionTestData data(problem, values);
  const sim::AttentionTolerances tolerances = tolerances_of(data);
  const auto forward = [&](const sim::AttentionValues& at) {
    const sim::ReferenceForward result =
        sim::reference_forward({problem, at.q, at.k, at.v, at.sinks, data.seed()});
    return bounded(result.out, tolerances.out, problem.v_head_dim);
  };
  std::vector<Input> inputs{Input::q, Input::k, Input::v};
  if (problem.sinks) inputs.push_back(Input::sink);
  for (const Input input : inputs) {
    const Direction direction = *any_direction(problem, input);
    const Difference found = central_difference(problem, values, direction, forward);
    const Difference gradient =
        along(direction, input == Input::q   ? bounded(data.dq(), tolerances.dq, problem.head_dim)
                         : input == Input::k ? bounded(data.dk(), tolerances.dk, problem.head_dim)
                         : input == Input::v ? bounded(data.dv(), tolerances.dv, problem.v_head_dim)
                                             : dsinks_of(data, tolerances));
    RC_LOG() << "difference " << found.value << " +- " << found.bound << ", gradient " << gradient.value
             << " +- " << gradient.bound << "\n";
    RC_ASSERT(std::abs(found.value - gradient.value) <= found.bound + gradient.bound);
  }
}

// Rows before the first key, behind the last document, and in an empty one.
TEST(AttentionReference, RowsWithoutAKeyAreZeroAndTheirLseIsMinusInfinity) {
  AttentionProblem problem;
  problem.q_len = 6, problem.kv_len = 4;
  problem.q_heads = 2;
  problem.head_dim = problem.v_head_dim = 3;
  problem.causal = true;
  problem.cu_seqlens = {0, 0, 2, 3};  // queries stand at -2 .. 3: at 0, 1 and 2 they see keys
  const sim::AttentionTestData data(problem, 1);
  for (std::size_t row = 0; row < 12; ++row) {
    const bool empty = row % 6 < 2 || row % 6 == 5;
    EXPECT_EQ(data.lse()[row] == -kInfinity, empty) << row;
    for (std::size_t e = 3 * row; e < 3 * row + 3; ++e) {
      EXPECT_EQ(data.out()[e] == 0, empty) << row;
      EXPECT_FALSE(std::isnan(data.dq()[e])) << row;
      if (empty) {
        EXPECT_EQ(data.dq()[e], 0) << row;
      }
    }
  }
  for (std::size_t e = 0; e < 3; ++e) {  // of key 3, which is padding
    EXPECT_EQ(data.dk()[9 + e], 0);
    EXPECT_EQ(data.dv()[9 + e], 0);
  }
}

TEST(AttentionReference, OfNothingIsNothing) {
  AttentionProblem problem;
  problem.q_len = 2;
  const sim::AttentionTestData no_keys(problem, 1);
  EXPECT_EQ(no_keys.lse(), std::vector<double>(2, -kInfinity));
  EXPECT_EQ(no_keys.out(), std::vector<double>(128));
  EXPECT_EQ(no_keys.dq(), std::vector<double>(128));
  problem.q_len = 0, problem.kv_len = 2;
  const sim::AttentionTestData no_queries(problem, 1);
  EXPECT_TRUE(no_queries.out().empty());
  EXPECT_EQ(no_queries.dk(), std::vector<double>(128));
  EXPECT_EQ(no_queries.dv(), std::vector<double>(128));
}

}  // namespace
}  // namespace cp::testing
