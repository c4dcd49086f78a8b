// The tiled kernels of every instruction set against the definition: sizes at the edges of panels and tiles,
// all masks, dtypes and layouts.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/kernels/tiled_attention.h"
#include "tests/kernels/attention_memory.h"
#include "tests/kernels/tile_checks.h"

namespace cp {
namespace {

using namespace testing::tiles;
using testing::AttentionInputs;
using testing::AttentionMemory;
using testing::AttentionShape;
using testing::Order;

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
