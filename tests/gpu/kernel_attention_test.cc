// Exact attention against its definition in float64, within bounds derived from its operations.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/base/text.h"
#include "shared/kernels/philox.h"
#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/attention_definition.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::any_floating;
using testing::any_of;
using testing::AttentionGradients;
using testing::AttentionInputs;
using testing::AttentionOutputs;
using testing::AttentionShape;
using testing::coin;
using testing::extent_of;
using testing::KernelRun;
using testing::kInfinity;
using testing::kRounding;
using testing::pick;
using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

constexpr double kUnused = 96;  // exact in every dtype

struct Problem {
  AttentionShape shape;
  std::vector<MaskSlice> slices;
  double scale = 0.5;
  double softcap = 0;
  AttentionDropout dropout = {};
};

constexpr std::uint64_t kSeed = 0x12345600789;  // of dropout; exact in f64

// What dropout multiplies kept weights by; 1 without it.
double kept_factor(const Problem& problem) {
  return static_cast<double>(dropout_factor(dropout_threshold(problem.dropout.probability)));
}
double kept(const AttentionDropout& dropout, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const auto word = [](std::int64_t number) { return static_cast<std::uint32_t>(number); };
  const std::int64_t key = to_global(dropout.keys, j);
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  const PhiloxWords words = philox(
      {{word(key / 4), word(to_global(dropout.queries, i)),
        word((dropout.first_batch + b) * dropout.heads + dropout.first_head + h), word(dropout.layer)}},
      kSeed);
  return words.words[key % 4] < threshold ? 0 : static_cast<double>(dropout_factor(threshold));
}

AttentionInputs inputs_of(const Problem& problem) {
  const AttentionShape& shape = problem.shape;
  const auto kept_weights = [dropout = problem.dropout](std::int64_t b, std::int64_t h, std::int64_t i,
                                                        std::int64_t j) { return kept(dropout, b, h, i, j); };
  return {shape,
          problem.scale,
          [slices = problem.slices](std::int64_t q, std::int64_t k) {
            return std::any_of(slices.begin(), slices.end(),
                               [&](const MaskSlice& slice) { return allows(slice, q, k); });
          },
          testing::small_fractions(shape.q_numel(), 1),
          testing::small_fractions(shape.k_numel(), 2),
          testing::small_fractions(shape.v_numel(), 3),
          problem.softcap,
          {},
          problem.dropout.probability == 0 ? decltype(AttentionInputs::kept)() : kept_weights};
}

// The rows of a striped shard, or of two stretches.
IndexSet any_rows(std::int64_t count) {
  if (count == 0) return {};
  const std::int64_t first = pick<std::int64_t>(0, 9), half = count / 2;
  if (half == 0 || coin()) return {{first, 1, pick<std::int64_t>(1, 5), count}};
  return {{first + 1000, half, half, 1}, {first, count - half, count - half, 1}};
}

// Disjoint: cells of a grid over queries and keys, some left out; documents are its diagonal.
std::vector<MaskSlice> any_slices(std::int64_t q_len, std::int64_t k_len) {
  const auto cuts = [](std::int64_t length) {
    std::vector<std::int64_t> at = {0, length};
    for (int i = pick(0, 2); i > 0; --i) at.push_back(pick<std::int64_t>(0, length));
    std::sort(at.begin(), at.end());
    return at;
  };
  const auto rows = cuts(q_len), columns = cuts(k_len);
  const bool documents = coin();
  std::vector<MaskSlice> slices;
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (std::size_t c = 0; c + 1 < columns.size(); ++c) {
      if (documents ? r != c : pick(0, 2) == 0) continue;
      MaskSlice slice{rows[r], rows[r + 1] - rows[r], columns[c], columns[c + 1] - columns[c], Kind::full, 0,
                      0};
      slice.kind = any_of<Kind>({Kind::full, Kind::causal, Kind::window});
      slice.diagonal = coin() ? slice.k_len - slice.q_len : pick<std::int64_t>(-20, 20);
      slice.window = slice.kind == Kind::window ? pick<std::int64_t>(1, 90) : 0;
      slices.push_back(slice);
    }
  }
  if (coin()) std::reverse(slices.begin(), slices.end());
  return slices;
}

