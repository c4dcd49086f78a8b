// Attention by the rates of the kernel that the software runs.
#include "sim/cost/timeline/attention_cost.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/widths.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

SoftwareProfile with_kernels(const char* names) {
  SoftwareProfile software;
  software.attention_kernel = names;
  return software;
}

// Causal, of one sequence.
KernelWork prefill(double seq_len, double heads, double group, double head_dim, bool backward = false) {
  KernelWork work;
  work.attention.heads = heads, work.attention.group = group;
  work.attention.causal = {seq_len * (seq_len + 1) / 2, seq_len, 1, seq_len};
  work.diagonal_pairs = heads * work.attention.causal.pairs;
  work.flops = (backward ? 10 : 4) * head_dim * work.diagonal_pairs;
  work.rows = seq_len * group;
  return work;
}

TEST(AttentionCost, TheKernelDecides) {
  const Cluster cluster = find_cluster("dgx-h100");
  const KernelWork work = prefill(16384, 32, 4, 128);
  const auto ms = [&](const char* kernel) {
    return AttentionCost(cluster, with_kernels(kernel)).ns(work, 128, false) / 1e6;
  };
  // Left out of the fit: 3.3104 ms by vLLM's FlashAttention 3. FlashAttention 2 reaches 376 TFLOP/s on the
  // H800.
  EXPECT_NEAR(ms("fa3"), 3.31, 0.15 * 3.31);
  EXPECT_NEAR(ms("fa2"), 2 * 128 * 32 * 16384.0 * 16384 / 376e9, 0.15 * 5.8);
  EXPECT_LT(ms("fa3"), ms("fa2"));
  EXPECT_EQ(AttentionCost(cluster, with_kernels("any")).kernel(), "fa3");
}

TEST(AttentionCost, FewTilesLeaveMultiprocessorsIdle) {
  const Cluster cluster = find_cluster("dgx-h100");
  const AttentionCost cost(cluster, with_kernels("fa3"));
  const double one = cost.ns(prefill(4096, 1, 1, 128), 128, false),
               many = cost.ns(prefill(4096, 32, 4, 128), 128, false);
  EXPECT_GT(one, many / 32 * 2) << "a head of 32 takes more than twice its share alone";
}

TEST(AttentionCost, HeadSizesBetweenTwoLieBetweenThemAndAreLessSure) {
  const Cluster cluster = find_cluster("dgx-h100");
  const AttentionCost cost(cluster, with_kernels("fa3"));
  const auto tflops = [&](int d) {
    const KernelWork work = prefill(8192, 32, 4, d);
    return work.flops / cost.ns(work, d, false) / 1e3;
  };
  EXPECT_GT(tflops(96), tflops(64));
  EXPECT_LT(tflops(96), tflops(128));
  EXPECT_GT(cost.width(96, false), std::max(cost.width(64, false), cost.width(128, false)));
  EXPECT_GT(cost.width(512, false), 1.9 * cost.width(256, false));
  EXPECT_GT(cost.width(32, false), cost.width(64, false) + 0.1);
  EXPECT_GT(cost.width(16, false), cost.width(32, false) + 0.1) << "two doublings below";
  // Six points of a picture lie within 1 % of their curve, and say nothing of other shapes.
  EXPECT_EQ(AttentionCost(cluster, with_kernels("cudnn")).width(64, false), widths::kKernelElsewhere);
}

