// Rates of experts, latent and linear attention, and attention in 8 bits: their formulas, their text, and
// what they are used for.
#include "sim/cost/cluster/layer_rates.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/transformer/step_plan.h"
#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_rates.h"
#include "sim/cost/timeline/expert_cost.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/cost/timeline/widths.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

template <class Rate, class Wanted>
const Rate& one_of(const std::vector<Rate>& rates, const Wanted& wanted) {
  for (const Rate& rate : rates) {
    if (wanted(rate)) return rate;
  }
  throw InvalidInput("no such rate");
}

// ---- formulas

ExpertRate round_experts() {
  ExpertRate rate;
  rate.kernel = "k", rate.floor_us = 10, rate.tflops = 100, rate.memory_share = 0.5, rate.blend = 100;
  return rate;
}

TEST(ExpertRate, FewRowsCostTheMatricesOfTheExpertsThatHaveThem) {
  const ExpertRate rate = round_experts();
  // 1000 x 1000 in 16 bits at 500 bytes/ns: 4 us each; rows are 4 and 4 KB more.
  const double one = expert_products_us(rate, {1, 1, 1000, 1000}, 1000, 1),
               eight = expert_products_us(rate, {8, 8, 1000, 1000}, 1000, 1);
  EXPECT_NEAR(one, 4.008, 1e-9);
  EXPECT_NEAR(eight, 8 * one, 1e-9);
  EXPECT_NEAR(expert_products_us(rate, {8, 1, 1000, 1000}, 1000, 1), 4.064, 1e-9)
      << "one expert has all rows";
  ExpertRate in_8_bits = rate;
  in_8_bits.bits = 8;
  EXPECT_NEAR(expert_products_us(in_8_bits, {1, 1, 1000, 1000}, 1000, 1), 2.006, 1e-9);
}

TEST(ExpertRate, ManyRowsCostTheirFlopsAndWhatIsStartedForEachExpert) {
  ExpertRate rate = round_experts();
  EXPECT_NEAR(expert_products_us(rate, {1e6, 8, 1000, 1000}, 1e9, 1), 2e4, 1e-6);
  EXPECT_NEAR(expert_products_us(rate, {1e6, 8, 1000, 1000}, 1e9, 0.5), 4e4, 1e-6)
      << "a GPU of half the speed";
  rate.startup_rows = 1000;
  EXPECT_NEAR(expert_products_us(rate, {1e6, 8, 1000, 1000}, 1e9, 1), 2e4 * 1.008, 1e-6);
}

TEST(LatentRate, DecodingReadsOneRowForAllHeads) {
  LatentRate rate;
  rate.decode = true, rate.qk_dim = 576, rate.v_dim = 512;
  rate.floor_us = 5, rate.tflops = 1000, rate.tile_rows = 16, rate.blend = 100, rate.memory_share = 1;
  const auto us = [&](double heads) { return latent_us(rate, {2, heads, 1, 1e6}, 100, 1000, 1); };
  EXPECT_NEAR(us(16), 5 + 2 * 1e6 * 576 * 2 / 1e6, 1e-6);
  EXPECT_DOUBLE_EQ(us(1), us(16)) << "a tile is computed whole";
  EXPECT_NEAR(us(1024), 5 + 2 * 1024 * 1e6 * 2 * 1088 / 1e9, 1e-3) << "bound by flops";
  rate.cache_bits = 8;
  EXPECT_NEAR(us(16), 5 + 2 * 1e6 * 576 / 1e6, 1e-6);
}

TEST(LinearRate, ChainsGoOverTheMultiprocessorsInTurns) {
  LinearRate rate;
  rate.floor_us = 5, rate.token_us = 0.1, rate.tile_rows = 64, rate.blend = 100, rate.memory_share = 1;
  const auto us = [&](double sequences, double tokens) {
    return linear_us(rate, gated_delta_call(sequences, tokens, 1, 1, 128), 100, 1e9);
  };
  EXPECT_NEAR(us(1, 1000), 105, 1e-6);
  EXPECT_NEAR(us(100, 1000), 105, 1e-6);
  EXPECT_NEAR(us(101, 1000), 205, 1e-6) << "a second turn";
  EXPECT_NEAR(us(1, 1), 5 + 6.4, 1e-6) << "a tile is computed whole";
}

TEST(Resident, WhatFitsIntoTheCacheComesFaster) {
  const Resident none, cache{1, 4};
  EXPECT_EQ(none.us(1 << 22, 1024), 4096);
  EXPECT_EQ(cache.us(1 << 20, 1024), 256);
  EXPECT_EQ(cache.us(1 << 22, 1024), 3 * 1024 + 256);
}