Problem any_problem() {
  const auto length = [] { return any_of<std::int64_t>({0, 1, 5, 31, 63, 64, 65, 100, 130}); };
  AttentionShape shape{1, length(), length(), 0, 1, 0, 0};
  // What a block holds is large on a side or two, not on all at once.
  const bool is_long = shape.q_len * shape.kv_len > 64 * 64;
  const auto dim = [&] {
    return is_long ? any_of<std::int64_t>({1, 3, 8, 17})
                   : any_of<std::int64_t>({1, 3, 8, 16, 33, 64, 65, 130});
  };
  shape.head_dim = dim(), shape.v_head_dim = dim();
  shape.kv_heads = is_long ? 1 : pick<std::int64_t>(1, 2);
  shape.q_heads = shape.kv_heads * pick<std::int64_t>(1, is_long ? 2 : 3);
  if (!is_long) shape.batch = pick<std::int64_t>(1, 2);
  Problem problem{shape, any_slices(shape.q_len, shape.kv_len), any_of<double>({0.5, 0.125, 2})};
  if (pick(0, 3) == 0) problem.softcap = any_of<double>({0.5, 4, 30});
  if (pick(0, 3) == 0) {
    problem.dropout = {
        any_of<double>({0.1, 0.5}), pick<std::int64_t>(0, 9), pick<std::int64_t>(0, 3), 2, 0, {}, {}};
    problem.dropout.heads = shape.q_heads + 5;
    problem.dropout.queries = any_rows(shape.q_len), problem.dropout.keys = any_rows(shape.kv_len);
  }
  return problem;
}

// The buffers of one attention. Views are [batch, seq, heads, dim] in either order in memory, with or without
// gaps.
class Attention {
 public:
  Attention(const Problem& problem, DType dtype)
      : inputs(inputs_of(problem)), shape(problem.shape), dtype_(dtype) {
    q = holding(shape.q_len, shape.q_heads, shape.head_dim, inputs.q, dtype);
    k = holding(shape.kv_len, shape.kv_heads, shape.head_dim, inputs.k, dtype);
    v = holding(shape.kv_len, shape.kv_heads, shape.v_head_dim, inputs.v, dtype);
  }

  View holding(std::int64_t seq, std::int64_t heads, std::int64_t dim, const Values& values, DType dtype) {
    View view{0, 0, {shape.batch, seq, heads, dim}, {}, {}};
    const std::int64_t gap = coin() ? 0 : 3, offset = coin() ? 0 : 5;
    if (coin()) {
      view.strides = {seq * heads * (dim + gap), heads * (dim + gap), dim + gap, 1};
    } else {
      view.strides = {seq * heads * (dim + gap), dim + gap, seq * (dim + gap), 1};
    }
    view.offset = offset;
    return place(view, values, dtype);
  }
  // Gives an attention step what changes its scores.
  template <class Op>
  void set_scores(const Problem& problem, Op& kernel) {
    kernel.softcap = problem.softcap, kernel.dropout = problem.dropout;
    if (problem.dropout.probability == 0) return;
    Values numbers{static_cast<double>(kSeed)};
    if (coin()) {  // some of what the layer and the first entry are numbered with comes with the seed
      const std::int64_t layers = pick<std::int64_t>(0, problem.dropout.layer),
                         entries = pick<std::int64_t>(0, problem.dropout.first_batch);
      kernel.dropout.layer -= layers, kernel.dropout.first_batch -= entries;
      numbers.insert(numbers.end(), {static_cast<double>(layers), static_cast<double>(entries)});
    }
    kernel.seed = flat_view(run.add(DType::i64, numbers), 0, std::ssize(numbers));
  }
  View rows(const Values& values) {
    return place(dense_view(0, 0, {shape.batch, shape.q_heads, shape.q_len}), values, DType::f32);
  }
  View like(const View& view, double value, DType dtype) {
    return holding(view.shape[1], view.shape[2], view.shape[3],
                   Values(static_cast<std::size_t>(view.numel()), value), dtype);
  }

  AttentionInputs inputs;
  AttentionShape shape;
  KernelRun run;
  View q, k, v;

