#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/kernels/attention_memory.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/support/attention_definition.h"

namespace cp {
namespace {

using testing::AttentionInputs;
using testing::AttentionShape;
using testing::expect_near;
using testing::KernelMemory;
using testing::kInfinity;

struct Case {
  std::string name;
  AttentionShape shape;
  std::vector<MaskSlice> slices;
};

using Kind = MaskSlice::Kind;

std::vector<Case> cases() {
  const AttentionShape small{2, 5, 7, 2, 2, 4, 4}, grouped{1, 6, 6, 6, 2, 3, 5}, one{1, 1, 1, 1, 1, 1, 1};
  return {
      {"full", small, {{0, 5, 0, 7, Kind::full, 0, 0}}},
      {"causal_bottom_right", small, {{0, 5, 0, 7, Kind::causal, 2, 0}}},
      {"causal_with_empty_rows", small, {{0, 5, 0, 7, Kind::causal, -2, 0}}},
      {"window", grouped, {{0, 6, 0, 6, Kind::window, 0, 2}}},
      {"window_reaching_ahead", grouped, {{0, 6, 0, 6, Kind::window, 2, 3}}},
      {"two_documents", grouped, {{0, 2, 0, 2, Kind::causal, 0, 0}, {2, 4, 2, 4, Kind::causal, 0, 0}}},
      {"two_slices_in_a_row", grouped, {{1, 4, 0, 2, Kind::full, 0, 0}, {1, 4, 3, 3, Kind::causal, 1, 0}}},
      {"no_slices", small, {}},
      {"empty_slice", small, {{0, 5, 3, 0, Kind::full, 0, 0}}},
      {"one", one, {{0, 1, 0, 1, Kind::full, 0, 0}}}};
}

AttentionInputs case_inputs(const Case& test_case) {
  const AttentionShape& shape = test_case.shape;
  return {shape,
          0.5,
          [slices = test_case.slices](std::int64_t q, std::int64_t k) {
            return std::any_of(slices.begin(), slices.end(),
                               [&](const MaskSlice& slice) { return allows(slice, q, k); });
          },
          testing::small_fractions(shape.q_numel(), 1),
          testing::small_fractions(shape.k_numel(), 2),
          testing::small_fractions(shape.v_numel(), 3)};
}

// Dense [batch, seq, heads, dim].
View bshd(BufferId buffer, std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t dim) {
  return dense_view(buffer, 0, {batch, seq, heads, dim});
}

// The buffers of one attention, and views of them.
struct Attention {
  Attention(const AttentionInputs& inputs, DType dtype)
      : shape(inputs.shape),
        q(bshd(memory.add(dtype, inputs.q), shape.batch, shape.q_len, shape.q_heads, shape.head_dim)),
        k(bshd(memory.add(dtype, inputs.k), shape.batch, shape.kv_len, shape.kv_heads, shape.head_dim)),
        v(bshd(memory.add(dtype, inputs.v), shape.batch, shape.kv_len, shape.kv_heads, shape.v_head_dim)),
        out(new_out()),
        lse(new_lse()) {}

  View new_out(DType dtype = DType::f32) {
    const std::vector<double> values(static_cast<std::size_t>(shape.out_numel()), 99);
    return bshd(memory.add(dtype, values), shape.batch, shape.q_len, shape.q_heads, shape.v_head_dim);
  }
  View new_lse() {
    const std::vector<double> values(static_cast<std::size_t>(shape.lse_numel()), 99);
    return dense_view(memory.add(DType::f32, values), 0, {shape.batch, shape.q_heads, shape.q_len});
  }
  View like(const View& view, double value = 99) {
    return dense_view(
        memory.add(DType::f32, std::vector<double>(static_cast<std::size_t>(view.numel()), value)), 0,
        view.shape);
  }
  View holding(const View& view, const std::vector<double>& values) {
    return dense_view(memory.add(DType::f32, values), 0, view.shape);
  }
  std::vector<double> values(const View& view) const { return memory.values(view.buffer); }

