// Laws of steps, flows and small nodes: what they compare with is right by hand, and they fail where a value
// is wrong.
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/transformer/memory_reading.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/fold.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/fair_rates.h"
#include "sim/fuzz/features.h"
#include "sim/fuzz/laws.h"
#include "sim/fuzz/shrink.h"
#include "sim/fuzz/timeline_law.h"
#include "sim/scenario/model_step.h"
#include "tests/fuzz_cases/case_of.h"
#include "traces/fuzz_case.h"

namespace cp::sim {
namespace {

using testing::case_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepRequest step(const std::string& layout, const std::string& more = "") {
  return make_step_request(
      case_of("model { layout: \"" + layout +
              "\" hidden: 64 layers: 4 q_heads: 4 kv_heads: 4 head_dim: 16 intermediate: 64 vocab: 64 "
              "seq_len: 64 global_batch: 8 " +
              more + " }")
          .model());
}

// What the law says of it; empty: it holds.
template <class Law>
std::string finding(const Law& law) {
  const proto::FuzzCase none;
  const Trial trial(none);
  try {
    law(trial);
  } catch (const PropertyFailure& failure) {
    return failure.what();
  }
  return "";
}

// ---- flows ----

constexpr double kNone = std::numeric_limits<double>::infinity();

TEST(FairRates, ByHand) {
  const std::vector<double> capacities = {10, 4};
  const auto rates = [&](const std::vector<SharingFlow>& flows) { return fair_rates(capacities, flows); };
  EXPECT_THAT(rates({{{0}, kNone}, {{0}, kNone}}), ElementsAre(5, 5));
  EXPECT_THAT(rates({{{0}, 2}, {{0}, kNone}}), ElementsAre(2, 8)) << "the other one has what is left";
  EXPECT_THAT(rates({{{0, 1}, kNone}, {{1}, kNone}, {{0}, kNone}}), ElementsAre(2, 2, 8));
  EXPECT_THAT(rates({{{}, 3}, {{1}, 4}}), ElementsAre(3, 4)) << "no link holds the first one";
}

TEST(FlowsCase, HoldsAndIsRefusedWhereItIsNone) {
  const auto judged = [](const std::string& flows) -> std::string {
    try {
      const Judgement judgement = judge(case_of("flows { capacities: 10 capacities: 4 " + flows + " }"));
      return judgement.finding ? judgement.finding->message() : "holds";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  };
  EXPECT_EQ(judged("flows { links: 0 bytes: 100 limit: 2 } flows { links: [0, 1] bytes: 10 begin_ns: 3 }"),
            "holds");
  EXPECT_EQ(judged("flows { links: 0 bytes: 100 change_ns: 5 then_limit: 1 } flows { bytes: 1 limit: 7 }"),
            "holds");
  EXPECT_THAT(judged("flows { links: 2 bytes: 1 }"), HasSubstr("flow 0 crosses links 2 of 2"));
  EXPECT_THAT(judged("flows { links: [1, 1] bytes: 1 }"), HasSubstr("each once"));
  EXPECT_THAT(judged("flows { bytes: 1 }"), HasSubstr("a limit of 0"));
  EXPECT_THAT(judged("flows { links: 1 bytes: 0 }"), HasSubstr("bytes above 0"));
  EXPECT_THAT(judged("flows { links: 1 bytes: 1 begin_ns: 4 change_ns: 3 then_limit: 1 }"),
              HasSubstr("from 3 ns on"));
}

TEST(FlowsCase, ShrinksToTheFlowsThatMatter) {
  const proto::FuzzCase large = case_of(
      "flows { capacities: [10, 4, 2] flows { links: 1 bytes: 9 } flows { links: [0, 2] bytes: 9 limit: 1 } "
      "flows { links: 2 bytes: 7 begin_ns: 3 change_ns: 5 then_limit: 1 } }");
  ShrinkOptions options;
  options.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  options.still_fails = [](const proto::FuzzCase& next) -> std::optional<proto::FuzzCase> {
    for (const auto& flow : next.flows().flows()) {
      if (flow.limit() > 0 && flow.links_size() > 0) return next;
    }
    return std::nullopt;
  };
  const proto::FuzzCase small = shrink(large, options);
  EXPECT_EQ(small.flows().flows_size(), 1) << write_case_text(small);
  EXPECT_EQ(small.flows().capacities_size(), 1);
  EXPECT_EQ(small.flows().flows(0).links(0), 0) << "with the number that the link has now";
}

TEST(FlowsCase, IsDrawnAndHasFeatures) {
  std::set<int> features;
  for (std::uint64_t number = 0; number < 1500; ++number) {
    const proto::FuzzCase drawn = draw_case(FuzzTarget::model, 3, number);
    if (!drawn.has_flows()) continue;
    EXPECT_FALSE(judge(drawn).finding) << write_case_text(drawn);
    for (const int feature : features_of(drawn)) features.insert(feature);
  }
  std::size_t values = 0;
  for (const FeatureGroup& group : feature_groups(proto::FuzzCase::kFlows)) values += group.values.size();
  EXPECT_EQ(features.size(), values) << "every choice is taken";
}

// ---- texts ----

TEST(StepLaws, LayoutsWithEachFieldAtManyValues) {
  const StepRequest request = step("cp=4,strategy=ring");
  const std::vector<ParallelLayout> all = neighbours(request.layout);
  const auto count = [&](const auto& has) { return std::count_if(all.begin(), all.end(), has); };
  for (const int n : {1, 2, 3}) {
    EXPECT_GT(count([&](const ParallelLayout& layout) { return layout.loss_chunks == n; }), 0) << n;
    EXPECT_GT(count([&](const ParallelLayout& layout) { return layout.micro_batch == n; }), 0) << n;
    EXPECT_GT(count([&](const ParallelLayout& layout) { return layout.virtual_stages == n; }), 0) << n;
  }
  EXPECT_GT(count([](const auto& layout) { return layout.recompute.kind == Recompute::Kind::selective; }), 0);
  EXPECT_GT(count([](const auto& layout) { return layout.strategy.core == Core::pass_q; }), 0);
  EXPECT_EQ(finding([&](const Trial& trial) { check_layout_texts(request, trial); }), "");
}

// ---- pairs ----

TEST(StepLaws, PairsOneByOneByHand) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 4, problem.causal = true;
  EXPECT_EQ(pairs_one_by_one(problem, index_range(0, 4), false), 1 + 2 + 3 + 4);
  EXPECT_EQ(pairs_one_by_one(problem, index_range(2, 4), false), 3 + 4);
  EXPECT_EQ(pairs_one_by_one(problem, index_range(2, 4), true), 2 + 1);
  problem.window = 2;
  EXPECT_EQ(pairs_one_by_one(problem, index_range(0, 4), false), 1 + 2 + 2 + 2);
  problem.q_len = 2;  // the last two
  EXPECT_EQ(pairs_one_by_one(problem, index_range(0, 2), false), 2 + 2);
  for (const char* more : {"", "window: 5", "phase: prefill cached: 32"}) {
    const StepRequest request = step("cp=4,strategy=all_gather,balance=head_tail", more);
    EXPECT_EQ(finding([&](const Trial& trial) { check_pairs(request, trial); }), "") << more;
  }
}

// ---- memory ----

TEST(StepLaws, MemoryIsWhatPlansDeclare) {
  const StepRequest request = step("dp_shard=2");
  const MemoryRules rules{.loss_f32_copies = 0};
  MemoryReading reading(request, rules);
  std::vector<Plan> parts;
  for (const StepPart part : parts_of(request)) {
    parts.push_back(step_plan(request, part, 0, 0));
    reading.add(part, 0, memory_of_plan(parts.back()));
  }
  const auto law = [&](const Trial& trial) { check_declared(reading.memory(), parts, trial); };
  EXPECT_EQ(finding(law), "");
  for (Plan& plan : parts) plan.arena_bytes += 1;
  EXPECT_THAT(finding(law), HasSubstr("bytes are read"));
}

// ---- pipelines ----

TEST(StepLaws, PassesOfAPipeline) {
  const std::vector<StageTimes> stages = {{3, 5, 1, 1}, {2, 3, 1, 1}};
  const PipelineTimes right = run_pipeline(stages, 2, 3, true);
  const auto judged = [](const PipelineTimes& times) {
    return finding([&](const Trial& trial) { check_pipeline_times(times, 2, 2, 3, trial); });
  };
  EXPECT_EQ(judged(right), "");
  PipelineTimes wrong = right;
  wrong.chunks[0][1].begin_ns -= 1, wrong.chunks[0][1].end_ns -= 1;
  EXPECT_THAT(judged(wrong), HasSubstr("two passes at once"));
  wrong = right;
  wrong.chunks[0].pop_back();
  EXPECT_NE(judged(wrong), "");
  wrong = right;
  wrong.chunks[1][1].micro_batch = 0, wrong.chunks[1][1].backward = false;
  EXPECT_THAT(judged(wrong), HasSubstr("twice"));
  wrong = right;
  wrong.idle_ns[1] += 1;
  EXPECT_THAT(judged(wrong), HasSubstr("waits"));
  wrong = right;
  wrong.time_ns += 1, wrong.idle_ns[0] += 1, wrong.idle_ns[1] += 1;
  EXPECT_THAT(judged(wrong), HasSubstr("the last pass ends"));
  // The second stage begins at once, long before the first one hands it anything.
  wrong = right;
  wrong.chunks[1][0].begin_ns = 0, wrong.chunks[1][0].end_ns = 2;
  EXPECT_THAT(judged(wrong), HasSubstr("begins before"));
}

// ---- bounds ----

// Operations that are counted too often show where the bound leaves next to nothing out. Here a layer's
// forward products are seven parts for each row, the backward ones fourteen, attention one and two and a
// half, and a layer's share of the head three quarters: 25 in all, and 33 with what is computed again. Of
// that the bound leaves out a part, the last product, and everywhere a thousandth: 3.2 %.
TEST(StepLaws, BoundsAreTightWhereMultiplyingIsSlow) {
  for (const char* layout :
       {"tp=1", "cp=2,strategy=all_gather,balance=contiguous", "tp=2", "recompute=full"}) {
    const SlowTimes times = slow_times(step(layout), "");
    EXPECT_LE(times.bound_ns, times.step_ns) << layout;
    const double left_out = layout == std::string_view("recompute=full") ? 0.033 : 0.01;
    EXPECT_GT(times.bound_ns, (1 - left_out) * times.step_ns) << layout;
  }
}

// ---- small nodes ----

TEST(StepLaws, SmallNodesFoldWhatIsAlikeAndOnlyThat) {
  const auto fold = [](const char* layout) {
    const StepRequest request = step(layout);
    const std::vector<Plan> plans = plans_of_all_ranks(request, StepPart::micro_batch);
    EXPECT_EQ(finding([&](const Trial& trial) { check_timeline(plans, "dgx-h100", trial); }), "") << layout;
    return find_fold(plans, of_small_nodes(find_cluster("dgx-h100", 1), 2, 2));
  };
  for (const char* alike : {"dp_replicate=4", "dp_shard=2,dp_replicate=2", "tp=4"})
    EXPECT_TRUE(fold(alike).folded()) << alike;
  EXPECT_FALSE(fold("cp=4,strategy=all_gather,balance=contiguous").folded()) << "the last rows see most";
}

// ---- all of them ----

TEST(StepLaws, ACaseMayAskForEach) {
  for (const std::string_view law : laws_of(proto::FuzzCase::kModel)) {
    const Judgement judgement =
        judge(case_of("model { layout: \"pp=2,dp_shard=2,recompute=full\" hidden: 64 layers: 3 q_heads: 4 "
                      "kv_heads: 4 head_dim: 16 "
                      "intermediate: 64 vocab: 64 seq_len: 64 global_batch: 8 } laws: \"" +
                      std::string(law) + "\""));
    EXPECT_FALSE(judgement.finding) << law << ": " << judgement.finding->message();
  }
}

}  // namespace
}  // namespace cp::sim