 private:
  View place(View view, const Values& values, DType dtype) {
    Values placed(static_cast<std::size_t>(extent_of(view)), kUnused);
    std::size_t next = 0;
    for (std::int64_t n = 0; n < view.numel(); ++n) {
      std::int64_t rest = n, offset = view.offset;
      for (std::size_t dim = view.shape.size(); dim-- > 0; rest /= view.shape[dim]) {
        offset += rest % view.shape[dim] * view.strides[dim];
      }
      placed.at(static_cast<std::size_t>(offset)) = values.at(next++);
    }
    view.buffer = run.add(dtype, placed);
    return view;
  }

  DType dtype_;
};

// ---- bounds ----
//
// Inputs are below 1 and exact in every dtype, so a score is below S = scale * head_dim, and a sum of d
// products is within d * d roundings. Weights are relative to the greatest score: the exponent is off by the
// errors of two scores and of their difference. A cap moves a score by eight roundings of its size (two of a
// GPU's tanh, and those of its factors), and does not enlarge its error. Dropout enlarges weights.

double score_error(const Problem& problem) {
  const auto d = static_cast<double>(problem.shape.head_dim);
  // The dot product, its scale, cap.
  return (d + 2 + (problem.softcap == 0 ? 0 : 8)) * kRounding * problem.scale * d;
}
// Relative, of exp(score - m) with m known exactly or a score: the difference, the exponential of a GPU.
double weight_error(const Problem& problem) {
  const double greatest = problem.scale * static_cast<double>(problem.shape.head_dim);
  return 2 * score_error(problem) + 2 * greatest * kRounding + 4 * kRounding;
}
double stored_error(DType dtype, double value) {
  const double epsilon = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : kRounding;
  return epsilon * std::abs(value) + (dtype == DType::f16 ? 0x1p-25 : 0);
}

void assert_near(const Values& actual, const Values& expected, double error, DType dtype, const char* what) {
  RC_ASSERT(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double tolerance = error + stored_error(dtype, std::abs(expected[i]) + error);
    if (!(std::abs(actual[i] - expected[i]) <= tolerance)) {
      RC_FAIL(str(what, "[", i, "] is ", actual[i], " where ", expected[i], " +- ", tolerance, " is right"));
    }
  }
}

// ---- forward ----

TEST(GpuAttentionForward, IsTheDefinition) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const Problem problem = any_problem();
    const DType dtype = any_floating(), out_dtype = any_floating();
    Attention attention(problem, dtype);
    const AttentionOutputs expected = testing::reference_forward(attention.inputs);
    const View out = attention.holding(problem.shape.q_len, problem.shape.q_heads, problem.shape.v_head_dim,
                                       Values(expected.out.size(), kUnused), out_dtype),
               lse = attention.rows(Values(expected.lse.size(), kUnused));
    AttentionForward kernel{attention.q, attention.k, attention.v, out, lse, problem.scale, problem.slices};
    attention.set_scores(problem, kernel);
    attention.run.run_on_gpu(kernel);
    // A sum of weights times values below 1, over the sum of weights: as many terms as keys, and a rescaling
    // for each tile of 64 keys and slice.
    const double terms = static_cast<double>(problem.shape.kv_len) + 2,
                 rescalings = terms / 64 + static_cast<double>(problem.slices.size()) + 1;
    const double error =
        weight_error(problem) * (1 + rescalings) + terms * kRounding + rescalings * 4 * kRounding;
    assert_near(attention.run.gpu_values(out), expected.out, 2 * kept_factor(problem) * error, out_dtype,
                "out");
    assert_near(attention.run.gpu_values(lse), expected.lse, error + score_error(problem), DType::f32, "lse");
  }));
}

