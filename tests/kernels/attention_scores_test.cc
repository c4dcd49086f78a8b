// Softcap, dropout and the gradient of sinks on the host, by the kernels of every instruction set, against
// the definition.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/kernels/philox.h"
#include "shared/kernels/tiled_attention.h"
#include "tests/kernels/attention_memory.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::AttentionInputs;
using testing::AttentionMemory;
using testing::AttentionShape;

constexpr std::uint64_t kSeed = 0x12345600789;  // with bits in both words, and exact in f64

// Rows of a rank that holds two stretches of queries and every third key; batch entries and heads from the
// middle.
AttentionDropout some_rows(const AttentionShape& shape, double probability) {
  const std::int64_t half = shape.q_len / 2;
  return {probability,
          7,
          2,
          5,
          40,
          {{100, half, half, 1}, {3, shape.q_len - half, shape.q_len - half, 1}},
          {{1, 1, 3, shape.kv_len}}};
}

double kept(const AttentionDropout& dropout, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const std::int64_t query = to_global(dropout.queries, i), key = to_global(dropout.keys, j);
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(key / 4), static_cast<std::uint32_t>(query),
               static_cast<std::uint32_t>((dropout.first_batch + b) * dropout.heads + dropout.first_head + h),
               static_cast<std::uint32_t>(dropout.layer)}},
             kSeed);
  return words.words[key % 4] < threshold ? 0 : static_cast<double>(dropout_factor(threshold));
}

struct Rules {
  double softcap, probability;
};

class AttentionScores : public ::testing::TestWithParam<Rules> {
 protected:
  void SetUp() override {
    inputs_.shape = {2, 71, 150, 6, 2, 5, 7};
    inputs_.softmax_scale = 2;
    inputs_.mask = [](std::int64_t i, std::int64_t j) { return j <= i + 79; };
    inputs_.q = testing::small_fractions(inputs_.shape.q_numel(), 1);
    inputs_.k = testing::small_fractions(inputs_.shape.k_numel(), 2);
    inputs_.v = testing::small_fractions(inputs_.shape.v_numel(), 3);
    inputs_.softcap = GetParam().softcap;
    if (GetParam().probability == 0) return;
    dropout_ = some_rows(inputs_.shape, GetParam().probability);
    inputs_.kept = [this](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      return kept(dropout_, b, h, i, j);
    };
  }
  // Gives the kernel what changes its scores. Numbers of the layer and the batch entries are its own, or come
  // in part with the seed.
  template <class Op>
  void set_scores(AttentionMemory& attention, Op& kernel, bool placed) const {
    kernel.softcap = inputs_.softcap, kernel.dropout = dropout_;
    if (GetParam().probability == 0) return;
    std::vector<double> numbers{static_cast<double>(kSeed)};
    if (placed) {
      kernel.dropout.layer -= 4, kernel.dropout.first_batch -= 2;
      numbers.insert(numbers.end(), {4, 2});
    }
    kernel.seed = flat_view(attention.memory.add(DType::i64, numbers), 0, std::ssize(numbers));
  }
  std::vector<MaskSlice> slices() const {
    return {{0, inputs_.shape.q_len, 0, inputs_.shape.kv_len, MaskSlice::Kind::causal, 79, 0}};
  }

  AttentionInputs inputs_;
  AttentionDropout dropout_;
};

// By the kernels of each instruction set, with a seed alone and with numbers behind it.
std::vector<std::pair<const TileKernels*, bool>> all_ways() {
  std::vector<std::pair<const TileKernels*, bool>> ways;
  for (const TileKernels* tiles : tile_kernels()) {
    for (const bool placed : {false, true}) ways.emplace_back(tiles, placed);
  }
  return ways;
}

void expect_all_near(const std::vector<double>& actual, const std::vector<double>& expected,
                     double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
}

// Scores are below 10 and sums of at most 150 weights of 1 together, each off by some ten roundings of 2^-24
// for each unit of the score: 1e-5 is an order of magnitude above, and one weight more or less is 1 / 150.
constexpr double kTolerance = 1e-5;

