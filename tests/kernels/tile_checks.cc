#include "tests/kernels/tile_checks.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "shared/base/text.h"

namespace cp::testing::tiles {
namespace {

std::string to_string(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  std::string text = str("batch=", s.batch, " q_len=", s.q_len, " kv_len=", s.kv_len, " heads=", s.q_heads,
                         "/", s.kv_heads, " head_dim=", s.head_dim, "/", s.v_head_dim);
  for (const MaskSlice& slice : problem.slices) {
    text += str(" {", slice.q_begin, "+", slice.q_len, ", ", slice.k_begin, "+", slice.k_len, ", ",
                static_cast<int>(slice.kind), ", ", slice.diagonal, ", ", slice.window, "}");
  }
  return text;
}

Values absolute(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

// Each value lies within its own tolerance, and within a rounding to the dtype.
void expect_within(const Values& actual, const Values& expected, const Values& tolerance, DType dtype,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double epsilon = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : kHalfUlp;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << what << "[" << i << "]";
    } else {
      // The least step of f16 is 2^-24.
      ASSERT_NEAR(actual[i], expected[i], tolerance[i] + epsilon * std::abs(expected[i]) + 0x1p-25)
          << what << "[" << i << "]";
    }
  }
}

}  // namespace

AttentionInputs inputs_of(const Problem& problem) {
  const AttentionShape& shape = problem.shape;
  return {shape,
          kExactScale,
          [slices = problem.slices](std::int64_t q, std::int64_t k) {
            return std::any_of(slices.begin(), slices.end(),
                               [&](const MaskSlice& slice) { return allows(slice, q, k); });
          },
          small_fractions(shape.q_numel(), 1),
          small_fractions(shape.k_numel(), 2),
          small_fractions(shape.v_numel(), 3)};
}

std::vector<MaskSlice> one_slice(const AttentionShape& shape, Kind kind, std::int64_t diagonal,
                                 std::int64_t window) {
  return {{0, shape.q_len, 0, shape.kv_len, kind, diagonal, window}};
}

// Counted in roundings of f32, relative to the sum of the absolute terms of each result:
//   an exponential 4 (2 ulp); its argument |score| + 2 |lse|, of which lse is rounded where the backward pass
//   reads it;
//   a sum of n terms n, but no more than the chain of attention.h; scaling sums down 6 each time, which
//   happens where scores rise by 8, so for 1/4 of the greatest score, and once more for lse; products,
//   quotient and logarithm up to 8 in all.
Expected expected_of(const AttentionInputs& inputs) {
  const AttentionShape& shape = inputs.shape;
  Expected expected{reference_forward(inputs), {}, small_fractions(shape.out_numel(), 4), {}, {}, {}, {}, {}};
  expected.gradients = reference_backward(inputs, expected.dout);
  double greatest_lse = 0;
  for (const double lse : expected.forward.lse) {
    if (!std::isinf(lse)) greatest_lse = std::max(greatest_lse, std::abs(lse));
  }
  const auto chain = [](std::int64_t terms, std::int64_t longest) {
    return static_cast<double>(std::min(terms, longest));
  };
  const double keys = chain(shape.kv_len, kForwardChain), dq_keys = chain(shape.kv_len, kQueryChain),
               rows =
                   chain(shape.q_len * shape.q_heads / std::max<std::int64_t>(1, shape.kv_heads), kKeyChain);
  const double score = kExactScale * static_cast<double>(shape.head_dim) + greatest_lse;
  const double weight = 4 + 6 * std::floor(score / 4) + 8;  // of a weight in the forward pass
  const double p = 4 + score + 2 * greatest_lse + 8;
  const auto scaled = [](Values values, double factor) {
    for (double& value : values) value = std::abs(value) * factor;
    return values;
  };
  // Sums of absolute terms are attention too: of absolute values, and gradients of absolute outputs.
  AttentionInputs magnitudes = inputs;
  magnitudes.v = absolute(inputs.v);
  const auto sums = reference_forward(magnitudes);
  expected.out_tolerance = scaled(sums.out, 2 * (keys + weight) * kHalfUlp);
  expected.lse_tolerance = scaled(expected.forward.lse, 2 * kHalfUlp);
  for (double& tolerance : expected.lse_tolerance) tolerance += (keys + weight) * kHalfUlp;
  expected.dv_tolerance =
      scaled(reference_backward(magnitudes, absolute(expected.dout)).dv, (rows + p) * kHalfUlp);

  // ds = p (dp - delta) scale, and |dp|, |delta| <= v_head_dim, since all values are below 1.
  const double ds = 2 * static_cast<double>(shape.v_head_dim) * kExactScale;
  AttentionInputs of_keys = inputs;
  of_keys.shape.v_head_dim = shape.head_dim;
  of_keys.v = absolute(inputs.k);
  expected.dq_tolerance = scaled(reference_forward(of_keys).out, ds * (dq_keys + p) * kHalfUlp);
  expected.dk_tolerance =
      scaled(reference_backward(of_keys, absolute(inputs.q)).dv, ds * (rows + p) * kHalfUlp);
  return expected;
}

