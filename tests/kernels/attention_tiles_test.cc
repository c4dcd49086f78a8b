// The tiled kernels of every instruction set against the definition: sizes at the edges of panels and tiles,
// all masks, dtypes and layouts. Inputs are multiples of 1/64 below 1, so that they and their products of up
// to 128 terms are exact; what is left are the roundings that the tolerances count.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/kernels/tiled_attention.h"
#include "tests/kernels/attention_memory.h"

namespace cp {
namespace {

using testing::AttentionInputs;
using testing::AttentionMemory;
using testing::AttentionShape;
using testing::Order;

using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

constexpr double kHalfUlp = 0x1p-24;  // a rounding to f32
constexpr double kExactScale = 0.25;  // a power of two: scores are exact

struct Problem {
  AttentionShape shape;
  std::vector<MaskSlice> slices;
};

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

AttentionInputs inputs_of(const Problem& problem) {
  const AttentionShape& shape = problem.shape;
  return {shape,
          kExactScale,
          [slices = problem.slices](std::int64_t q, std::int64_t k) {
            return std::any_of(slices.begin(), slices.end(),
                               [&](const MaskSlice& slice) { return allows(slice, q, k); });
          },
          testing::small_fractions(shape.q_numel(), 1),
          testing::small_fractions(shape.k_numel(), 2),
          testing::small_fractions(shape.v_numel(), 3)};
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

// What a problem should give, and how far from it each result may lie.
struct Expected {
  testing::AttentionOutputs forward;
  testing::AttentionGradients gradients;
  Values dout;
  Values out_tolerance, lse_tolerance, dq_tolerance, dk_tolerance, dv_tolerance;
};

// Counted in roundings of f32, relative to the sum of the absolute terms of each result:
//   an exponential 4 (2 ulp); its argument |score| + 2 |lse|, of which lse is rounded where the backward pass reads it;
//   a sum of n terms n, but no more than the chain of attention.h; scaling sums down 6 each time, which
//   happens where scores rise by 8, so for 1/4 of the greatest score, and once more for lse; products,
//   quotient and logarithm up to 8 in all.
Expected expected_of(const AttentionInputs& inputs) {
  const AttentionShape& shape = inputs.shape;
  Expected expected{testing::reference_forward(inputs),
                    {},
                    testing::small_fractions(shape.out_numel(), 4),
                    {},
                    {},
                    {},
                    {},
                    {}};
  expected.gradients = testing::reference_backward(inputs, expected.dout);
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
  const auto sums = testing::reference_forward(magnitudes);
  expected.out_tolerance = scaled(sums.out, 2 * (keys + weight) * kHalfUlp);
  expected.lse_tolerance = scaled(expected.forward.lse, 2 * kHalfUlp);
  for (double& tolerance : expected.lse_tolerance) tolerance += (keys + weight) * kHalfUlp;
  expected.dv_tolerance =
      scaled(testing::reference_backward(magnitudes, absolute(expected.dout)).dv, (rows + p) * kHalfUlp);

  // ds = p (dp - delta) scale, and |dp|, |delta| <= v_head_dim, since all values are below 1.
  const double ds = 2 * static_cast<double>(shape.v_head_dim) * kExactScale;
  AttentionInputs of_keys = inputs;
  of_keys.shape.v_head_dim = shape.head_dim;
  of_keys.v = absolute(inputs.k);
  expected.dq_tolerance = scaled(testing::reference_forward(of_keys).out, ds * (dq_keys + p) * kHalfUlp);
  expected.dk_tolerance =
      scaled(testing::reference_backward(of_keys, absolute(inputs.q)).dv, ds * (rows + p) * kHalfUlp);
  return expected;
}

// How the tensors lie in memory; results in f32 whatever the inputs, and in the inputs' dtype.
struct Form {
  DType dtype = DType::f32, out_dtype = DType::f32;
  Order order = Order::bshd;
};

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

void check(const Problem& problem, const std::vector<Form>& forms = {Form{}}) {
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

std::vector<MaskSlice> one_slice(const AttentionShape& shape, Kind kind, std::int64_t diagonal = 0,
                                 std::int64_t window = 0) {
  return {{0, shape.q_len, 0, shape.kv_len, kind, diagonal, window}};
}

// ---- sizes ----

TEST(AttentionTiles, QueriesAtTheEdgesOfPanels) {
  for (const TileKernels* tiles : tile_kernels()) {
    for (const std::int64_t near : {tiles->lanes, tiles->width(), 2 * tiles->width()}) {
      for (const std::int64_t q_len : {near - 1, near, near + 1}) {
        const AttentionShape shape{1, q_len, 21, 1, 1, 4, 5};
        check({shape, one_slice(shape, Kind::full)});
        check({shape, one_slice(shape, Kind::causal, 21 - q_len)});
      }
    }
  }
}

TEST(AttentionTiles, KeysAtTheEdgesOfPanelsAndTiles) {
  for (const std::int64_t near : {8, 128, 256, 512}) {
    for (const std::int64_t kv_len : {near - 1, near, near + 1}) {
      const AttentionShape shape{1, 50, kv_len, 1, 1, 4, 5};
      check({shape, one_slice(shape, Kind::full)});
      check({shape, one_slice(shape, Kind::causal, kv_len - 50)});
      check({shape, one_slice(shape, Kind::window, kv_len - 50, 13)});
    }
  }
}

TEST(AttentionTiles, HeadDims) {
  for (const std::int64_t head_dim : {1, 3, 64, 80, 128}) {
    for (const std::int64_t v_head_dim : {1, 3, 64, 80, 128}) {
      const AttentionShape shape{1, 19, 37, 2, 1, head_dim, v_head_dim};
      check({shape, one_slice(shape, Kind::causal, 18)}, {Form{}, {DType::bf16, DType::f32}});
    }
  }
}

TEST(AttentionTiles, HeadsThatShareKeys) {
  for (const auto& [q_heads, kv_heads] : {std::pair{1, 1}, {4, 4}, {4, 2}, {6, 2}, {5, 1}, {70, 1}}) {
    const AttentionShape shape{2, 11, 20, q_heads, kv_heads, 8, 6};
    check({shape, one_slice(shape, Kind::causal, 9)});
    check({shape, one_slice(shape, Kind::window, 9, 4)});
  }
}

// ---- masks ----

std::vector<MaskSlice> documents(std::int64_t seq_len, std::int64_t size) {
  std::vector<MaskSlice> slices;
  for (std::int64_t begin = 0; begin < seq_len; begin += size) {
    const std::int64_t length = std::min(size, seq_len - begin);
    slices.push_back({begin, length, begin, length, Kind::causal, 0, 0});
  }
  return slices;
}

TEST(AttentionTiles, ManyTinyDocuments) {
  for (const std::int64_t size : {1, 2, 5, 17}) check({{1, 200, 200, 2, 1, 4, 3}, documents(200, size)});
}

// Each query and key a slice of its own where the causal mask allows it: a thousand slices in no order.
TEST(AttentionTiles, OneSliceForEachPair) {
  std::vector<MaskSlice> slices;
  for (std::int64_t k = 39; k >= 0; --k) {
    for (std::int64_t q = k; q < 40; ++q) slices.push_back({q, 1, k, 1, Kind::full, 0, 0});
  }
  check({{1, 40, 40, 1, 1, 4, 3}, slices});
}

TEST(AttentionTiles, WindowsAcrossTiles) {
  const AttentionShape shape{1, 300, 300, 1, 1, 3, 3};
  for (const std::int64_t window : {1, 2, 8, 60, 299, 1000})
    check({shape, one_slice(shape, Kind::window, 0, window)});
  check({shape, one_slice(shape, Kind::window, -250, 20)});
  check({shape, one_slice(shape, Kind::window, 250, 20)});
}

TEST(AttentionTiles, RowsAndKeysThatNobodyTouches) {
  check(
      {{1, 200, 600, 1, 1, 4, 3}, {{60, 3, 300, 5, Kind::full, 0, 0}, {150, 9, 20, 9, Kind::causal, -4, 0}}});
  check({{1, 20, 20, 1, 1, 4, 3}, {}});
}

// Cuts the queries and the keys, and gives each block of the grid a random mask or none: slices that are
// disjoint.
Problem random_problem() {
  const auto number = [](std::int64_t from, std::int64_t to) {
    return *rc::gen::inRange<std::int64_t>(from, to + 1);
  };
  const std::int64_t kv_heads = number(1, 2);
  const AttentionShape shape{number(1, 2), number(0, 120), number(0, 300), kv_heads * number(1, 3),
                             kv_heads,     number(1, 9),   number(1, 9)};
  const auto cuts = [&](std::int64_t length) {
    std::vector<std::int64_t> ends = {0, length};
    for (std::int64_t i = number(0, 4); i > 0; --i) ends.push_back(number(0, length));
    std::sort(ends.begin(), ends.end());
    return ends;
  };
  Problem problem{shape, {}};
  const std::vector<std::int64_t> q_cuts = cuts(shape.q_len), k_cuts = cuts(shape.kv_len);
  for (std::size_t q = 1; q < q_cuts.size(); ++q) {
    for (std::size_t k = 1; k < k_cuts.size(); ++k) {
      const std::int64_t q_len = q_cuts[q] - q_cuts[q - 1], k_len = k_cuts[k] - k_cuts[k - 1];
      if (number(0, 3) == 0) continue;
      problem.slices.push_back({q_cuts[q - 1], q_len, k_cuts[k - 1], k_len,
                                *rc::gen::element(Kind::full, Kind::causal, Kind::window),
                                number(-q_len, k_len), number(1, k_len + 1)});
    }
  }
  return problem;
}

RC_GTEST_PROP(AttentionTiles, AnyMaskEqualsTheDefinition, ()) {
  const Problem problem = random_problem();
  check(problem);
  RC_ASSERT(!::testing::Test::HasFailure());
}

// ---- values ----

TEST(AttentionTiles, DTypesAndLayouts) {
  const AttentionShape shape{2, 50, 70, 4, 2, 20, 12};
  std::vector<Form> forms;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Order order : {Order::bshd, Order::bnsd, Order::sbhd, Order::gaps}) {
      forms.push_back({dtype, dtype, order});
      forms.push_back({dtype, DType::f32, order});
    }
  }
  check({shape, one_slice(shape, Kind::causal, 20)}, forms);
}

// Scores beyond 10^4, of integers: exact. exp() of them overflows. Roundings as in expected_of(): 2 * (300
// keys + 30).
TEST(AttentionTiles, LargeScores) {
  const AttentionShape shape{1, 60, 300, 2, 1, 64, 3};
  Problem problem{shape, one_slice(shape, Kind::causal, 240)};
  AttentionInputs inputs = inputs_of(problem);
  inputs.q = testing::small_integers(shape.q_numel(), 5, 25);
  inputs.k = testing::small_integers(shape.k_numel(), 6, 25);
  for (const double factor : {1.0, 20.0}) {
    inputs.softmax_scale = factor;
    const auto forward = testing::reference_forward(inputs);
    EXPECT_GT(*std::max_element(forward.lse.begin(), forward.lse.end()), 1000 * factor);
    Expected all{forward, {}, {}, Values(forward.out.size(), 700 * kHalfUlp), {}, {}, {}, {}};
    for (const double lse : forward.lse) all.lse_tolerance.push_back((2 * std::abs(lse) + 700) * kHalfUlp);
    for (const TileKernels* tiles : tile_kernels()) {
      check_forward(inputs, problem.slices, all, Form{}, *tiles);
      if (HasFatalFailure()) return;
    }
  }
}

// Scores that rise by 5 from tile to tile: sums are scaled down every second time. With the keys in the other
// order they never are.
TEST(AttentionTiles, ScoresThatRiseOrFall) {
  const AttentionShape shape{1, 50, 40 * 256, 1, 1, 1, 3};
  for (const bool rise : {false, true}) {
    Problem problem{shape, one_slice(shape, Kind::full)};
    AttentionInputs inputs = inputs_of(problem);
    for (std::size_t key = 0; key < inputs.k.size(); ++key) {
      const std::size_t tile = key / 256;
      inputs.k[key] = static_cast<double>(5 * (rise ? tile : 39 - tile));
    }
    std::fill(inputs.q.begin(), inputs.q.end(), 1);
    inputs.softmax_scale = 1;
    const auto forward = testing::reference_forward(inputs);
    Expected all{forward, {}, {}, {}, {}, {}, {}, {}};
    // Two sums of 256 terms; exponentials of 4, quotient, product. What was scaled down k times weighs exp(-8
    // k): 2 times count, each an exponential, a product, and the rounding of a difference of exact scores,
    // none.
    all.out_tolerance = Values(forward.out.size(), (2 * 256 + 2 * 4 + 2 + 2 * 2 * 5) * kHalfUlp);
    for (const double lse : forward.lse) {
      all.lse_tolerance.push_back((256 + 4 + 2 * 5 + std::abs(lse)) * kHalfUlp);
    }
    for (const TileKernels* tiles : tile_kernels())
      check_forward(inputs, problem.slices, all, Form{}, *tiles);
  }
}

// ---- errors and lengths ----

// The error of a sum of n terms that are alike: a chain of c of them rounds partial sums that grow evenly to
// T = c/n of the whole, and the squares of their roundings add up to (c/3) (u T)^2. All n/c chains make
// c^2/(3n) u^2, relative to the whole. The rest is `others` roundings. Four times the root, as in
// sim/proof/run/attention_tolerance.h. One long chain would have n/3 instead of c^2/(3n).
double growth_bound(std::int64_t n, std::int64_t c, double others) {
  const auto terms = static_cast<double>(n), chain = static_cast<double>(c);
  return 4 * std::sqrt(chain * chain / (3 * terms) + others) * kHalfUlp;
}

// Scores are 0, so that all weights are 1 / n, and terms are between 0 and 1: nothing cancels.
TEST(AttentionTiles, ErrorsDoNotGrowWithTheNumberOfKeys) {
  constexpr std::int64_t kKeys = 16384, kDim = 64;
  const AttentionShape shape{1, 3, kKeys, 1, 1, kDim, kDim};
  AttentionInputs inputs = inputs_of({shape, one_slice(shape, Kind::full)});
  std::fill(inputs.q.begin(), inputs.q.end(), 0);
  for (Values* values : {&inputs.k, &inputs.v}) {
    std::uint64_t state = 1;
    for (double& value : *values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      value = static_cast<double>(state >> 41) * 0x1p-23;  // exact in f32
    }
  }
  inputs.softmax_scale = 1;
  Values mean(static_cast<std::size_t>(kDim), 0), mean_key = mean;
  for (std::size_t i = 0; i < inputs.v.size(); ++i) {
    mean[i % kDim] += inputs.v[i] / kKeys, mean_key[i % kDim] += inputs.k[i] / kKeys;
  }
  for (const TileKernels* tiles : tile_kernels()) {
    SCOPED_TRACE(tiles->name);
    AttentionMemory attention(inputs);
    const AttentionForward forward{attention.q,
                                   attention.k,
                                   attention.v,
                                   attention.out,
                                   attention.lse,
                                   inputs.softmax_scale,
                                   one_slice(shape, Kind::full)};
    // With dout = 0 and delta = -1, ds = p, and dq is the mean of the keys.
    const View dq = attention.like(attention.q, 0), dk = attention.like(attention.k, 0),
               dv = attention.like(attention.v, 0);
    const AttentionBackward backward{attention.q,
                                     attention.k,
                                     attention.v,
                                     attention.like(attention.out, 0),
                                     attention.rows(Values(3, std::log(static_cast<double>(kKeys)))),
                                     attention.rows(Values(3, -1)),
                                     dq,
                                     dk,
                                     dv,
                                     inputs.softmax_scale,
                                     one_slice(shape, Kind::full)};
    attention.memory.with([&](const HostMemory& memory) {
      run(forward, memory, 0, all_parts(forward), *tiles);
      run(backward, memory, 0, all_parts(backward), *tiles);
    });
    const Values out = attention.values(attention.out), lse = attention.values(attention.lse),
                 found = attention.values(dq);
    // The sum of 16,384 ones is exact. The rest of out: both parts of a sum made one, the quotient, the
    // product, all alike by 1.
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_NEAR(out[i] / mean[i % kDim], 1, growth_bound(kKeys, kForwardChain, 3));
      // lse is rounded, and an exponential is of it: alike for all terms, up to |lse| + 4 roundings.
      EXPECT_NEAR(found[i] / mean_key[i % kDim], 1,
                  growth_bound(kKeys, kQueryChain, 3) + (std::log(double{kKeys}) + 4) * kHalfUlp);
    }
    for (const double each : lse) EXPECT_NEAR(each, std::log(double{kKeys}), 10 * kHalfUlp);
  }
}

TEST(AttentionTiles, ErrorsDoNotGrowWithTheNumberOfQueries) {
  constexpr std::int64_t kQueries = 16384, kDim = 64;
  const AttentionShape shape{1, kQueries, 4, 1, 1, kDim, kDim};
  AttentionInputs inputs = inputs_of({shape, one_slice(shape, Kind::full)});
  std::fill(inputs.k.begin(), inputs.k.end(), 0);
  Values douts(inputs.q.size());
  for (Values* values : {&inputs.q, &douts}) {
    std::uint64_t state = values == &douts ? 2 : 1;
    for (double& value : *values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      value = static_cast<double>(state >> 41) * 0x1p-23;
    }
  }
  std::fill(inputs.v.begin(), inputs.v.end(), 0);
  inputs.softmax_scale = 1;
  Values sum_q(static_cast<std::size_t>(kDim), 0), sum_dout = sum_q;
  for (std::size_t i = 0; i < douts.size(); ++i)
    sum_q[i % kDim] += inputs.q[i], sum_dout[i % kDim] += douts[i];
  for (const TileKernels* tiles : tile_kernels()) {
    SCOPED_TRACE(tiles->name);
    AttentionMemory attention(inputs);
    const View dk = attention.like(attention.k, 0), dv = attention.like(attention.v, 0);
    // With lse = 0 all p are 1, and with delta = -1 and v = 0 all ds are: dk and dv are plain sums of q and
    // dout.
    const AttentionBackward backward{attention.q,
                                     attention.k,
                                     attention.v,
                                     attention.holding(attention.out, douts),
                                     attention.rows(Values(kQueries, 0)),
                                     attention.rows(Values(kQueries, -1)),
                                     attention.like(attention.q, 0),
                                     dk,
                                     dv,
                                     inputs.softmax_scale,
                                     one_slice(shape, Kind::full)};
    attention.memory.with(
        [&](const HostMemory& memory) { run(backward, memory, 0, all_parts(backward), *tiles); });
    const Values found_dk = attention.values(dk), found_dv = attention.values(dv);
    for (std::size_t i = 0; i < found_dk.size(); ++i) {
      EXPECT_NEAR(found_dk[i] / sum_q[i % kDim], 1, growth_bound(kQueries, kKeyChain, 1));
      EXPECT_NEAR(found_dv[i] / sum_dout[i % kDim], 1, growth_bound(kQueries, kKeyChain, 1));
    }
  }
}

// Attention whose untouched rows and keys hold NaN is that of the others alone.
TEST(AttentionTiles, WhatNoSliceTouchesDoesNotMatter) {
  const Problem problem{{1, 70, 90, 2, 1, 5, 4},
                        {{3, 20, 5, 30, Kind::causal, 10, 0}, {40, 25, 37, 21, Kind::window, 4, 7}}};
  const AttentionShape& shape = problem.shape;
  AttentionInputs inputs = inputs_of(problem);
  const Expected expected = expected_of(inputs);
  const auto q_unused = [&](std::int64_t q) {
    for (std::int64_t k = 0; k < shape.kv_len; ++k) {
      if (inputs.mask(q, k)) return false;
    }
    return true;
  };
  const auto k_unused = [&](std::int64_t k) {
    for (std::int64_t q = 0; q < shape.q_len; ++q) {
      if (inputs.mask(q, k)) return false;
    }
    return true;
  };
  const auto poison = [](Values& values, std::int64_t row_size, std::int64_t rows, const auto& unused) {
    for (std::int64_t row = 0; row < rows; ++row) {
      if (unused(row)) std::fill_n(values.begin() + row * row_size, row_size, std::nan(""));
    }
  };
  poison(inputs.q, 2 * 5, shape.q_len, q_unused);
  poison(inputs.k, 5, shape.kv_len, k_unused);
  poison(inputs.v, 4, shape.kv_len, k_unused);
  Expected poisoned = expected;
  poison(poisoned.dout, 2 * 4, shape.q_len, q_unused);
  for (const TileKernels* tiles : tile_kernels()) {
    SCOPED_TRACE(tiles->name);
    check_forward(inputs, problem.slices, expected, Form{}, *tiles);
    check_backward(inputs, problem.slices, poisoned, Form{}, *tiles);
    if (HasFatalFailure()) return;
  }
}

// ---- parts ----

TEST(AttentionTiles, PartsInAnyOrderGiveTheSameBits) {
  const AttentionShape shape{2, 60, 60, 6, 3, 5, 4};
  const Problem problem{shape, one_slice(shape, Kind::causal)};
  const AttentionInputs inputs = inputs_of(problem);
  const auto results = [&](bool split) {
    AttentionMemory attention(inputs);
    const AttentionForward forward{attention.q,   attention.k,          attention.v,   attention.out,
                                   attention.lse, inputs.softmax_scale, problem.slices};
    const View dq = attention.like(attention.q, 0), dk = attention.like(attention.k, 0),
               dv = attention.like(attention.v, 0), dout = attention.like(attention.out, 0.75),
               delta = attention.rows(Values(static_cast<std::size_t>(shape.lse_numel()), 0.125));
    const AttentionBackward backward{attention.q,   attention.k, attention.v, dout, attention.lse,
                                     delta,         dq,          dk,          dv,   inputs.softmax_scale,
                                     problem.slices};
    attention.memory.with([&](const HostMemory& memory) {
      const auto run_all = [&](const auto& kernel) {
        if (!split) return run_kernel(kernel, memory, 0);
        EXPECT_EQ(all_parts(kernel).end, 6);
        for (const Parts parts : {Parts{4, 6}, Parts{0, 1}, Parts{3, 3}, Parts{1, 4}}) {
          run(kernel, memory, 0, parts, *tile_kernels().front());
        }
      };
      run_all(forward), run_all(backward);
    });
    return std::vector<Values>{attention.values(attention.out), attention.values(attention.lse),
                               attention.values(dq), attention.values(dk), attention.values(dv)};
  };
  EXPECT_EQ(results(true), results(false));
}

}  // namespace
}  // namespace cp