TEST(DecodeRate, WideGroupsPassOverTheirKeysMoreOften) {
  DecodeRate rate;
  EXPECT_EQ(rate.passes(128), 1) << "nothing is known of them";
  rate.widest_group = 32, rate.wide_passes = 30;
  EXPECT_EQ(rate.passes(32), 1);
  EXPECT_EQ(rate.passes(33), 30);
}

TEST(ProductRate, LongOnesAreUnderThePowerLimit) {
  ProductRate rate;
  rate.tflops = 100, rate.memory_share = 1, rate.blend = 100;
  const double cool = product_us(rate, 1 << 15, 1 << 15, 1 << 15, 1e9, 1);
  rate.sustained_share = 0.8, rate.sustained_us = cool;
  EXPECT_NEAR(product_us(rate, 1 << 15, 1 << 15, 1 << 15, 1e9, 1), cool * 1.125, 1e-6 * cool);
  EXPECT_NEAR(product_us(rate, 256, 256, 256, 1e9, 1), 2 * 256.0 * 256 * 256 / 1e8, 1e-6)
      << "short ones are not";
}

// Measured times of rows that were left out of the fits.
TEST(LayerRates, ArePublishedTimes) {
  const Rates h100 = find_rates("h100-sxm");
  const auto near = [](double predicted, double measured) {
    EXPECT_NEAR(predicted / measured, 1, 0.15) << measured;
  };
  const ExpertRate& experts = one_of(h100.experts, [](const ExpertRate& rate) { return rate.bits == 16; });
  near(expert_layer_us(experts, {128, 8, 64, 16, 6144, 2048}, h100.hbm_gbps, 1), 509.659);
  near(expert_layer_us(experts, {768, 8, 1994.62, 40, 6144, 2560}, h100.hbm_gbps, 1), 1578.48);
  near(expert_layer_us(experts, {8192, 2, 16384, 8, 6144, 16384}, h100.hbm_gbps, 1), 19575.8);
  const LatentRate& decode =
      one_of(h100.latent, [](const LatentRate& rate) { return rate.decode && rate.cache_bits == 16; });
  near(latent_us(decode, {128, 32, 1, 512}, h100.sms, h100.hbm_gbps, 1), 46.416);
  const LatentRate& context =
      one_of(h100.latent, [](const LatentRate& rate) { return !rate.decode && rate.cache_bits == 8; });
  near(latent_us(context, {1, 1, 32768, 32768}, h100.sms, h100.hbm_gbps, 1), 740.123);
}

TEST(LayerRates, TablesOfRowsLeftOutAreScored) {
  for (const char* name :
       {"experts_16", "experts_8", "attention_8", "latent_attention", "linear_attention"}) {
    const ErrorSummary scored = validate_table(name).summary(false);
    EXPECT_GE(scored.rows, 290) << name;
    EXPECT_LT(scored.median, 0.12) << name;
  }
  for (const ValidationRow& row : validate_table("experts_8").rows)
    EXPECT_THAT(row.what, HasSubstr(" 8 bits, "));
}

// ---- text

constexpr const char* kLayerRatesText = R"(gpu: "mine"
tflops_16: 100
hbm_gbps: 1000
sms: 10
experts { kernel: "triton" bits: 16 floor_us: 5 tflops: 50 startup_rows: 10 memory_share: 0.9 origin: measured source: "x" }
latent { kernel: "trtllm" decode: true qk_dim: 576 v_dim: 512 floor_us: 5 tflops: 50 tile_rows: 16 memory_share: 0.9 origin: measured source: "x" }
linear { kernel: "gated_delta" floor_us: 5 token_us: 0.1 tile_rows: 64 memory_share: 0.9 origin: measured source: "x" }
attention { kernel: "fa9" head_dim: 64 bits: 8 floor_us: 5 tflops: 150 startup_keys: 100 tile_rows: 128 origin: measured source: "x" }
decode { kernel: "fa9" head_dim: 64 floor_us: 5 memory_share: 0.9 widest_group: 8 wide_passes: 2 resident_mib: 50 resident_speed: 3 origin: measured source: "x" }
)";