void check_forward(const AttentionInputs& inputs, const std::vector<MaskSlice>& slices,
                   const Expected& expected, const Form& form, const TileKernels& tiles) {
  AttentionMemory attention(inputs, form.dtype, form.order);
  const AttentionForward kernel{
      attention.q,   attention.k,          attention.v, attention.new_out(form.out_dtype, form.order),
      attention.lse, inputs.softmax_scale, slices};
  attention.memory.with([&](const HostMemory& memory) { run(kernel, memory, 0, all_parts(kernel), tiles); });
  expect_within(attention.values(kernel.out), expected.forward.out, expected.out_tolerance, form.out_dtype,
                "out");
  expect_within(attention.values(kernel.lse), expected.forward.lse, expected.lse_tolerance, DType::f32,
                "lse");
}

void check_backward(const AttentionInputs& inputs, const std::vector<MaskSlice>& slices,
                    const Expected& expected, const Form& form, const TileKernels& tiles) {
  AttentionMemory attention(inputs, form.dtype, form.order);
  const View out = attention.holding(attention.out, expected.forward.out),
             dout = attention.holding(attention.out, expected.dout, form.dtype, form.order);
  const View lse = attention.rows(expected.forward.lse), delta = attention.new_rows();
  const auto before = [&](const View& view, double value) {
    return attention.like(view, value, form.out_dtype, form.order);
  };
  const AttentionBackward kernel{attention.q,
                                 attention.k,
                                 attention.v,
                                 dout,
                                 lse,
                                 delta,
                                 before(attention.q, 0.5),
                                 before(attention.k, 96),
                                 before(attention.v, 96),
                                 inputs.softmax_scale,
                                 slices,
                                 true,
                                 false};
  attention.memory.run(AttentionDelta{out, dout, delta});
  attention.memory.with([&](const HostMemory& memory) { run(kernel, memory, 0, all_parts(kernel), tiles); });
  Values dq = expected.gradients.dq;
  for (double& value : dq) value += 0.5;
  expect_within(attention.values(kernel.dq), dq, expected.dq_tolerance, form.out_dtype, "dq");
  expect_within(attention.values(kernel.dk), expected.gradients.dk, expected.dk_tolerance, form.out_dtype,
                "dk");
  expect_within(attention.values(kernel.dv), expected.gradients.dv, expected.dv_tolerance, form.out_dtype,
                "dv");
}

void check(const Problem& problem, const std::vector<Form>& forms) {
  const AttentionInputs inputs = inputs_of(problem);
  const Expected expected = expected_of(inputs);
  for (const TileKernels* tiles : tile_kernels()) {
    for (const Form& form : forms) {
      SCOPED_TRACE(
          str(to_string(problem), " ", tiles->name, " ", name(form.dtype), " to ", name(form.out_dtype)));
      check_forward(inputs, problem.slices, expected, form, *tiles);
      check_backward(inputs, problem.slices, expected, form, *tiles);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace cp::testing::tiles