// The products of a pair take as long as its head is large; its softmax takes as long in all. From 64 and 128
// columns follows 32.
TEST(AttentionCost, SmallerHeadsReachLessOfThePeak) {
  const Cluster cluster = find_cluster("dgx-a100");
  const AttentionCost cost(cluster, with_kernels("fa2"));
  const auto us_of_pairs = [&](int d) {
    const KernelWork work = prefill(1 << 20, 32, 1, d);
    return cost.ns(work, d, false) / work.diagonal_pairs;
  };
  EXPECT_NEAR(us_of_pairs(32), us_of_pairs(64) - (us_of_pairs(128) - us_of_pairs(64)) / 2,
              1e-3 * us_of_pairs(32));
  EXPECT_NEAR(us_of_pairs(96), (us_of_pairs(64) + us_of_pairs(128)) / 2, 1e-3 * us_of_pairs(96));
  const KernelWork work = prefill(1 << 20, 32, 1, 32);
  const double tflops = work.flops / cost.ns(work, 32, false) / 1e3;
  EXPECT_LT(tflops, 0.9 * 213) << "what heads of 64 columns approach";
  EXPECT_GT(tflops, 0.5 * 213) << "no head takes longer than a larger one";
}

// flash_attention_a800_h800.csv has all lengths: the last tiles of a few heads are hidden by nothing.
TEST(AttentionCost, FlashAttention2OfOneLongHeadWaitsForItsLastTiles) {
  const Cluster cluster = find_cluster("dgx-a100");
  const AttentionCost cost(cluster, with_kernels("fa2"));
  const double two = cost.ns(prefill(131072, 2, 1, 128), 128, false),
               many = cost.ns(prefill(131072, 64, 1, 128), 128, false);
  EXPECT_NEAR(two / (many / 32), 1 + 2.0 * 128 * 108 / (2 * 131072), 0.01);
}

TEST(AttentionCost, BackwardHasItsOwnRateOrAShareOfForward) {
  const Cluster h100 = find_cluster("dgx-h100"), b200 = find_cluster("hgx-b200");
  const KernelWork forward = prefill(65536, 32, 4, 128), backward = prefill(65536, 32, 4, 128, true);
  const auto ratio = [&](const Cluster& cluster, const char* kernel) {
    const AttentionCost cost(cluster, with_kernels(kernel));
    return 2.5 * cost.ns(forward, 128, false) / cost.ns(backward, 128, true);
  };
  EXPECT_NEAR(ratio(b200, "trtllm"), AttentionCost::kBackwardShare, 0.01);
  EXPECT_NEAR(ratio(h100, "fa3"), 593.0 / 689, 0.02) << "what the two rates approach";
  const AttentionCost of_b200(b200, with_kernels("trtllm"));
  EXPECT_GE(of_b200.width(128, true), widths::kBorrowed);
  EXPECT_LT(of_b200.width(128, false), 0.2);
}

TEST(AttentionCost, ALowerClockAndABorrowedRateScale) {
  const Cluster h100 = find_cluster("dgx-h100"), slow = find_cluster("h100-96gb-500w");
  const KernelWork work = prefill(1 << 20, 8, 8, 128);
  const AttentionCost fast(h100, with_kernels("fa3")), limited(slow, with_kernels("fa3"));
  EXPECT_NEAR(fast.ns(work, 128, false) / limited.ns(work, 128, false), slow.gpu.sustained_clock, 1e-3);
  // end_to_end.csv: FlashAttention 3 alone, causal, a million tokens, 540 TFLOP/s.
  EXPECT_NEAR(work.flops / limited.ns(work, 128, false) / 1e3, 540, 0.06 * 540);
  EXPECT_GE(limited.width(128, false), widths::kBorrowed);
}

