// How far rates may be off, and what times of attention over ranks hang on.
#include "sim/cost/timeline/rate_doubt.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/sourced_text.h"
#include "sim/cost/timeline/attention_cost.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/estimate.h"
#include "sim/cost/timeline/path_chains.h"
#include "sim/cost/timeline/widths.h"

namespace cp::sim {
namespace {

AttentionRequest ring(int cp, std::int64_t seq_len) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = seq_len;
  request.problem.q_heads = request.problem.kv_heads = 32;
  request.problem.head_dim = request.problem.v_head_dim = 128;
  request.problem.dtype = DType::bf16;
  request.problem.causal = true;
  request.strategy.balance = parse_balance("head_tail");
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

constexpr Origin kOrigins[] = {Origin::measured, Origin::published, Origin::estimated, Origin::assumed,
                               Origin::borrowed};

TEST(Origins, AreFirstHandWhereSomebodyLooked) {
  std::vector<std::string> words;
  for (const Origin origin : kOrigins) {
    words.push_back(to_string(origin));
    EXPECT_EQ(is_first_hand(origin), origin == Origin::measured || origin == Origin::published);
    EXPECT_NE(is_first_hand(origin), is_second_hand(origin));
    const Source source{"gpu.hbm_gbps", {origin, "x"}};
    EXPECT_EQ(is_first_hand(&source), is_first_hand(origin));
    EXPECT_EQ(is_second_hand(&source), is_second_hand(origin));
    EXPECT_EQ(is_borrowed(&source), origin == Origin::borrowed);
  }
  EXPECT_EQ(words, (std::vector<std::string>{"measured", "published", "estimated", "assumed", "borrowed"}));
  const Source* unknown = nullptr;
  EXPECT_FALSE(is_first_hand(unknown) || is_second_hand(unknown) || is_borrowed(unknown));
  EXPECT_EQ(to_string(Provenance{Origin::measured, "t.txt"}), "measured: t.txt");
}

// Whatever the source's words are: only the field counts.
TEST(Origins, AreNeverReadOutOfTheText) {
  for (const char* text : {"estimate: half of the peak", "assumed: none", "measured: a.csv", "borrowed"}) {
    const Cluster cluster = read_cluster(
        str("name: \"mine\" like: \"generic\" gpu { hbm_gbps { value: 1 origin: published source: \"", text,
            "\" } }"),
        "a.txtpb");
    EXPECT_EQ(cluster.source_of("gpu.hbm_gbps")->provenance, (Provenance{Origin::published, text}));
  }
}

// A curve of each kind with that origin.
Cluster with_curves(Origin origin) {
  const std::string known = str(" { origin: ", to_string(origin), " source: \"x\" ");
  return read_cluster(
      str("name: \"mine\" like: \"generic\"\nmatmul_efficiency", known,
          "point { x: 1e9 y: 0.5 } }\nmemory_efficiency", known,
          "point { x: 1e6 y: 0.5 } }\ntransfer { intra_node", known,
          "point { x: 1e6 y: 100 } } }\nattention { tflops", known,
          "point { x: 1e6 y: 200 } } }\ncollectives { operation: \"all_gather\" gpus: 8 time_us", known,
          "point { x: 1e6 y: 20 } point { x: 1e9 y: 4000 } } }\n"),
      "mine.txtpb");
}

TEST(Origins, WhatNobodyLookedAtHasTheWideInterval) {
  const std::vector<Rank> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const Origin origin : kOrigins) {
    const bool wide = origin != Origin::measured && origin != Origin::published;
    const Cluster cluster = with_curves(origin);
    const double kernel = wide ? widths::kBorrowed : widths::kKernelElsewhere;
    EXPECT_EQ(product_width(cluster, LinearPrecision::b16), kernel) << to_string(origin);
    EXPECT_EQ(AttentionCost(cluster, SoftwareProfile{}).width(128, false), kernel) << to_string(origin);
    EXPECT_EQ(transfer_width(cluster, false), wide ? widths::kBorrowed : widths::kTransferElsewhere)
        << to_string(origin);
    EXPECT_EQ(doubt_of(cluster, {}, 128)[Rate::memory], widths::deviation(kernel)) << to_string(origin);
    const CollectiveEstimate gather =
        collective_estimate(CollectiveKind::all_gather, 1 << 30, ranks, cluster);
    EXPECT_EQ(gather.curve, origin);
    EXPECT_NEAR(gather.high_us / gather.us, wide ? 1.30 : 1.05, 1e-9) << to_string(origin);
  }
}

TEST(Origins, OfARateCountBesideItsOwnErrors) {
  Cluster cluster = find_cluster("dgx-h100");
  const double own = product_width(cluster, LinearPrecision::b16);
  ASSERT_LT(own, widths::kBorrowed);
  for (ProductRate& rate : cluster.rates.product) rate.provenance.origin = Origin::estimated;
  EXPECT_EQ(product_width(cluster, LinearPrecision::b16), widths::kBorrowed);
  cluster = find_cluster("dgx-h100");
  set_source(cluster.sources, {"rates", {Origin::assumed, "x"}});
  EXPECT_EQ(product_width(cluster, LinearPrecision::b16), widths::kBorrowed);
}

TEST(Widths, EightInTenLieBetweenTheMedianAndTheNinetiethPercentile) {
  // Of an exponential distribution, a Weibull one, the quantiles are -log(1 - share).
  EXPECT_NEAR(widths::eight_in_ten(-std::log(0.5), -std::log(0.1)), -std::log(0.2), 1e-12);
  // And of one of exponent 2 their roots.
  EXPECT_NEAR(widths::eight_in_ten(std::sqrt(-std::log(0.5)), std::sqrt(-std::log(0.1))),
              std::sqrt(-std::log(0.2)), 1e-12);
  EXPECT_LT(widths::eight_in_ten(0.044, 0.156), 0.78 * 0.156)
      << "long tails: narrower than a normal distribution of that percentile";
  EXPECT_EQ(widths::eight_in_ten(0, 0.2), 0.2) << "no median is known";
  EXPECT_NEAR(std::exp(widths::kEightInTen * widths::deviation(0.2)), 1.2, 1e-12);
}

TEST(RateDoubt, HangsOnWhatTheNumbersRestOn) {
  const Cluster h800 = find_cluster("h800"), a100 = find_cluster("dgx-a100");
  EXPECT_EQ(transfer_width(h800, false), widths::kTransferElsewhere);
  EXPECT_EQ(transfer_width(a100, true), widths::kBorrowed) << "taken over from the A800";
  EXPECT_EQ(transfer_width(Cluster{}, true), widths::kUnmeasured);
  const Cluster h100 = find_cluster("dgx-h100");
  const Doubt prefill = doubt_of(h100, {}, 128), decode = doubt_of(h100, {}, 128, {.decode = true});
  EXPECT_NE(prefill[Rate::attention_forward], decode[Rate::attention_forward]) << "decoding has its own rate";
  EXPECT_EQ(prefill[Rate::network], decode[Rate::network]);
  for (const double deviation : prefill.of_rate) EXPECT_GT(deviation, 0);
}

TEST(RateDoubt, AnEightBitProductHasItsOwn) {
  const Cluster h100 = find_cluster("dgx-h100");
  EXPECT_NE(product_width(h100, LinearPrecision::b16), product_width(h100, LinearPrecision::fp8));
}

TEST(PathChains, AddUpToTheWholeTime) {
  const SoftwareProfile software = find_software("ring-flash-attention");
  for (const int cp : {1, 8, 16}) {
    const Cluster cluster = find_cluster("h800", cp > 8 ? 2 : 1);
    const AttentionEstimate estimate =
        estimate_attention(ring(cp, 8192 * cp), AttentionPass::forward, cluster, software);
    ASSERT_FALSE(estimate.chains.empty());
    ASSERT_LT(estimate.host_us, estimate.time_us);
    EXPECT_NEAR(estimate.chains[0].sum(), estimate.time_us, 1e-6 * estimate.time_us) << cp;
    EXPECT_EQ(estimate.chains.back()[Rate::host], estimate.host_us);
    EXPECT_GT(estimate.chains[0][Rate::attention_forward], (cp == 16 ? 0.1 : 0.5) * estimate.time_us);
    EXPECT_EQ(estimate.chains[0][Rate::attention_backward], 0);
    EXPECT_EQ(estimate.chains[0][Rate::network] > 0, cp == 16);
    // Kernels of one rank alone take no longer than all.
    for (const RateTimes& chain : estimate.chains) EXPECT_LE(chain.sum(), estimate.time_us * (1 + 1e-9));
    EXPECT_LT(estimate.low_us, estimate.time_us);
    EXPECT_GT(estimate.high_us, estimate.time_us);
  }
}

// What a kernel takes longer beside transfers is the transfers' time: of kernels that hide them all, if they
// could, nothing else is.
TEST(PathChains, TransfersThatSlowAKernelDownAreTransfers) {
  SoftwareProfile software = find_software("ring-flash-attention");
  const Cluster cluster = find_cluster("h800", 2);
  const auto moved_us = [&](double progress) {
    software.forward_progress = progress;
    const AttentionEstimate estimate =
        estimate_attention(ring(16, 1 << 20), AttentionPass::forward, cluster, software);
    return estimate.chains[0][Rate::network] + estimate.chains[0][Rate::latency];
  };
  EXPECT_GT(moved_us(0), 5 * moved_us(1));
}

// Calls in a row: the host issues the next one while the GPUs compute.
TEST(AttentionEstimate, AHostThatIsAheadCostsNothing) {
  SoftwareProfile software = find_software("ring-flash-attention"), ahead = software;
  ahead.captured_graphs = true;
  const Cluster cluster = find_cluster("h800");
  const auto us = [&](std::int64_t seq_len, const SoftwareProfile& by) {
    return estimate_attention(ring(8, seq_len), AttentionPass::forward, cluster, by).time_us;
  };
  EXPECT_EQ(us(131072, software), us(131072, ahead));
  const AttentionEstimate bound =
      estimate_attention(ring(8, 1024), AttentionPass::forward, cluster, software);
  EXPECT_EQ(bound.time_us, bound.host_us);
  EXPECT_GT(bound.time_us, us(1024, ahead)) << "a short one waits for it";
}

// A kernel alone is wrong by its own error; of several ranks the strategy's and the software's are added.
TEST(AttentionInterval, OfOneRankIsThatOfItsKernel) {
  const Cluster cluster = find_cluster("h800");
  const SoftwareProfile software = find_software("ring-flash-attention");
  const AttentionEstimate one = estimate_attention(ring(1, 65536), AttentionPass::forward, cluster, software),
                          eight =
                              estimate_attention(ring(8, 65536), AttentionPass::forward, cluster, software);
  const double kernel = 1 + widths::kKernelElsewhere;
  EXPECT_NEAR(one.high_us / one.time_us, kernel, 0.01 * kernel);
  EXPECT_GT(eight.high_us / eight.time_us, 1.02 * kernel);
}

}  // namespace
}  // namespace cp::sim