TEST(LayerRatesText, IsReadAndWritten) {
  const Rates rates = read_rates(kLayerRatesText, "a.txtpb");
  EXPECT_EQ(rates.experts.at(0).startup_rows, 10);
  EXPECT_EQ(rates.latent.at(0).cache_bits, 16) << "unset";
  EXPECT_EQ(rates.linear.at(0).chains_at_once, 1) << "unset";
  EXPECT_EQ(rates.attention.at(0).bits, 8);
  EXPECT_EQ(rates.decode.at(0).passes(9), 2);
  EXPECT_EQ(rates.decode.at(0).resident, (Resident{50, 3}));
  EXPECT_EQ(rates_of(message_of(rates)), rates);
  for (const std::string& name : rates_names()) {
    const Rates preset = find_rates(name);
    EXPECT_EQ(rates_of(message_of(preset)), preset) << name;
    EXPECT_FALSE(preset.experts.empty() || preset.latent.empty() || preset.linear.empty()) << name;
  }
}

TEST(LayerRatesText, ErrorsHaveTheirPlaceAndWhatIsAllowed) {
  const struct {
    const char *from, *to, *error;
  } cases[] = {
      {"tflops: 50 startup_rows", "tflops: 0 startup_rows",
       "a.txtpb:5:1: experts[0].tflops: 0 is not in [1e-06, 1e+06]"},
      {"tflops: 50 startup_rows: 10", "tflops: 101 startup_rows: 10",
       "a.txtpb:5:49: experts[0].tflops: 101 is above tflops_16, 100"},
      {"bits: 16", "bits: 4", "a.txtpb:5:28: experts[0].bits: 4 is neither 16 nor 8"},
      {"startup_rows: 10", "startup_rows: -10", "experts[0].startup_rows: -10 is not in [0, 1e+07]"},
      {"experts { kernel: \"triton\" ", "experts { ",
       "a.txtpb:5:1: experts[0]: has no kernel; add, for example, kernel: \"triton\""},
      {"memory_share: 0.9 origin: measured source: \"x\" }\nlatent", "memory_share: 0.9 }\nlatent",
       "experts[0]: has neither origin nor source; add, for example, origin: published source: \"data "
       "sheet\""},
      {"memory_share: 0.9 origin: measured source: \"x\" }\nlatent",
       "memory_share: 0.9 source: \"x\" }\nlatent",
       "a.txtpb:5:1: experts[0]: has no origin; add origin: and one of measured, "},
      {"latent {",
       "experts { kernel: \"triton\" bits: 16 floor_us: 5 tflops: 50 memory_share: 0.9 origin: measured "
       "source: \"x\" "
       "}\nlatent {",
       "experts[1]: is a second rate of triton in 16 bits; keep one"},
      {"qk_dim: 576", "qk_dim: 0", "latent[0].qk_dim: 0 is not in [1, 65536]"},
      {"tile_rows: 16 memory_share: 0.9", "tile_rows: 16", "latent[0].memory_share: 0 is not in [1e-06, 1]"},
      {"token_us: 0.1", "token_us: -1", "linear[0].token_us: -1 is not in [0, 1e+07]"},
      {"tflops: 150", "tflops: 250", "attention[0].tflops: 250 is above twice tflops_16, 200"},
      {"head_dim: 64 bits: 8", "head_dim: 64 backward: true bits: 8",
       "attention[0].bits: of a backward pass; only forward is known in 8"},
      {"wide_passes: 2", "wide_passes: 0.5", "decode[0].wide_passes: 0.5 is not in [1, 1000]"},
      {"resident_speed: 3", "", "decode[0].resident_speed: 0 is not in [1, 1000]"},
      {"linear {", "linear_ {", "the nearest one is 'linear'"},
  };
  for (const auto& each : cases) {
    std::string text = kLayerRatesText;
    const std::size_t at = text.find(each.from);
    ASSERT_NE(at, std::string::npos) << each.from;
    text.replace(at, std::string(each.from).size(), each.to);
    EXPECT_THAT(message_of([&] { read_rates(text, "a.txtpb"); }), HasSubstr(each.error)) << text;
  }
}

// ---- experts of a plan

Plan plan_of(std::string_view layout, int experts) {
  StepRequest request = cp::testing::small_request(layout);
  if (experts > 0) request.model.experts = Experts{experts, 2, 24};
  return step_plan(request, StepPart::micro_batch, 0, 0);
}