  KernelMemory memory;
  AttentionShape shape;
  View q, k, v, out, lse;
};

class AttentionKernels : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionKernels, ForwardEqualsTheDefinition) {
  const AttentionInputs inputs = case_inputs(GetParam());
  const auto expected = testing::reference_forward(inputs);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {  // the inputs are exact in all of them
    Attention attention(inputs, dtype);
    attention.memory.run(AttentionForward{attention.q, attention.k, attention.v, attention.out, attention.lse,
                                          inputs.softmax_scale, GetParam().slices});
    expect_near(attention.values(attention.out), expected.out, 1e-6);
    expect_near(attention.values(attention.lse), expected.lse, 1e-6);
  }
}

TEST_P(AttentionKernels, BackwardEqualsTheDefinition) {
  const AttentionInputs inputs = case_inputs(GetParam());
  const auto forward = testing::reference_forward(inputs);
  const auto dout_values = testing::small_fractions(inputs.shape.out_numel(), 4);
  const auto expected = testing::reference_backward(inputs, dout_values);
  for (const bool accumulate : {false, true}) {
    Attention attention(inputs, DType::f32);
    const View out = attention.holding(attention.out, forward.out),
               dout = attention.holding(attention.out, dout_values);
    const View lse = attention.holding(attention.lse, forward.lse), delta = attention.new_lse();
    const View dq = attention.like(attention.q, 2), dk = attention.like(attention.k, 2),
               dv = attention.like(attention.v, 2);
    attention.memory.run(AttentionDelta{out, dout, delta});
    attention.memory.run(AttentionBackward{attention.q, attention.k, attention.v, dout, lse, delta, dq, dk,
                                           dv, inputs.softmax_scale, GetParam().slices, accumulate,
                                           accumulate});
    const auto plus = [&](std::vector<double> values) {
      for (double& value : values) value += accumulate ? 2 : 0;
      return values;
    };
    expect_near(attention.values(dq), plus(expected.dq), 2e-6);
    expect_near(attention.values(dk), plus(expected.dk), 2e-6);
    expect_near(attention.values(dv), plus(expected.dv), 2e-6);
  }
}

// A fused step's delta is that of AttentionDelta, bit for bit, and so is all that follows.
// Gradients that nobody wants are left out, and the others are bit for bit the same.
TEST_P(AttentionKernels, BackwardMakesTheGradientsThatAreThere) {
  const AttentionInputs inputs = case_inputs(GetParam());
  const auto forward = testing::reference_forward(inputs);
  const auto dout_values = testing::small_fractions(inputs.shape.out_numel(), 4);
  for (const bool accumulate : {false, true}) {
    std::array<std::vector<double>, 3> all;
    for (int asked = 7; asked > 0; --asked) {
      Attention attention(inputs, DType::f32);
      const View out = attention.holding(attention.out, forward.out),
                 dout = attention.holding(attention.out, dout_values);
      const View lse = attention.holding(attention.lse, forward.lse), delta = attention.new_lse();
      const std::array<View, 3> gradients = {attention.like(attention.q, 2), attention.like(attention.k, 2),
                                             attention.like(attention.v, 2)};
      const auto wanted = [&](std::size_t i) { return (asked >> i & 1) != 0 ? gradients[i] : View{}; };
      attention.memory.run(AttentionDelta{out, dout, delta});
      attention.memory.run(AttentionBackward{attention.q, attention.k, attention.v, dout, lse, delta,
                                             wanted(0), wanted(1), wanted(2), inputs.softmax_scale,
                                             GetParam().slices, accumulate, accumulate});
      for (std::size_t i = 0; i < 3; ++i) {
        const std::vector<double> values = attention.values(gradients[i]);
        if (asked == 7) all[i] = values;
        EXPECT_EQ(values, is_absent(wanted(i)) ? std::vector<double>(values.size(), 2) : all[i]) << asked;
      }
    }
  }
}

TEST_P(AttentionKernels, FusedBackwardMakesItsDelta) {
  const AttentionInputs inputs = case_inputs(GetParam());
  const auto forward = testing::reference_forward(inputs);
  const auto dout_values = testing::small_fractions(inputs.shape.out_numel(), 4);
  Attention attention(inputs, DType::f32);
  const View out = attention.holding(attention.out, forward.out),
             dout = attention.holding(attention.out, dout_values);
  const View lse = attention.holding(attention.lse, forward.lse), delta = attention.new_lse();
  attention.memory.run(AttentionDelta{out, dout, delta});
  std::vector<std::vector<double>> results[2];
  for (const bool fused : {false, true}) {
    const View dq = attention.like(attention.q, 2), dk = attention.like(attention.k, 2),
               dv = attention.like(attention.v, 2);
    AttentionBackward backward{attention.q, attention.k,          attention.v,      dout, lse, delta, dq, dk,
                               dv,          inputs.softmax_scale, GetParam().slices};
    if (fused) backward.engine = AttentionEngine::fused, backward.out = out, backward.delta = View{};
    attention.memory.run(backward);
    results[fused] = {attention.values(dq), attention.values(dk), attention.values(dv)};
  }
  EXPECT_EQ(results[0], results[1]);
}

// Each slice's rows over half of the keys, merged, give those over all keys.
TEST_P(AttentionKernels, MergeOfTwoHalvesIsTheWhole) {
  const AttentionInputs inputs = case_inputs(GetParam());
  const auto expected = testing::reference_forward(inputs);
  Attention attention(inputs, DType::f32);
  const View other_out = attention.new_out(), other_lse = attention.new_lse();
  const std::int64_t cut = inputs.shape.kv_len / 2;
  const auto halves = [&](bool first) {
    std::vector<MaskSlice> slices;
    for (MaskSlice slice : GetParam().slices) {
      const std::int64_t begin = std::max(slice.k_begin, first ? 0 : cut);
      const std::int64_t end = std::min(slice.k_begin + slice.k_len, first ? cut : inputs.shape.kv_len);
      if (begin >= end) continue;
      slice.diagonal -= begin - slice.k_begin;
      slice.k_begin = begin;
      slice.k_len = end - begin;
      slices.push_back(slice);
    }
    return slices;
  };
  attention.memory.run(AttentionForward{attention.q, attention.k, attention.v, attention.out, attention.lse,
                                        inputs.softmax_scale, halves(true)});
  attention.memory.run(AttentionForward{attention.q, attention.k, attention.v, other_out, other_lse,
                                        inputs.softmax_scale, halves(false)});
  attention.memory.run(AttentionMerge{other_out, other_lse, attention.out, attention.lse});
  expect_near(attention.values(attention.out), expected.out, 1e-6);
  expect_near(attention.values(attention.lse), expected.lse, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Masks, AttentionKernels, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(AttentionForward, LayoutInMemoryDoesNotMatter) {
  const AttentionShape shape{2, 3, 4, 2, 1, 2, 2};
  const Case test_case{"", shape, {{0, 3, 0, 4, Kind::causal, 1, 0}}};
  const AttentionInputs inputs = case_inputs(test_case);
  Attention attention(inputs, DType::f32);
  const View expected_out = attention.out, expected_lse = attention.lse;
  attention.memory.run(AttentionForward{attention.q, attention.k, attention.v, expected_out, expected_lse,
                                        0.5, test_case.slices});
  // q and out as [batch, heads, seq, head_dim] in memory.
  const View q = {attention.like(attention.q).buffer, 0, attention.q.shape, {12, 2, 6, 1}, {}};
  const View out = {attention.like(attention.out).buffer, 0, attention.out.shape, {12, 2, 6, 1}, {}};
  const View lse = attention.new_lse(), back = attention.like(attention.out);
  attention.memory.run(Copy{attention.q, q});
  attention.memory.run(AttentionForward{q, attention.k, attention.v, out, lse, 0.5, test_case.slices});
  attention.memory.run(Copy{out, back});
  EXPECT_EQ(attention.values(back), attention.values(expected_out));
  EXPECT_EQ(attention.values(lse), attention.values(expected_lse));
  EXPECT_NE(attention.values(out), attention.values(expected_out));
}

TEST(AttentionForward, LargeScoresDoNotOverflow) {
  KernelMemory memory;
  const View q = bshd(memory.add(DType::f32, {100}), 1, 1, 1, 1),
             k = bshd(memory.add(DType::f32, {100, 99}), 1, 2, 1, 1);
  const View v = bshd(memory.add(DType::f32, {1, 2}), 1, 2, 1, 1),
             out = bshd(memory.add(DType::f32, {0}), 1, 1, 1, 1);
  const View lse = dense_view(memory.add(DType::f32, {0}), 0, {1, 1, 1});
  memory.run(AttentionForward{q, k, v, out, lse, 1, {{0, 1, 0, 2, Kind::full, 0, 0}}});
  EXPECT_EQ(memory.values(out.buffer), std::vector<double>{1});
  EXPECT_EQ(memory.values(lse.buffer), std::vector<double>{10000});
}

// By hand: weights e^0, e^log 2 and e^log 5 of 8 in all; a result of no keys has none.
TEST(AttentionMerge, SeveralResultsAtOnce) {
  KernelMemory memory;
  const auto result = [&](DType dtype, double value, double lse) {
    return std::pair{bshd(memory.add(dtype, {value}), 1, 1, 1, 1),
                     dense_view(memory.add(DType::f32, {lse}), 0, {1, 1, 1})};
  };
  const auto [out, lse] = result(DType::f32, 8, 0);
  const auto [in, in_lse] = result(DType::bf16, 16, std::log(2.0));
  const auto [none, none_lse] = result(DType::f16, std::nan(""), -kInfinity);
  const auto [last, last_lse] = result(DType::f32, 24, std::log(5.0));
  memory.run(AttentionMerge{in, in_lse, out, lse, {none, last}, {none_lse, last_lse}});
  EXPECT_NEAR(memory.values(out.buffer)[0], 1 + 4 + 15, 1e-5);
  EXPECT_NEAR(memory.values(lse.buffer)[0], std::log(8.0), 1e-6);
}

// Gradients: 256 + 1 + 1 in bf16 would be 256 if each sum were rounded; 258 has a place there.
TEST(AttentionMerge, WithoutLseAddsUpAndRoundsOnce) {
  KernelMemory memory;
  const auto part = [&](DType dtype, double value) { return bshd(memory.add(dtype, {value}), 1, 1, 1, 1); };
  const View out = part(DType::bf16, 256), in = part(DType::f32, 1), more = part(DType::bf16, 1);
  memory.run(AttentionMerge{in, View{}, out, View{}, {more}, {}});
  EXPECT_EQ(memory.values(out.buffer), std::vector<double>{258});
}

TEST(AttentionMerge, AnEmptySideChangesNothing) {
  for (const bool empty_in : {true, false}) {
    KernelMemory memory;
    const auto side = [&](bool empty) {
      const View out = bshd(memory.add(DType::f32, {empty ? 0.0 : 3.0}), 1, 1, 1, 1);
      return std::pair{out, dense_view(memory.add(DType::f32, {empty ? -kInfinity : 1.5}), 0, {1, 1, 1})};
    };
    const auto [in, in_lse] = side(empty_in);
    const auto [out, lse] = side(!empty_in);
    memory.run(AttentionMerge{in, in_lse, out, lse});
    EXPECT_EQ(memory.values(out.buffer), std::vector<double>{3}) << empty_in;
    EXPECT_EQ(memory.values(lse.buffer), std::vector<double>{1.5}) << empty_in;
    memory.run(AttentionMerge{in, in_lse, out, lse});
    EXPECT_EQ(memory.values(out.buffer), std::vector<double>{3}) << empty_in;
  }
  KernelMemory memory;
  const View out = bshd(memory.add(DType::f32, {0, 0}), 1, 2, 1, 1);
  const View lse = dense_view(memory.add(DType::f32, {-kInfinity, -kInfinity}), 0, {1, 1, 2});
  View in = out, in_lse = lse;
  in.shape[1] = in_lse.shape[2] = 1;
  View rest = out, rest_lse = lse;
  rest.offset = rest_lse.offset = 1;
  rest.shape[1] = rest_lse.shape[2] = 1;
  memory.run(AttentionMerge{in, in_lse, rest, rest_lse});
  EXPECT_EQ(memory.values(out.buffer), (std::vector<double>{0, 0}));
  EXPECT_EQ(memory.values(lse.buffer), (std::vector<double>{-kInfinity, -kInfinity}));
}

}  // namespace
}  // namespace cp