// The bound of the search stands on it.
RC_GTEST_PROP(AttentionCost, NothingIsFasterThanTheLeast, ()) {
  static const char* const kClusters[] = {"dgx-h100", "hgx-b200", "dgx-a100", "h800", "generic", "l20-pcie"};
  static const char* const kKernels[] = {"any", "fa2", "fa3", "trtllm", "cudnn", "flashinfer"};
  const Cluster cluster = find_cluster(kClusters[pick("cluster", rc::gen::inRange(0, 6))]);
  const AttentionCost cost(cluster, with_kernels(kKernels[pick("kernels", rc::gen::inRange(0, 6))]));
  const bool backward = pick("backward", rc::gen::arbitrary<bool>());
  const int head_dim = pick("head_dim", rc::gen::inRange(16, 300));
  const double heads = pick("heads", rc::gen::inRange(1, 64)), group = pick("group", rc::gen::inRange(1, 9));
  KernelWork work;
  work.attention.heads = heads, work.attention.group = group;
  double rows = 0;
  for (MaskPart* part : {&work.attention.full, &work.attention.causal, &work.attention.window}) {
    const double q = pick("queries", rc::gen::inRange(0, 1 << 14)),
                 k = pick("keys", rc::gen::inRange(1, 1 << 16));
    if (q == 0) continue;
    *part = {part == &work.attention.full ? q * k : q * k / 2, q, 1, k};
    rows += q;
  }
  work.full_pairs = heads * work.attention.full.pairs;
  work.diagonal_pairs = heads * (work.attention.causal.pairs + work.attention.window.pairs);
  work.rows = rows * group;
  work.bytes_per_key = heads / group * head_dim * 4;
  const double pairs = work.full_pairs + work.diagonal_pairs;
  AttentionSum sum{.pairs = pairs, .flops_per_pair = (backward ? 10.0 : 4.0) * head_dim};
  work.flops = sum.flops_per_pair * pairs;
  sum.rows = heads * rows, sum.most_keys = 1 << 16, sum.pairs_at_once = pairs;
  sum.few_rows = work.rows <= 512;
  RC_ASSERT(cost.least_ns(sum, head_dim, backward) <= cost.ns(work, head_dim, backward) * (1 + 1e-12));
}

TEST(KernelCost, DecodingHasItsOwnRate) {
  const Cluster cluster = find_cluster("dgx-h100");
  const SoftwareProfile software = with_kernels("fa3");
  KernelWork work;
  work.attention.heads = 32 * 32, work.attention.group = 4;
  work.attention.full = {16384, 1, 1, 16384};
  work.full_pairs = 1024 * 16384.0, work.flops = 4 * 128 * work.full_pairs, work.rows = 4;
  work.bytes_per_key = 32 * 8 * 128 * 4;
  // vLLM's FlashAttention 3 with 32 sequences of 16,384 tokens, 32 and 8 heads: 689 us.
  EXPECT_NEAR(AttentionCost(cluster, software).ns(work, 128, false) / 1e3, 689, 0.1 * 689);
}

TEST(KernelCost, OperandsInEightBitsAreHalfAsManyBytes) {
  const Cluster h100 = find_cluster("dgx-h100");
  SoftwareProfile b16, fp8;
  fp8.linear_precision = LinearPrecision::fp8;
  const KernelWork decode = product_work(16, 8192, 8192), train = product_work(16384, 8192, 8192);
  const auto us = [&](const SoftwareProfile& software, const Cluster& cluster, KernelWork work) {
    work.bytes = 2 * ((work.m + work.n) * work.k + work.m * work.n);
    return KernelCost(cluster, software).product_ns(work, DType::bf16) / 1e3;
  };
  // Left out of the fits: 50 us of TensorRT-LLM in 16 bits; of 16384 x 8192 x 8192 3.1 ms in 16 bits and 1.8
  // ms in 8 bits.
  EXPECT_NEAR(us(b16, h100, decode), 49.8, 0.1 * 49.8);
  EXPECT_NEAR(us(b16, h100, train) / us(fp8, h100, train), 1.6, 0.2);
  // Without rates bytes of 8 bits count too.
  Cluster bare = find_cluster("generic");
  bare.gpu.tflops_fp8 = 2000;
  const double weights_ns = 8192.0 * 8192 / bare.gpu.hbm_gbps;
  EXPECT_LT(us(fp8, bare, decode) * 1e3, 1.6 * weights_ns);
  EXPECT_GT(us(b16, bare, decode) * 1e3, 2 * weights_ns);
}

}  // namespace
}  // namespace cp::sim
