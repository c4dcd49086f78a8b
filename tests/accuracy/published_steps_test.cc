#include "sim/accuracy/validate/published_steps.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/planner/models/read_model.h"

namespace cp::sim {
namespace {

using Metric = PublishedStep::Metric;

bool is_time(const PublishedStep& step) { return step.metric != Metric::peak_memory_gib; }

// As many of each kind as `cpsim validate` counts, in docs/accuracy.md too.
TEST(PublishedSteps, AreTheRowsOfTheTable) {
  int scored = 0, memory = 0, odd = 0;
  std::map<std::string, int> rows;  // by where they stand
  for (const PublishedStep& step : published_steps()) {
    ++rows[step.where];
    EXPECT_GT(step.measured, 0) << step.where;
    EXPECT_EQ(step.layout.world(), step.question.cluster.num_gpus()) << step.where;
    EXPECT_EQ(refuse(step.question.model, step.question.workload, step.layout), std::nullopt) << step.where;
    if (!step.oddity.empty()) {
      ++odd;
    } else {
      ++(!is_time(step) ? memory : scored);
    }
  }
  EXPECT_EQ(scored, 8);
  EXPECT_EQ(memory, 7);
  EXPECT_EQ(odd, 5);  // one without torch.compile; cp 4 and 8 under both balances
  EXPECT_EQ(rows.size(), 18U);
}

TEST(PublishedSteps, SayWhatWasMeasured) {
  const std::vector<PublishedStep> steps = published_steps();
  const PublishedStep& first = steps.front();
  EXPECT_EQ(first.what, "llama-3.1-8b, 8 GPUs, 32768 tokens, training, FP8 products");
  EXPECT_EQ(to_string(first.layout), "dp_shard=8,recompute=full");
  EXPECT_EQ(first.measured, 3890);
  EXPECT_EQ(unit_of(first.metric), "tokens/s/GPU");
  const auto meta = std::find_if(steps.begin(), steps.end(), [](const PublishedStep& step) {
    return step.question.workload.phase == Phase::prefill && step.layout.cp == 8;
  });
  ASSERT_NE(meta, steps.end());
  EXPECT_EQ(meta->what,
            "llama-3.1-405b, 64 GPUs, 131072 tokens, prefill, tp 8, cp 8 head_tail, FP8 products");
  EXPECT_EQ(meta->measured, 5850);
  EXPECT_EQ(unit_of(meta->metric), "ms");
}

TEST(PublishedMeasurements, AreTheTimesInTheOrderOfTheTable) {
  std::vector<PublishedStep> steps = published_steps();
  std::erase_if(steps, [](const PublishedStep& step) { return !is_time(step); });
  const std::vector<NearestMeasurement> measurements = published_measurements();
  ASSERT_EQ(measurements.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(measurements[i].what, steps[i].what);
    EXPECT_EQ(measurements[i].measured, steps[i].measured);
    EXPECT_EQ(measurements[i].predicted, predict(steps[i]));
  }
}

// Runs of equal model, length, GPUs, phase and precision are one another's nearest: the first of them
// answers.
TEST(NearestMeasurement, OfAPublishedQuestionIsItsRow) {
  std::vector<PublishedStep> steps = published_steps();
  std::erase_if(steps, [](const PublishedStep& step) { return !is_time(step); });
  for (const PublishedStep& step : steps) {
    const auto first = std::find_if(steps.begin(), steps.end(), [&](const PublishedStep& other) {
      return other.question.model == step.question.model &&
             other.question.workload.phase == step.question.workload.phase &&
             other.question.workload.seq_len == step.question.workload.seq_len &&
             other.question.software.linear_precision == step.question.software.linear_precision &&
             other.question.cluster.num_gpus() == step.question.cluster.num_gpus();
    });
    const auto nearest = nearest_measurement(step.question);
    ASSERT_TRUE(nearest.has_value());
    EXPECT_EQ(nearest->source, first->source);
    EXPECT_EQ(nearest->what, first->what);
    EXPECT_EQ(nearest->measured, first->measured);
    EXPECT_EQ(nearest->metric, unit_of(first->metric));
    EXPECT_EQ(nearest->predicted, predict(*first));
    EXPECT_EQ(nearest->unscored.empty(), first->oddity.empty());
    EXPECT_EQ(nearest->unscored.rfind(first->oddity, 0), 0U);
  }
}

// One sign for all metrics: how much longer the prediction takes, as `cpsim validate` has it.
TEST(NearestMeasurement, ErrorsAreOfTheTime) {
  const NearestMeasurement rate{"", "", "tokens/s/GPU", 200, 100, true}, time{"", "", "ms", 100, 200};
  EXPECT_DOUBLE_EQ(rate.error(), 1);
  EXPECT_DOUBLE_EQ(time.error(), 1);
  for (const NearestMeasurement& of : published_measurements())
    EXPECT_EQ(of.is_rate, of.metric == "tokens/s/GPU") << of.what;
}

// The nearest one is named although it is not scored, with the reason; of its two readings that of the
// layout's balance.
TEST(NearestMeasurement, IsTheNearestScoredOrNot) {
  PlanQuestion question;
  question.model = load_model("qwen2.5-7b").model;
  question.cluster = find_cluster("dgx-h100", 1);
  question.workload.seq_len = 262144;
  const auto nearest = nearest_measurement(question);
  ASSERT_TRUE(nearest);
  EXPECT_EQ(nearest->what, "llama-3.1-8b, 8 GPUs, 262144 tokens, training, cp 8 head_tail, FP8 products");
  EXPECT_EQ(nearest->unscored.rfind(
                "the source does not say how the sequence is balanced; read as contiguous: ", 0),
            0U)
      << nearest->unscored;
  const ParallelLayout contiguous = parse_parallel_layout("cp=8,strategy=ring,balance=contiguous");
  EXPECT_EQ(nearest_measurement(question, &contiguous)->what,
            "llama-3.1-8b, 8 GPUs, 262144 tokens, training, cp 8 contiguous, FP8 products");
}

TEST(NearestMeasurement, IsMostAlikeInSizeLengthAndGpusOfItsPhase) {
  PlanQuestion question;
  const auto nearest = [&](const char* model, int nodes, std::int64_t seq_len) {
    question.model = load_model(model).model;
    question.cluster = find_cluster("dgx-a100", nodes);
    question.workload.seq_len = seq_len;
    const auto found = nearest_measurement(question);
    return found ? found->what : "none";
  };
  EXPECT_EQ(nearest("qwen2.5-7b", 1, 8192), "llama-3.1-8b, 8 GPUs, 8192 tokens, training");
  EXPECT_EQ(nearest("llama-2-7b", 1, 40000), "llama-3.1-8b, 8 GPUs, 32768 tokens, training, FP8 products");
  // However far away: the longest training of that model.
  EXPECT_EQ(nearest("llama-3.1-405b", 4, 1 << 20),
            "h100-96gb-500w: llama-3.1-405b, 512 GPUs, 262144 tokens, training, tp 8, cp 8 head_tail, FP8 "
            "products");
  // GPUs count as the other sizes do: by how much faster they are.
  question.software.linear_precision = LinearPrecision::fp8;
  question.model = load_model("llama-3.1-8b").model;
  question.workload.seq_len = 8192;
  question.cluster = find_cluster("hgx-b200", 1);
  EXPECT_EQ(nearest_measurement(question)->what,
            "hgx-b200: llama-3.1-8b, 8 GPUs, 8192 tokens, training, FP8 products");
  question.cluster = find_cluster("dgx-h100", 1);
  EXPECT_EQ(nearest_measurement(question)->what, "llama-3.1-8b, 8 GPUs, 8192 tokens, training, FP8 products");
  question.software.linear_precision = LinearPrecision::b16;
  question.workload.phase = Phase::prefill;
  EXPECT_EQ(nearest("llama-3.1-70b", 4, 131072),
            "llama-3.1-405b, 32 GPUs, 131072 tokens, prefill, tp 8, cp 4 head_tail, FP8 products");
  // Of decode there are rows of servers under load.
  question.workload.phase = Phase::decode;
  EXPECT_NE(nearest("llama-3.1-405b", 4, 131072), "none");
}

}  // namespace
}  // namespace cp::sim
