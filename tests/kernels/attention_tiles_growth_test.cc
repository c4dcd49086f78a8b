// Errors of the tiled kernels do not grow with the sequence.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "shared/kernels/tiled_attention.h"
#include "tests/kernels/attention_memory.h"
#include "tests/kernels/tile_checks.h"

namespace cp {
namespace {

using namespace testing::tiles;
using testing::AttentionInputs;
using testing::AttentionMemory;
using testing::AttentionShape;

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

}  // namespace
}  // namespace cp