TEST_P(AttentionScores, ForwardEqualsTheDefinition) {
  const auto expected = testing::reference_forward(inputs_);
  for (const auto& way : all_ways()) {
    const TileKernels* const kernels = way.first;
    const bool placed = way.second;
    AttentionMemory attention(inputs_);
    AttentionForward kernel{attention.q,   attention.k,           attention.v, attention.out,
                            attention.lse, inputs_.softmax_scale, slices()};
    set_scores(attention, kernel, placed);
    attention.memory.with(
        [&](const HostMemory& memory) { run(kernel, memory, 0, all_parts(kernel), *kernels); });
    SCOPED_TRACE(std::string(kernels->name) + (placed ? ", placed" : ""));
    expect_all_near(attention.values(attention.out), expected.out, kTolerance);
    expect_all_near(attention.values(attention.lse), expected.lse, kTolerance);
  }
}

TEST_P(AttentionScores, BackwardEqualsTheDefinition) {
  const auto forward = testing::reference_forward(inputs_);
  const auto dout_values = testing::small_fractions(inputs_.shape.out_numel(), 4);
  const auto expected = testing::reference_backward(inputs_, dout_values);
  for (const auto& way : all_ways()) {
    const TileKernels* const kernels = way.first;
    const bool placed = way.second;
    AttentionMemory attention(inputs_);
    const View out = attention.holding(attention.out, forward.out),
               dout = attention.holding(attention.out, dout_values);
    const View lse = attention.rows(forward.lse), delta = attention.new_rows();
    const View dq = attention.like(attention.q, 0), dk = attention.like(attention.k, 0),
               dv = attention.like(attention.v, 0);
    attention.memory.run(AttentionDelta{out, dout, delta});
    AttentionBackward kernel{attention.q, attention.k, attention.v,           dout,    lse, delta, dq,
                             dk,          dv,          inputs_.softmax_scale, slices()};
    set_scores(attention, kernel, placed);
    attention.memory.with(
        [&](const HostMemory& memory) { run(kernel, memory, 0, all_parts(kernel), *kernels); });
    SCOPED_TRACE(std::string(kernels->name) + (placed ? ", placed" : ""));
    expect_all_near(attention.values(dq), expected.dq, 8 * kTolerance);
    expect_all_near(attention.values(dk), expected.dk, 8 * kTolerance);
    expect_all_near(attention.values(dv), expected.dv, 8 * kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, AttentionScores,
                         ::testing::Values(Rules{0, 0}, Rules{1.5, 0}, Rules{30, 0}, Rules{0, 0.1},
                                           Rules{0, 0.75}, Rules{3, 0.25}),
                         [](const auto& test) {
                           return "cap_" + std::to_string(static_cast<int>(10 * test.param.softcap)) +
                                  "_dropout_" +
                                  std::to_string(static_cast<int>(100 * test.param.probability));
                         });

TEST(AttentionSinkGradient, EqualsTheDefinition) {
  AttentionInputs inputs;
  inputs.shape = {2, 37, 20, 4, 2, 3, 6};
  inputs.mask = [](std::int64_t i, std::int64_t j) { return j <= i - 9; };  // the first rows see nothing
  inputs.q = testing::small_fractions(inputs.shape.q_numel(), 1);
  inputs.k = testing::small_fractions(inputs.shape.k_numel(), 2);
  inputs.v = testing::small_fractions(inputs.shape.v_numel(), 3);
  inputs.sinks = {0.5, -1, 2, 0.25};
  const auto forward = testing::reference_forward(inputs);
  const auto dout_values = testing::small_fractions(inputs.shape.out_numel(), 4);
  const auto expected = testing::reference_backward(inputs, dout_values);
  AttentionMemory attention(inputs);
  const View out = attention.holding(attention.out, forward.out),
             dout = attention.holding(attention.out, dout_values), lse = attention.rows(forward.lse);
  // Every second element: views need not be dense.
  const View sinks{attention.memory.add(DType::f32, {0.5, 99, -1, 99, 2, 99, 0.25, 99}), 0, {4}, {2}, {}},
      dsinks = flat_view(attention.memory.add(DType::f32, {99, 99, 99, 99}), 0, 4);
  attention.memory.run(AttentionSinkGradient{sinks, lse, out, dout, dsinks});
  expect_all_near(attention.values(dsinks), expected.dsinks, kTolerance);
}

}  // namespace
}  // namespace cp
