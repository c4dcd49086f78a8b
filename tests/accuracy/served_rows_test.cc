// Of rows of servers under load, the one that is most like a question.
#include "sim/accuracy/validate/served_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/accuracy/validate/published_steps.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"

namespace cp::sim {
namespace {

PlanQuestion question_of(const char* model, const char* cluster, const char* software) {
  PlanQuestion question;
  question.model = load_model(model).model;
  question.cluster = find_cluster(cluster, 1);
  question.software = find_software(software);
  question.software.linear_precision = LinearPrecision::fp8, question.software.fp8_cache = true;
  question.workload.phase = Phase::decode;
  question.workload.cached = question.workload.new_tokens = 1000, question.workload.seq_len = 2000;
  question.workload.global_batch = 32;
  return question;
}

TEST(ServedRows, TheNearestIsOfTheSameModelGpuSoftwareAndLoad) {
  ParallelLayout layout;
  layout.tp = 4, layout.dp_replicate = 2, layout.micro_batch = 16;
  const PlanQuestion question = question_of("llama-3.1-70b", "hgx-h200", "trtllm");
  const auto nearest = nearest_measurement(question, &layout);
  ASSERT_TRUE(nearest);
  EXPECT_EQ(nearest->what, "llama-3.1-70b hgx-h200 trtllm fp8 tp 4, 1024 + 1024 tokens, 16 at once");
  EXPECT_NEAR(nearest->measured, 8.93, 0.01);
  EXPECT_EQ(nearest->metric, "ms between tokens");
  EXPECT_NEAR(nearest->error(), 0, 0.2);
  EXPECT_EQ(nearest->unscored, "");
  layout.tp = 8, layout.dp_replicate = 1, layout.micro_batch = 32;
  EXPECT_EQ(nearest_served(question, &layout)->what,
            "llama-3.1-70b hgx-h200 trtllm fp8 tp 8, 1024 + 1024 tokens, 32 at once");
  EXPECT_EQ(nearest_served(question_of("llama-3.1-70b", "hgx-b200", "vllm"), &layout)->what,
            "llama-3.1-70b hgx-b200 vllm fp8 tp 8, 1024 + 1024 tokens, 32 at once");
}

TEST(ServedRows, TheNearestSaysWhyItDoesNotCount) {
  PlanQuestion question = question_of("llama-3.1-8b", "hgx-h200", "vllm");
  question.software.fp8_cache = false;
  question.workload.cached = 8000, question.workload.new_tokens = 100, question.workload.seq_len = 8100;
  question.workload.global_batch = 16;
  ParallelLayout layout;
  layout.micro_batch = 16;
  EXPECT_THAT(nearest_served(question, &layout)->unscored,
              ::testing::StartsWith("prompts were partly in the cache"));
}

}  // namespace
}  // namespace cp::sim
