// Steps of serving software, and tokens of servers that read prompts on the same GPUs.
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/search.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

PlanQuestion serving_question(const std::string& software, std::int64_t requests) {
  PlanQuestion question;
  question.model = load_model("llama-3.1-8b").model;
  question.cluster = find_cluster("hgx-h200", 1);
  question.software = find_software(software);
  question.workload.phase = Phase::decode;
  question.workload.cached = 1000, question.workload.new_tokens = 200;
  question.workload.seq_len = 1200;
  question.workload.global_batch = requests;
  return question;
}

ParallelLayout tensor_parallel(int tp, std::int64_t requests) {
  ParallelLayout layout;
  layout.tp = tp, layout.dp_replicate = 8 / tp, layout.micro_batch = requests / layout.dp_replicate;
  return layout;
}

double part(const Candidate& candidate, TimePart wanted) {
  double us = 0;
  for (const PartTime& each : candidate.parts) us += each.part == wanted ? each.us : 0;
  return us;
}

TEST(Aggregated, TokensWaitForTheHostAndForPromptsOfOthers) {
  PlanQuestion question = serving_question("vllm", 64);
  question.software.step_host_us = 500, question.software.request_host_us = 10;
  const ParallelLayout layout = tensor_parallel(8, 64);
  const Candidate alone = Evaluator(question).evaluate(layout);
  question.aggregated = Arrivals::spread;
  const Candidate served = Evaluator(question).evaluate(layout);
  EXPECT_FALSE(alone.ttft_us);
  ASSERT_TRUE(served.ttft_us);
  EXPECT_NEAR(part(served, TimePart::host_between_steps), 500 + 64 * 10, 1e-6);
  EXPECT_GT(part(served, TimePart::prompts_of_others), 0);
  EXPECT_GT(served.step_us, alone.step_us + 1140);
  EXPECT_GT(*served.ttft_us, served.step_us);
  // The parts are the step, and so is its chain of operations.
  double sum = 0;
  for (const PartTime& each : served.parts) sum += each.us;
  EXPECT_NEAR(sum, served.step_us, 1e-6 * served.step_us);
  EXPECT_NEAR(served.chains.front().sum(), served.step_us, 1e-6 * served.step_us);
}

// The column and the limit are of the same time.
TEST(Aggregated, TheLimitIsOfTheFirstTokenThatIsShown) {
  PlanQuestion question = serving_question("vllm", 64);
  question.aggregated = Arrivals::spread;
  const PlanAnswer all = search_layouts(question);
  const double best_us = all.best.front().ttft_us.value();
  question.max_ttft_ms = best_us / 1e3 * (1 - 1e-9);
  const PlanAnswer limited = search_layouts(question);
  EXPECT_NE(to_string(limited.best.front().layout), to_string(all.best.front().layout));
  for (const Candidate& candidate : limited.all) EXPECT_LT(candidate.ttft_us.value(), best_us);
  question.max_ttft_ms = 1e-3;
  EXPECT_THROW(search_layouts(question), Infeasible);
}

// While it is written an answer is half as long as in the end.
TEST(Aggregated, AttentionReadsThePromptAndHalfOfTheAnswer) {
  PlanQuestion question = serving_question("trtllm", 64);
  const ParallelLayout layout = tensor_parallel(8, 64);
  question.workload.new_tokens = 100, question.workload.seq_len = 1100;
  const double half_us = part(Evaluator(question).evaluate(layout), TimePart::attention);
  question.workload.new_tokens = 200, question.workload.seq_len = 1200;
  question.aggregated = Arrivals::spread;
  EXPECT_DOUBLE_EQ(part(Evaluator(question).evaluate(layout), TimePart::attention), half_us);
}

TEST(Aggregated, AReplicaHasItsPartOfTheRequests) {
  PlanQuestion question = serving_question("trtllm", 64);
  question.aggregated = Arrivals::spread;
  const double one_of_eight = Evaluator(question).evaluate(tensor_parallel(1, 64)).step_us;
  question.cluster = find_cluster("hgx-h200", 1);
  question.workload.global_batch = 8;
  ParallelLayout alone = tensor_parallel(8, 8);
  alone.tp = 1, alone.dp_replicate = 8, alone.micro_batch = 1;
  EXPECT_GT(one_of_eight, Evaluator(question).evaluate(alone).step_us) << "eight requests at once, and one";
}

TEST(Aggregated, MemoryCountsTheFormatsThatAreStored) {
  PlanQuestion question = serving_question("trtllm", 64);
  const ParallelLayout layout = tensor_parallel(8, 64);
  const auto memory = [&] {
    return memory_of({question.model, question.workload, layout}, memory_rules(question));
  };
  const Memory b16 = memory();
  question.software.linear_precision = LinearPrecision::fp8, question.software.fp8_cache = true;
  const Memory fp8 = memory();
  EXPECT_EQ(fp8.kv_cache * 2, b16.kv_cache);
  EXPECT_LT(fp8.parameters, 0.65 * static_cast<double>(b16.parameters));
  question.software.linear_precision = LinearPrecision::nvfp4;
  EXPECT_LT(memory().parameters, 0.8 * static_cast<double>(fp8.parameters));
  EXPECT_EQ(linear_dtype_name(question), "nvfp4");
  EXPECT_EQ(cache_dtype_name(question), "fp8");
}

// With all-reduces of the software's own, sums that ride along and stored operands too.
RC_GTEST_PROP(ServingBound, IsBelowTheTimeline, ()) {
  PlanQuestion question =
      serving_question(pick("software", rc::gen::element<std::string>("trtllm", "vllm", "sglang")), 64);
  question.software.framework = "none";
  question.software.linear_precision =
      pick("precision", rc::gen::element(LinearPrecision::b16, LinearPrecision::fp8));
  question.software.fp8_cache = pick("whether the cache is fp8", rc::gen::arbitrary<bool>());
  if (pick("whether it is aggregated", rc::gen::arbitrary<bool>())) question.aggregated = Arrivals::spread;
  if (pick("whether it is a prefill", rc::gen::arbitrary<bool>())) {
    question.workload.phase = Phase::prefill, question.aggregated.reset();
    question.workload.cached = question.workload.new_tokens = 0;
  }
  const LayoutSpace space(question);
  const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
  const ParallelLayout layout = pick("layout", rc::gen::elementOf(space.members(family)));
  RC_PRE(!refuse(question.model, question.workload, layout));
  const StepBound bound(question);
  RC_LOG() << to_string(layout);
  RC_ASSERT(bound.ns(layout) <= Evaluator(question).evaluate(layout).step_us * 1e3);
  RC_ASSERT(bound.family_ns(family) <= bound.ns(layout) * (1 + 1e-12));
}

TEST(Aggregated, AreSearched) {
  PlanQuestion question = serving_question("trtllm", 64);
  question.aggregated = Arrivals::spread;
  const PlanAnswer answer = search_layouts(question, {});
  ASSERT_FALSE(answer.best.empty());
  const Candidate& best = answer.best.front();
  for (const Candidate& other : answer.all)
    EXPECT_LE(best.step_us, other.step_us * 1.006) << to_string(other.layout);
  EXPECT_GT(best.high_us, best.low_us);
}

}  // namespace
}  // namespace cp::sim
