// The merge of attention's results and the row sums of its gradients, against the host's.
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "shared/base/text.h"
#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::any_floating;
using testing::any_of;
using testing::any_view;
using testing::coin;
using testing::extent_of;
using testing::half_ulp;
using testing::KernelRun;
using testing::kInfinity;
using testing::kRounding;
using testing::pick;

struct RowShape {
  std::int64_t batch = 1, seq = 1, heads = 1, dim = 1;
  Shape view() const { return {batch, seq, heads, dim}; }
  Shape statistic() const { return {batch, heads, seq}; }
};
RowShape any_rows() {
  return {pick<std::int64_t>(0, 3), any_of<std::int64_t>({1, 2, 7, 33}), any_of<std::int64_t>({1, 2, 3, 5}),
          any_of<std::int64_t>({0, 1, 3, 4, 8, 20, 64, 72, 130})};
}

std::vector<double> values_for(const View& view, std::uint64_t seed) {
  return testing::small_fractions(extent_of(view), seed);
}

TEST(GpuAttentionDelta, IsTheHostsWithinTheRoundingOfSums) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RowShape shape = any_rows();
    const View out = any_view(0, shape.view(), false), dout = any_view(1, shape.view(), false),
               delta = any_view(2, shape.statistic(), true);
    KernelRun run;
    run.add(any_floating(), values_for(out, 1)), run.add(any_floating(), values_for(dout, 2));
    run.add(DType::f32, std::vector<double>(static_cast<std::size_t>(extent_of(delta)), 96));
    run.run(AttentionDelta{out, dout, delta});
    const auto host = run.host_values(2), gpu = run.gpu_values(2);
    // The sum of dim products below 1, in two orders: each within dim * rounding of the exact one, Higham
    // (2002), 3.1.
    const auto dim = static_cast<double>(shape.dim);
    for (std::size_t i = 0; i < host.size(); ++i)
      RC_ASSERT(std::abs(gpu[i] - host[i]) <= 2 * dim * dim * kRounding);
  }));
}

TEST(GpuAttentionSinkGradient, IsTheHostsWithinTheRoundingOfSums) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RowShape shape = any_rows();
    const View out = any_view(0, shape.view(), false), dout = any_view(1, shape.view(), false),
               lse = any_view(2, shape.statistic(), false), sinks = any_view(3, {shape.heads}, false),
               dsinks = any_view(4, {shape.heads}, true);
    KernelRun run;
    run.add(any_floating(), values_for(out, 1)), run.add(any_floating(), values_for(dout, 2));
    run.add(DType::f32, values_for(lse, 3)), run.add(DType::f32, values_for(sinks, 4));
    run.add(DType::f32, std::vector<double>(static_cast<std::size_t>(extent_of(dsinks)), 96));
    run.run(AttentionSinkGradient{sinks, lse, out, dout, dsinks});
    const auto host = run.host_values(4), gpu = run.gpu_values(4);
    // Each row's term is below e^2 dim; its sum of dim products, its exponential and their product round, on
    // both sides, and at last the sum.
    const auto dim = static_cast<double>(shape.dim), rows = static_cast<double>(shape.batch * shape.seq);
    for (std::size_t i = 0; i < host.size(); ++i)
      RC_ASSERT(std::abs(gpu[i] - host[i]) <= 2 * (dim + 8) * std::exp(2) * dim * rows * kRounding);
  }));
}

// A sink is a part of zeros with one number for all rows of a head, by views of stride 0.
TEST(GpuAttentionMerge, TakesPartsThatAreTheSameForAllRows) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RowShape shape = any_rows();
    const View in{0, 0, shape.view(), {0, 0, 0, 1}, {}}, in_lse{1, 0, shape.statistic(), {0, 1, 0}, {}},
        out = any_view(2, shape.view(), true), lse = any_view(3, shape.statistic(), true);
    const DType out_dtype = any_floating();
    KernelRun run;
    run.add(any_floating(), values_for(flat_view(0, 0, shape.dim), 1));
    run.add(DType::f32, values_for(flat_view(1, 0, shape.heads), 2));
    run.add(out_dtype, values_for(out, 3)), run.add(DType::f32, values_for(lse, 4));
    run.run(AttentionMerge{in, in_lse, out, lse});
    const auto host = run.host_values(2), gpu = run.gpu_values(2);  // bounds as below
    for (std::size_t i = 0; i < host.size(); ++i)
      RC_ASSERT(std::abs(gpu[i] - host[i]) <= 2 * (2 * 14 * kRounding) + 2 * half_ulp(out_dtype, host[i]));
    const auto host_lse = run.host_values(3), gpu_lse = run.gpu_values(3);
    for (std::size_t i = 0; i < host_lse.size(); ++i)
      RC_ASSERT(std::abs(gpu_lse[i] - host_lse[i]) <=
                2 * (8 * kRounding + half_ulp(DType::f32, host_lse[i])));
  }));
}