// 48 rows: 12 for each of 4 experts, which one step multiplies; or 10 for each of 5, of which the last one
// has 8 and a step of its own.
TEST(GroupedProducts, AreThoseOfExperts) {
  for (const int experts : {4, 5}) {
    const Plan plan = plan_of("dp_shard=1", experts);
    const GroupedProducts grouped(plan);
    int calls = 0, within = 0;
    for (const StepRef& ref : steps_of(plan)) {
      within += grouped.is_within(ref.id);
      const GroupedCall* call = grouped.begun_by(ref.id);
      if (call == nullptr) continue;
      ++calls;
      EXPECT_THAT(ref.step->label, HasSubstr("expert"));
      EXPECT_EQ(call->products, experts);
      EXPECT_EQ(call->rows, 2 * 24) << ref.step->label << ": two experts of each of 24 tokens";
      EXPECT_EQ(call->n * call->k, ref.step->label.find("down") != std::string::npos ? 24 * 32 : 48 * 32)
          << ref.step->label;
      EXPECT_FALSE(grouped.is_within(ref.id));
    }
    EXPECT_GE(calls, 6) << "gate and up, down; and of both the gradients of inputs and matrices";
    EXPECT_EQ(within, experts == 4 ? 0 : calls);
    for (const StepRef& ref : steps_of(plan)) {
      if (ref.step->label.starts_with("expert ")) {
        EXPECT_TRUE(grouped.is_within(ref.id) || grouped.begun_by(ref.id) != nullptr) << ref.step->label;
      }
    }
  }
}

TEST(GroupedProducts, ADenseModelHasNone) {
  for (const char* layout : {"dp_shard=1", "dp_shard=2,tp=2", "cp=2,loss_chunks=4"}) {
    const Plan plan = plan_of(layout, 0);
    const GroupedProducts grouped(plan);
    for (const StepRef& ref : steps_of(plan)) {
      EXPECT_FALSE(grouped.is_within(ref.id) || grouped.begun_by(ref.id) != nullptr)
          << layout << ref.step->label;
    }
  }
}

// Blocks of rows that all meet one matrix are products of their own, and so are those between which something
// else runs.
TEST(GroupedProducts, HaveMatricesOfTheirOwnAndNothingBetweenThem) {
  const auto grouped = [](std::int64_t matrix_stride, bool fill_between) {
    PlanBuilder builder(0, host_target());
    const StreamId stream = builder.stream("compute");
    const BufferId rows = builder.input("rows", DType::bf16, 2 * 4 * 8),
                   matrices = builder.input("matrices", DType::bf16, 2 * 8 * 8),
                   out = builder.output("out", DType::bf16, 2 * 4 * 8),
                   other = builder.output("other", DType::bf16, 8);
    for (std::int64_t i = 0; i < 2; ++i) {
      builder.add(stream,
                  MatMul{dense_view(rows, i * 32, {4, 8}), dense_view(matrices, i * matrix_stride, {8, 8}),
                         dense_view(out, i * 32, {4, 8})});
      if (fill_between && i == 0) builder.add(stream, Fill{flat_view(other, 0, 8), 0});
    }
    const Plan plan = std::move(builder).build({});
    const GroupedProducts products(plan);
    const GroupedCall* call = products.begun_by(0);
    return call == nullptr ? 0.0 : call->products;
  };
  EXPECT_EQ(grouped(64, false), 2);
  EXPECT_EQ(grouped(0, false), 0);
  EXPECT_EQ(grouped(64, true), 0);
}

TEST(KernelCost, ExpertsAreOneCallWhereTheSoftwareMakesThemOne) {
  const Cluster h100 = find_cluster("dgx-h100"), generic = find_cluster("generic");
  const Plan plan = plan_of("dp_shard=1", 64);
  const GroupedProducts grouped(plan);
  SoftwareProfile apart;
  apart.expert_kernel = "none";
  const auto sum = [&](const Cluster& cluster, const SoftwareProfile& software) {
    const KernelCost cost(cluster, software);
    double ns = 0;
    for (const StepRef& ref : steps_of(plan)) {
      if (ref.step->label.starts_with("expert "))
        ns += cost.ns(ref.id, std::get<Kernel>(ref.step->work), plan, grouped);
    }
    return ns;
  };
  // 48 tiny products each: what is launched is what they take.
  EXPECT_LT(sum(h100, {}), 0.5 * sum(h100, apart));
  EXPECT_DOUBLE_EQ(sum(generic, {}), sum(generic, apart)) << "nothing was measured of it";
  const SoftwareProfile software;
  const KernelCost one(h100, software);
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel == nullptr || ref.step->label.starts_with("expert ")) continue;
    EXPECT_EQ(one.ns(ref.id, *kernel, plan, grouped), one.ns(*kernel, plan)) << ref.step->label;
  }
}