// f32 of all 24 bits, which tensor cores take in two parts. With one part alone, products would be off by
// thousands of roundings.
TEST(GpuAttentionForward, F32OfAllBitsKeepsThem) {
  CP_SKIP_WITHOUT_GPU();
  const Problem problem{{1, 70, 130, 2, 1, 72, 136}, {{0, 70, 0, 130, Kind::causal, 0, 0}}, 0.125};
  AttentionInputs inputs = inputs_of(problem);
  for (Values* values : {&inputs.q, &inputs.k, &inputs.v}) {
    for (std::size_t i = 0; i < values->size(); ++i) {
      const double fine = static_cast<double>(i * 2654435761U % 4093) / 4093;
      (*values)[i] = static_cast<double>(static_cast<float>((*values)[i] * 0.96 + fine / 64));
    }
  }
  const AttentionOutputs expected = testing::reference_forward(inputs);
  KernelRun run;
  const auto add = [&](const Values& values, std::int64_t seq, std::int64_t heads, std::int64_t dim) {
    return dense_view(run.add(DType::f32, values), 0, {1, seq, heads, dim});
  };
  const View q = add(inputs.q, 70, 2, 72), k = add(inputs.k, 130, 1, 72), v = add(inputs.v, 130, 1, 136),
             out = add(Values(std::size_t{70} * 2 * 136, kUnused), 70, 2, 136),
             lse = dense_view(run.add(DType::f32, Values(140, kUnused)), 0, {1, 2, 70});
  run.run_on_gpu(AttentionForward{q, k, v, out, lse, problem.scale, problem.slices});
  // As above, with eight roundings more for each product of vectors, and of weights and values.
  const double score = score_error(problem) + 8 * kRounding * problem.scale * 72,
               weight = weight_error(problem) + 2 * (score - score_error(problem)) + 8 * kRounding;
  const double terms = 132, rescalings = 132.0 / 64 + 2;
  const double error = weight * (1 + rescalings) + (terms + 8) * kRounding + rescalings * 4 * kRounding;
  const auto worst_of = [](const Values& actual, const Values& all, std::size_t count) {
    double worst = 0;
    for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, std::abs(actual[i] - all[i]));
    return worst;
  };
  const Values outs = run.gpu_values(out), sums = run.gpu_values(lse);
  EXPECT_LE(worst_of(outs, expected.out, outs.size()), 2 * error);
  EXPECT_LE(worst_of(sums, expected.lse, sums.size()), error + score);
  // These bounds take every error to have the same sign, and so do not tell two parts from one. The first row
  // sees one key: its output is a value times 1, and its lse a score. Errors of the 72 products of a score
  // have either sign: they add up to some 8.5 times that of one, and to more than 36 times in a case of 10^4.
  EXPECT_LE(worst_of(outs, expected.out, std::size_t{2} * 136), (8 + 2) * kRounding);
  EXPECT_LE(worst_of(sums, expected.lse, sums.size()),
            36 * (8 + 1) * kRounding * problem.scale + 4 * kRounding);
  std::cout << "[ F32      ] out is off by at most " << worst_of(outs, expected.out, outs.size()) / kRounding
            << " roundings, in the first row by "
            << worst_of(outs, expected.out, std::size_t{2} * 136) / kRounding << "; lse by "
            << worst_of(sums, expected.lse, sums.size()) / kRounding << "\n";
}

// ---- backward ----