TEST(GpuAttentionMerge, IsTheHostsWithinTheRoundingOfWeights) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RowShape shape = any_rows();
    const View in = any_view(0, shape.view(), false), in_lse = any_view(1, shape.statistic(), false),
               out = any_view(2, shape.view(), true), lse = any_view(3, shape.statistic(), true);
    const DType out_dtype = any_floating();
    AttentionMerge merge{in, in_lse, out, lse};
    KernelRun run;
    const auto lse_values = [](const View& view) {
      std::vector<double> values;
      for (std::int64_t i = extent_of(view); i > 0; --i) {
        values.push_back(any_of<double>({-kInfinity, 0, 1.5, -3, 40, -40, 0.1, 8}));
      }
      return values;
    };
    run.add(any_floating(), values_for(in, 1)), run.add(DType::f32, lse_values(in_lse));
    run.add(out_dtype, values_for(out, 2)), run.add(DType::f32, lse_values(lse));
    BufferId next = 4;
    for (auto more = pick<std::size_t>(0, kMostMerged - 1); more > 0; --more) {
      merge.more.push_back(any_view(next++, shape.view(), false));
      run.add(any_floating(), values_for(merge.more.back(), 5 + more));
      merge.more_lse.push_back(any_view(next++, shape.statistic(), false));
      run.add(DType::f32, lse_values(merge.more_lse.back()));
    }
    run.run(merge);
    // A weight is two exponentials (of one rounding, twice that on a GPU), a sum of up to four and a
    // quotient: within 10 roundings on each side. Each product and sum adds one more, with a share of the
    // weights, which are 1 together; values are below 1.
    const auto host = run.host_values(2), gpu = run.gpu_values(2);
    for (std::size_t i = 0; i < host.size(); ++i) {
      RC_ASSERT(std::abs(gpu[i] - host[i]) <= 2 * (2 * 14 * kRounding) + 2 * half_ulp(out_dtype, host[i]));
    }
    const auto host_lse = run.host_values(3), gpu_lse = run.gpu_values(3);
    for (std::size_t i = 0; i < host_lse.size(); ++i) {
      RC_ASSERT(gpu_lse[i] == host_lse[i] || std::abs(gpu_lse[i] - host_lse[i]) <=
                                                 2 * (8 * kRounding + half_ulp(DType::f32, host_lse[i])));
    }
  }));
}

// Without lse: each sum is one rounding of f32 in the same order, so no bit differs.
TEST(GpuAttentionMerge, GradientsAddUpAsOnTheHost) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RowShape shape = any_rows();
    KernelRun run;
    BufferId next = 0;
    const auto part = [&](bool written) {
      const View view = any_view(next++, shape.view(), written);
      run.add(any_floating(), values_for(view, static_cast<std::uint64_t>(next)));
      return view;
    };
    AttentionMerge merge;
    merge.out = part(true), merge.in = part(false);
    for (auto more = pick<std::size_t>(0, kMostMerged - 1); more > 0; --more)
      merge.more.push_back(part(false));
    run.run(merge);
    RC_ASSERT(run.gpu_values(0) == run.host_values(0));
  }));
}

