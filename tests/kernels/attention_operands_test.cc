// What attention may be given: dtypes of accumulators and results apart from those of q, k and v; no rows; no
// slices.
#include <limits>

#include <gtest/gtest.h>

#include "tests/kernels/attention_memory.h"

namespace cp {
namespace {

using testing::AttentionInputs;
using testing::AttentionMemory;
using testing::AttentionShape;
using testing::expect_near;
using testing::kInfinity;

using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

constexpr double kOperandScale = 0.5;

AttentionInputs causal_inputs(const AttentionShape& shape) {
  return {shape,
          kOperandScale,
          [](std::int64_t q, std::int64_t k) { return k <= q; },
          testing::small_fractions(shape.q_numel(), 1),
          testing::small_fractions(shape.k_numel(), 2),
          testing::small_fractions(shape.v_numel(), 3)};
}

// One rounding to the dtype, of f32 sums of some 30 roundings of values below 1: 30 * 2^-24 < 2e-6.
std::function<double(double)> rounding(DType dtype) {
  const double epsilon = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  return [epsilon](double value) { return 2e-6 + epsilon * std::abs(value); };
}

class AttentionOperands : public ::testing::TestWithParam<std::tuple<DType, DType>> {};

TEST_P(AttentionOperands, TheForwardMayBeWiderOrNarrowerThanItsInputs) {
  const auto [in_dtype, out_dtype] = GetParam();
  const AttentionShape shape{2, 5, 5, 4, 2, 3, 6};
  const AttentionInputs inputs = causal_inputs(shape);
  const auto expected = testing::reference_forward(inputs);
  AttentionMemory attention(inputs, in_dtype);
  const View out = attention.new_out(out_dtype);
  attention.memory.run(AttentionForward{attention.q,
                                        attention.k,
                                        attention.v,
                                        out,
                                        attention.lse,
                                        kOperandScale,
                                        {{0, 5, 0, 5, Kind::causal, 0, 0}}});
  expect_near(attention.values(out), expected.out, rounding(out_dtype), "out");
  expect_near(attention.values(attention.lse), expected.lse, 2e-6, "lse");
}

TEST_P(AttentionOperands, TheGradientsMayBeWiderOrNarrowerThanTheInputs) {
  const auto [in_dtype, out_dtype] = GetParam();
  const AttentionShape shape{2, 5, 5, 4, 2, 3, 6};
  const AttentionInputs inputs = causal_inputs(shape);
  const Values dout_values = testing::small_fractions(shape.out_numel(), 4);
  const auto forward = testing::reference_forward(inputs);
  const auto expected = testing::reference_backward(inputs, dout_values);
  for (const bool accumulate_dq : {false, true}) {
    for (const bool accumulate_dkv : {false, true}) {
      AttentionMemory attention(inputs, in_dtype);
      const View out = attention.holding(attention.out, forward.out),
                 dout = attention.holding(attention.out, dout_values, in_dtype);
      const View lse = attention.rows(forward.lse), delta = attention.new_rows();
      const View dq = attention.like(attention.q, 0.5, out_dtype),
                 dk = attention.like(attention.k, 0.5, out_dtype),
                 dv = attention.like(attention.v, 0.5, out_dtype);
      attention.memory.run(AttentionDelta{out, dout, delta});
      attention.memory.run(AttentionBackward{attention.q,
                                             attention.k,
                                             attention.v,
                                             dout,
                                             lse,
                                             delta,
                                             dq,
                                             dk,
                                             dv,
                                             kOperandScale,
                                             {{0, 5, 0, 5, Kind::causal, 0, 0}},
                                             accumulate_dq,
                                             accumulate_dkv});
      const auto plus = [](Values values, bool accumulate) {
        for (double& value : values) value += accumulate ? 0.5 : 0;
        return values;
      };
      expect_near(attention.values(dq), plus(expected.dq, accumulate_dq), rounding(out_dtype), "dq");
      expect_near(attention.values(dk), plus(expected.dk, accumulate_dkv), rounding(out_dtype), "dk");
      expect_near(attention.values(dv), plus(expected.dv, accumulate_dkv), rounding(out_dtype), "dv");
    }
  }
}

TEST_P(AttentionOperands, DeltaTakesEachOfItsOperandsInItsOwnDType) {
  const auto [out_dtype, dout_dtype] = GetParam();
  const AttentionShape shape{2, 3, 3, 4, 2, 3, 6};
  AttentionMemory attention(causal_inputs(shape));
  const Values out_values = testing::small_fractions(shape.out_numel(), 5),
               dout_values = testing::small_fractions(shape.out_numel(), 6);
  const View delta = attention.new_rows();
  attention.memory.run(AttentionDelta{attention.holding(attention.out, out_values, out_dtype),
                                      attention.holding(attention.out, dout_values, dout_dtype), delta});
  Values expected;
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    for (std::int64_t head = 0; head < 4; ++head) {
      for (std::int64_t i = 0; i < 3; ++i) {
        double sum = 0;
        for (std::int64_t d = 0; d < 6; ++d) {
          const auto at = static_cast<std::size_t>(((batch * 3 + i) * 4 + head) * 6 + d);
          sum += out_values[at] * dout_values[at];
        }
        expected.push_back(sum);
      }
    }
  }
  EXPECT_EQ(attention.values(delta), expected);  // multiples of 2^-12 below 8: exact
}

TEST_P(AttentionOperands, MergeTakesEachOfItsOperandsInItsOwnDType) {
  const auto [in_dtype, out_dtype] = GetParam();
  const AttentionShape shape{1, 2, 2, 1, 1, 1, 3};
  AttentionMemory attention(causal_inputs(shape));
  const View in = attention.holding(attention.out, {1, 2, 3, 4, 5, 6}, in_dtype);
  const View out = attention.holding(attention.out, {3, 4, 5, 8, 9, 10}, out_dtype);
  const View in_lse = attention.rows({1, 2}), lse = attention.rows({1, 2});
  attention.memory.run(AttentionMerge{in, in_lse, out, lse});
  EXPECT_EQ(attention.values(out), (Values{2, 3, 4, 6, 7, 8}));  // equal weights
  expect_near(attention.values(lse), {1 + std::log(2), 2 + std::log(2)}, 1e-6);
}

const auto kDTypes = ::testing::Values(DType::f32, DType::f16, DType::bf16);
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOperands, ::testing::Combine(kDTypes, kDTypes),
                         [](const auto& test) {
                           return str(name(std::get<0>(test.param)), "_", name(std::get<1>(test.param)));
                         });