TEST(GpuAttentionBackward, IsTheDefinition) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const Problem problem = any_problem();
    const AttentionShape& shape = problem.shape;
    const DType dtype = any_floating(), gradient_dtype = any_floating();
    const bool accumulate_dq = coin(), accumulate_dkv = coin();
    Attention attention(problem, dtype);
    const Values dout_values = testing::small_fractions(shape.out_numel(), 4);
    const AttentionOutputs forward = testing::reference_forward(attention.inputs);
    const AttentionGradients expected = testing::reference_backward(attention.inputs, dout_values);
    const View out = attention.holding(shape.q_len, shape.q_heads, shape.v_head_dim, forward.out, DType::f32),
               dout = attention.holding(shape.q_len, shape.q_heads, shape.v_head_dim, dout_values,
                                        any_floating());
    const View lse = attention.rows(forward.lse), delta = attention.rows(Values(forward.lse.size(), kUnused));
    const View dq = attention.like(attention.q, 0.5, gradient_dtype),
               dk = attention.like(attention.k, 0.5, gradient_dtype),
               dv = attention.like(attention.v, 0.5, gradient_dtype);
    attention.run.run_on_gpu(AttentionDelta{out, dout, delta});
    // Some gradients, or all.
    const int asked = coin() ? 7 : *rc::gen::inRange(1, 8);
    const auto wanted = [&](int bit, const View& view) { return (asked & bit) != 0 ? view : View{}; };
    AttentionBackward kernel{attention.q,    attention.k,   attention.v,   dout,          lse,
                             delta,          wanted(1, dq), wanted(2, dk), wanted(4, dv), problem.scale,
                             problem.slices, accumulate_dq, accumulate_dkv};
    attention.set_scores(problem, kernel);
    attention.run.run_on_gpu(kernel);

    const auto expect_left = [&](int bit, const View& view) {
      if ((asked & bit) == 0) {
        const Values values = attention.run.gpu_values(view);
        RC_ASSERT(values == Values(values.size(), 0.5));
      }
      return (asked & bit) == 0;
    };
    const auto plus = [](Values values, bool accumulate) {
      for (double& value : values) value += accumulate ? 0.5 : 0;
      return values;
    };
    // p from the lse that was given in f32; dout v and delta are below v_head_dim, of as many terms.
    const auto v_dim = static_cast<double>(shape.v_head_dim), q_len = static_cast<double>(shape.q_len),
               k_len = static_cast<double>(shape.kv_len),
               group = static_cast<double>(shape.q_heads / shape.kv_heads);
    double greatest_lse = 0;
    for (const double value : forward.lse) {
      if (std::isfinite(value)) greatest_lse = std::max(greatest_lse, std::abs(value));
    }
    const double p_error = weight_error(problem) + 2 * greatest_lse * kRounding;
    // The derivative of a capped score: within 32 roundings, and its own is at most 0.77 / cap.
    const double slope_error =
        problem.softcap == 0 ? 0 : 32 * kRounding + 0.77 / problem.softcap * score_error(problem);
    const double factor = kept_factor(problem), ds = 2 * factor * v_dim * problem.scale,
                 ds_error = ds * (p_error + slope_error + (2 * v_dim + 8) * kRounding);
    // The weights of one query add up to 1; those of one key do not.
    if (!expect_left(1, dq))
      assert_near(attention.run.gpu_values(dq), plus(expected.dq, accumulate_dq),
                  ds_error + (k_len + 2) * ds * kRounding, gradient_dtype, "dq");
    const double rows = q_len * group;
    if (!expect_left(2, dk))
      assert_near(attention.run.gpu_values(dk), plus(expected.dk, accumulate_dkv),
                  rows * (ds_error + (rows + 2) * ds * kRounding), gradient_dtype, "dk");
    if (!expect_left(4, dv))
      assert_near(attention.run.gpu_values(dv), plus(expected.dv, accumulate_dkv),
                  factor * rows * (p_error + (rows + 2) * kRounding), gradient_dtype, "dv");
  }));
}

// ---- what is not seen ----

// Queries 1..3 see keys 0..2, below the diagonal, and queries 70..80 keys 63..74, two each; nothing else is
// read.
Problem with_padding() {
  return {{1, 90, 75, 2, 1, 3, 5},
          {{0, 4, 0, 5, Kind::causal, -1, 0}, {70, 11, 60, 15, Kind::window, 4, 2}},
          0.5};
}

Values with_nans(Values values, std::int64_t row_size, const std::function<bool(std::int64_t)>& is_seen) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_seen(static_cast<std::int64_t>(i) / row_size)) values[i] = std::nan("");
  }
  return values;
}
bool query_is_seen(std::int64_t row) { return (row > 0 && row < 4) || (row >= 70 && row < 81); }
bool key_is_seen(std::int64_t row) { return row < 3 || (row >= 63 && row < 75); }