// What has no weight is not looked at.
TEST(GpuAttentionMerge, NothingToAddChangesNothing) {
  CP_SKIP_WITHOUT_GPU();
  KernelRun run;
  const double nan = std::nan("");
  run.add(DType::f32, std::vector<double>(8, nan)), run.add(DType::f32, {-kInfinity, -kInfinity});
  run.add(DType::f32, {1, 2, 3, 4, 0, 0, 0, 0}), run.add(DType::f32, {1.5, -kInfinity});
  run.run(AttentionMerge{dense_view(0, 0, {1, 2, 1, 4}), dense_view(1, 0, {1, 1, 2}),
                         dense_view(2, 0, {1, 2, 1, 4}), dense_view(3, 0, {1, 1, 2})});
  EXPECT_EQ(run.gpu_values(2), (std::vector<double>{1, 2, 3, 4, 0, 0, 0, 0}));
  EXPECT_EQ(run.gpu_values(3), (std::vector<double>{1.5, -kInfinity}));
}

// Each kernel for parts of one dtype that lie in packs, and some rows that packs do not fit.
TEST(GpuAttentionMerge, TakesPartsOfOneDtypeInPacks) {
  CP_SKIP_WITHOUT_GPU();
  const std::vector<std::pair<DType, DType>> in_and_out = {
      {DType::f32, DType::f32}, {DType::f16, DType::f16},  {DType::bf16, DType::bf16},
      {DType::f16, DType::f32}, {DType::bf16, DType::f32}, {DType::f32, DType::bf16}};
  const std::int64_t batch = 2, seq = 37, heads = 3;
  for (const auto& [in, out] : in_and_out) {
    for (std::size_t parts = 1; parts <= kMostMerged; ++parts) {
      for (const std::int64_t dim : {20, 24, 128}) {
        KernelRun run;
        AttentionMerge merge;
        BufferId next = 0;
        const std::int64_t rows = batch * seq * heads;
        const auto add = [&](DType dtype, View& view, View& lse) {
          const auto seed = static_cast<std::uint64_t>(next);
          view = dense_view(next++, 0, {batch, seq, heads, dim});
          run.add(dtype, testing::small_fractions(rows * dim, seed));
          lse = dense_view(next++, 0, {batch, heads, seq});
          std::vector<double> values = testing::small_fractions(rows, seed + 1);
          for (std::size_t i = seed; i < values.size(); i += 5) values[i] = -kInfinity;
          run.add(DType::f32, values);
        };
        add(out, merge.out, merge.lse);
        add(in, merge.in, merge.in_lse);
        merge.more.resize(parts - 1), merge.more_lse.resize(parts - 1);
        for (std::size_t i = 0; i + 1 < parts; ++i) add(in, merge.more[i], merge.more_lse[i]);
        run.run(merge);
        for (const BufferId written : {0, 1}) {
          const auto host = run.host_values(written), gpu = run.gpu_values(written);
          const DType dtype = written == 0 ? out : DType::f32;
          for (std::size_t i = 0; i < host.size(); ++i) {
            // As above.
            ASSERT_TRUE(gpu[i] == host[i] ||
                        std::abs(gpu[i] - host[i]) <= 56 * kRounding + 2 * half_ulp(dtype, host[i]))
                << name(in) << " into " << name(out) << ", " << parts << " parts of " << dim << ": " << gpu[i]
                << " and not " << host[i] << " at " << i << " of buffer " << written;
          }
        }
      }
    }
  }
}

// Rows in more than one block, and more packs in a row than a block has threads.
TEST(GpuAttentionMerge, TakesManyRowsAndLongOnes) {
  CP_SKIP_WITHOUT_GPU();
  for (const auto& [rows, dim] : std::vector<std::pair<std::int64_t, std::int64_t>>{{700, 16}, {3, 9000}}) {
    KernelRun run;
    const std::int64_t numel = rows * dim;
    run.add(DType::bf16, testing::small_fractions(numel, 1)),
        run.add(DType::f32, testing::small_fractions(rows, 2));
    run.add(DType::f32, testing::small_fractions(numel, 3)),
        run.add(DType::f32, testing::small_fractions(rows, 4));
    run.run(AttentionMerge{dense_view(0, 0, {1, rows, 1, dim}), dense_view(1, 0, {1, 1, rows}),
                           dense_view(2, 0, {1, rows, 1, dim}), dense_view(3, 0, {1, 1, rows})});
    const auto host = run.host_values(2), gpu = run.gpu_values(2);
    for (std::size_t i = 0; i < host.size(); ++i)
      ASSERT_NEAR(gpu[i], host[i], 44 * kRounding) << rows << " " << i;
  }
}

}  // namespace
}  // namespace cp