TEST(RankReplay, TheHostIssuesACallOfExpertsOnce) {
  const Cluster h100 = find_cluster("dgx-h100");
  const Plan plan = plan_of("dp_shard=1", 4);
  SoftwareProfile together, apart;
  together.kernel_issue_us = apart.kernel_issue_us = 1000;  // all wait for the host
  apart.expert_kernel = "none";
  const double once = replay_rank(plan, h100, together).time_ns,
               each = replay_rank(plan, h100, apart).time_ns;
  double more = 0;  // products of a call beside its first one
  const GroupedProducts grouped(plan);
  for (const StepRef& ref : steps_of(plan)) {
    if (const GroupedCall* call = grouped.begun_by(ref.id))
      more += static_cast<double>(ref.count) * (call->products - 1);
  }
  EXPECT_GT(more, 0);
  EXPECT_NEAR(each - once, more * 1e6, 0.01 * more * 1e6);
}

TEST(ExpertCost, TheSoftwareNamesItsKernel) {
  Cluster cluster = find_cluster("dgx-h100");
  ExpertRate other = cluster.rates.experts.front();
  other.kernel = "cutlass", other.left_out.p90 = 0.1;
  cluster.rates.experts.push_back(other);
  const auto of = [&](const char* names, int bits = 16) {
    const ExpertRate* rate = chosen_expert_rate(cluster, names, bits);
    return rate == nullptr ? "" : rate->kernel;
  };
  EXPECT_EQ(of("any"), "triton");
  EXPECT_EQ(of("cutlass, triton"), "cutlass");
  EXPECT_EQ(of("flashinfer, cutlass"), "cutlass");
  EXPECT_EQ(of("flashinfer"), "triton") << "none of them: the first";
  EXPECT_EQ(of("none"), "");
  EXPECT_EQ(of("cutlass", 8), "triton") << "of 8 bits there is one";
  SoftwareProfile software;
  software.expert_kernel = "cutlass";
  EXPECT_EQ(ExpertCost(cluster, software).width(), widths::eight_in_ten(other.left_out.median, 0.1));
  software.expert_kernel = "flashinfer";
  EXPECT_GE(ExpertCost(cluster, software).width(), widths::kBorrowed) << "another kernel was measured";
  software.expert_kernel = "none";
  EXPECT_EQ(ExpertCost(cluster, software).width(), 0);
  EXPECT_FALSE(ExpertCost(cluster, SoftwareProfile{}).groups(DType::f32));
}

// ---- attention in 8 bits

TEST(Attention8, HasRatesOfItsOwnOrIsRefused) {
  const Cluster h100 = find_cluster("dgx-h100"), a100 = find_cluster("dgx-a100"),
                generic = find_cluster("generic");
  SoftwareProfile fa3;
  fa3.attention_kernel = "fa3";
  const SoftwareProfile in_8 = with_attention_8(fa3, h100);
  EXPECT_EQ(in_8.attention_precision, LinearPrecision::fp8);
  KernelWork work;
  work.attention.heads = 32, work.attention.group = 4;
  work.attention.causal = {16384.0 * 16385 / 2, 16384, 1, 16384};
  work.diagonal_pairs = 32 * work.attention.causal.pairs, work.flops = 4 * 128 * work.diagonal_pairs;
  work.rows = 16384 * 4;
  const double b16 = AttentionCost(h100, fa3).ns(work, 128, false),
               b8 = AttentionCost(h100, in_8).ns(work, 128, false);
  EXPECT_LT(b8, 0.95 * b16);
  EXPECT_LT(AttentionCost(h100, in_8).width(128, false), 0.2);

  EXPECT_THAT(message_of([&] { with_attention_8(fa3, a100); }),
              AllOf(HasSubstr("dgx-a100 ("), HasSubstr("has no rate of attention in 8 bits"),
                    HasSubstr("use 16 bits")));
  EXPECT_THAT(message_of([&] { with_attention_8({}, generic); }),
              HasSubstr("has no rate of attention in 8 bits; use 16"));
  SoftwareProfile cudnn;
  cudnn.name = "mine", cudnn.attention_kernel = "cudnn";
  EXPECT_THAT(message_of([&] { with_attention_8(cudnn, h100); }),
              AllOf(HasSubstr("has no rate of cudnn, which mine runs, in 8 bits; it has them of"),
                    HasSubstr("use --kernels")));
  // Asked for nevertheless, 16 bits are a guess.
  cudnn.attention_precision = LinearPrecision::fp8, cudnn.attention_kernel = "fa2";
  EXPECT_EQ(AttentionCost(a100, cudnn).width(128, false), widths::kUnmeasured);
}

}  // namespace
}  // namespace cp::sim