TEST(GpuAttention, WhatNoSliceTouchesDoesNotMatter) {
  CP_SKIP_WITHOUT_GPU();
  const Problem problem = with_padding();
  const AttentionInputs inputs = inputs_of(problem);
  const Values dout = testing::small_fractions(problem.shape.out_numel(), 4);
  const AttentionOutputs forward = testing::reference_forward(inputs);
  const AttentionGradients gradients = testing::reference_backward(inputs, dout);
  KernelRun run;
  const auto add = [&](const Values& values, std::int64_t seq, std::int64_t heads, std::int64_t dim) {
    return dense_view(run.add(DType::f32, values), 0, {1, seq, heads, dim});
  };
  const View q = add(with_nans(inputs.q, 2 * 3, query_is_seen), 90, 2, 3),
             k = add(with_nans(inputs.k, 3, key_is_seen), 75, 1, 3),
             v = add(with_nans(inputs.v, 5, key_is_seen), 75, 1, 5);
  const View d = add(with_nans(dout, 2 * 5, query_is_seen), 90, 2, 5),
             out = add(Values(900, kUnused), 90, 2, 5);
  const View dq = add(Values(540, kUnused), 90, 2, 3), dk = add(Values(225, kUnused), 75, 1, 3),
             dv = add(Values(375, kUnused), 75, 1, 5);
  const auto rows = [&](const Values& values) {
    return dense_view(run.add(DType::f32, values), 0, {1, 2, 90});
  };
  const View lse = rows(Values(180, kUnused)), final_lse = rows(forward.lse);
  Values delta_values(180, 0);
  for (std::int64_t i = 0; i < 90 * 2 * 5; ++i) {
    const std::int64_t row = i / 10, head = i / 5 % 2;
    delta_values[static_cast<std::size_t>(head * 90 + row)] +=
        forward.out[static_cast<std::size_t>(i)] * dout[static_cast<std::size_t>(i)];
  }
  const View delta = rows(delta_values);
  run.run_on_gpu(AttentionForward{q, k, v, out, lse, problem.scale, problem.slices});
  run.run_on_gpu(AttentionBackward{q, k, v, d, final_lse, delta, dq, dk, dv, problem.scale, problem.slices});
  const auto expect = [&](const View& view, const Values& expected) {
    const Values actual = run.gpu_values(view);
    // Some 30 roundings of values below 2.
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      ASSERT_NEAR(actual[i], expected[i], 60 * kRounding) << view.buffer << " " << i;
    }
  };
  expect(out, forward.out), expect(lse, forward.lse);
  expect(dq, gradients.dq), expect(dk, gradients.dk), expect(dv, gradients.dv);
}

// Padded queries have an lse of -inf and no gradient, though a slice covers them.
TEST(GpuAttentionBackward, QueriesWithoutWeightHaveNoGradient) {
  CP_SKIP_WITHOUT_GPU();
  KernelRun run;
  const double nan = std::nan("");
  const auto add = [&](const Values& values, Shape shape) {
    return dense_view(run.add(DType::f32, values), 0, std::move(shape));
  };
  const View q = add({1, nan}, {1, 2, 1, 1}), k = add({1}, {1, 1, 1, 1}), v = add({1}, {1, 1, 1, 1});
  const View dout = add({1, nan}, {1, 2, 1, 1}), lse = add({1, -kInfinity}, {1, 1, 2}),
             delta = add({0, nan}, {1, 1, 2});
  const View dq = add({kUnused, kUnused}, {1, 2, 1, 1}), dk = add({kUnused}, {1, 1, 1, 1}),
             dv = add({kUnused}, {1, 1, 1, 1});
  run.run_on_gpu(
      AttentionBackward{q, k, v, dout, lse, delta, dq, dk, dv, 1, {{0, 2, 0, 1, Kind::full, 0, 0}}});
  EXPECT_EQ(run.gpu_values(dq), (Values{1, 0}));
  EXPECT_EQ(run.gpu_values(dk), Values{1});
  EXPECT_EQ(run.gpu_values(dv), Values{1});
}