// ---- nothing to compute with ----

TEST(AttentionForward, WithoutKeysOrSlicesIsZero) {
  for (const std::int64_t kv_len : {0, 4}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      AttentionMemory attention(causal_inputs({2, 3, kv_len, 4, 2, 3, 6}), dtype);
      attention.memory.run(AttentionForward{
          attention.q, attention.k, attention.v, attention.out, attention.lse, kOperandScale, {}});
      EXPECT_EQ(attention.values(attention.out), Values(2 * 3 * 4 * 6, 0)) << kv_len;
      EXPECT_EQ(attention.values(attention.lse), Values(2 * 3 * 4, -kInfinity)) << kv_len;
    }
  }
}

// The gradients of attention between the given numbers of rows without any slice, from `before`.
struct Gradients {
  Values dq, dk, dv;
};
Gradients gradients_without_slices(std::int64_t q_len, std::int64_t kv_len, bool accumulate, double before) {
  AttentionMemory attention(causal_inputs({1, q_len, kv_len, 2, 1, 1, 2}));
  const View rows = attention.new_rows(), dout = attention.new_out();
  const View dq = attention.like(attention.q, before), dk = attention.like(attention.k, before),
             dv = attention.like(attention.v, before);
  attention.memory.run(AttentionBackward{attention.q,
                                         attention.k,
                                         attention.v,
                                         dout,
                                         rows,
                                         rows,
                                         dq,
                                         dk,
                                         dv,
                                         kOperandScale,
                                         {},
                                         accumulate,
                                         accumulate});
  return {attention.values(dq), attention.values(dk), attention.values(dv)};
}

TEST(AttentionBackward, WithoutSlicesIsZeroOrUnchanged) {
  for (const bool accumulate : {false, true}) {
    for (const std::int64_t q_len : {0, 3}) {
      for (const std::int64_t kv_len : {0, 5}) {
        const Gradients gradients = gradients_without_slices(q_len, kv_len, accumulate, 7);
        const double expected = accumulate ? 7 : 0;
        EXPECT_EQ(gradients.dq, Values(static_cast<std::size_t>(q_len * 2), expected));
        EXPECT_EQ(gradients.dk, Values(static_cast<std::size_t>(kv_len), expected));
        EXPECT_EQ(gradients.dv, Values(static_cast<std::size_t>(kv_len * 2), expected));
      }
    }
  }
}

TEST(AttentionKernelsWithoutHeads, DoNothing) {
  AttentionMemory attention(causal_inputs({1, 2, 2, 0, 0, 3, 3}));
  const View dq = attention.like(attention.q, 0), dk = attention.like(attention.k, 0),
             dv = attention.like(attention.v, 0);
  const std::vector<MaskSlice> slices = {{0, 2, 0, 2, Kind::full, 0, 0}};
  attention.memory.run(AttentionForward{attention.q, attention.k, attention.v, attention.out, attention.lse,
                                        kOperandScale, slices});
  attention.memory.run(AttentionBackward{attention.q, attention.k, attention.v, attention.out, attention.lse,
                                         attention.lse, dq, dk, dv, kOperandScale, slices});
}

}  // namespace
}  // namespace cp