// Steps made for a library that finds delta from out run without the library.
TEST(GpuAttentionBackward, FindsDeltaWhereNoneIsGiven) {
  CP_SKIP_WITHOUT_GPU();
  const AttentionShape shape{2, 70, 70, 2, 1, 8, 16};
  const Problem problem{shape, {{0, 70, 0, 70, Kind::causal, 0, 0}}, 0.5};
  const AttentionInputs inputs = inputs_of(problem);
  const AttentionOutputs forward = testing::reference_forward(inputs);
  KernelRun run;
  const auto add = [&](const Values& values, std::int64_t heads, std::int64_t dim) {
    return dense_view(run.add(DType::f32, values), 0, {2, 70, heads, dim});
  };
  const auto rows = [&](const Values& values) {
    return dense_view(run.add(DType::f32, values), 0, {2, 2, 70});
  };
  const View q = add(inputs.q, 2, 8), k = add(inputs.k, 1, 8), v = add(inputs.v, 1, 16),
             out = add(forward.out, 2, 16), dout = add(testing::small_fractions(shape.out_numel(), 4), 2, 16);
  const View lse = rows(forward.lse), delta = rows(Values(280, kUnused));
  const auto gradients = [&] {
    return std::vector<View>{add(Values(2240, kUnused), 2, 8), add(Values(1120, kUnused), 1, 8),
                             add(Values(2240, kUnused), 1, 16)};
  };
  const std::vector<View> given = gradients(), found = gradients();
  run.run_on_gpu(AttentionDelta{out, dout, delta});
  AttentionBackward kernel{q, k, v, dout, lse, delta, given[0], given[1], given[2], 0.5, problem.slices};
  run.run_on_gpu(kernel);
  kernel.dq = found[0], kernel.dk = found[1], kernel.dv = found[2], kernel.delta = {}, kernel.out = out;
  kernel.engine = AttentionEngine::fused;
  run.run_on_gpu([&](const runtime::CudaMemory& memory) {
    const runtime::PreparedKernel prepared = runtime::prepare(kernel, memory);
    prepared(0, nullptr);
    CP_CUDA(cudaDeviceSynchronize());
  });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(run.gpu(found[i].buffer), run.gpu(given[i].buffer)) << i;
}

TEST(GpuAttentionForward, LargeScoresDoNotOverflow) {
  CP_SKIP_WITHOUT_GPU();
  KernelRun run;
  const auto add = [&](const Values& values, Shape shape) {
    return dense_view(run.add(DType::f32, values), 0, std::move(shape));
  };
  const View q = add({100}, {1, 1, 1, 1}), k = add({100, 99}, {1, 2, 1, 1}), v = add({1, 2}, {1, 2, 1, 1});
  const View out = add({kUnused}, {1, 1, 1, 1}), lse = add({kUnused}, {1, 1, 1});
  run.run_on_gpu(AttentionForward{q, k, v, out, lse, 1, {{0, 1, 0, 2, Kind::full, 0, 0}}});
  EXPECT_EQ(run.gpu_values(out), Values{1});
  EXPECT_EQ(run.gpu_values(lse), Values{10000});
}

TEST(GpuAttention, WithoutHeadsOrRowsDoesNothing) {
  CP_SKIP_WITHOUT_GPU();
  KernelRun run;
  const BufferId some = run.add(DType::f32, Values(4, 1)), empty = run.add(DType::f32, Values());
  const View heads{empty, 0, {1, 2, 0, 2}, {0, 0, 2, 1}, {}}, rows{empty, 0, {1, 0, 2}, {0, 2, 1}, {}};
  run.run_on_gpu(AttentionForward{heads, heads, heads, heads, rows, 1, {{0, 2, 0, 2, Kind::full, 0, 0}}});
  EXPECT_EQ(run.gpu_values(some), Values(4, 1));
}

// Slices far outside of the diagonal, as plans from files may have them.
TEST(GpuAttentionForward, TakesAnyDiagonal) {
  CP_SKIP_WITHOUT_GPU();
  for (const std::int64_t diagonal :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min() / 2}) {
    KernelRun run;
    const auto add = [&](const Values& values, Shape shape) {
      return dense_view(run.add(DType::f32, values), 0, std::move(shape));
    };
    const View q = add({0}, {1, 1, 1, 1}), k = add({0, 0}, {1, 2, 1, 1}), v = add({1, 3}, {1, 2, 1, 1});
    const View out = add({kUnused}, {1, 1, 1, 1}), lse = add({kUnused}, {1, 1, 1});
    run.run_on_gpu(AttentionForward{q, k, v, out, lse, 1, {{0, 1, 0, 2, Kind::causal, diagonal, 0}}});
    EXPECT_EQ(run.gpu_values(out), Values{diagonal > 0 ? 2.0 : 0.0});
  }
}

}  // namespace
}  // namespace cp
