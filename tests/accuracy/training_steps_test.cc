// Rows of training_steps.csv as questions with their layouts.
#include "sim/accuracy/validate/training_steps.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "sim/accuracy/validate/step_columns.h"
#include "sim/planner/models/read_model.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

TEST(TrainingSteps, AreLayoutsThatFitTheirClustersAndCanRun) {
  int scored = 0, twice = 0;
  std::set<std::string> rows, whats;
  for (const PublishedStep& step : training_steps()) {
    if (!rows.insert(step.where).second) ++twice;
    EXPECT_GT(step.measured, 0) << step.where;
    EXPECT_FALSE(step.source.empty()) << step.where;
    EXPECT_EQ(step.metric, PublishedStep::Metric::tokens_per_s_per_gpu) << step.where;
    EXPECT_EQ(step.layout.world(), step.question.cluster.num_gpus()) << step.where;
    EXPECT_EQ(refuse(step.question.model, step.question.workload, step.layout), std::nullopt) << step.where;
    if (step.oddity.empty()) ++scored;
  }
  EXPECT_EQ(rows.size(), 47U);
  EXPECT_EQ(twice, 3);    // torchtitan's cp 2, 4 and 8 of 405B, whose balance nobody states
  EXPECT_EQ(scored, 41);  // nor one that was not compiled, nor two on an H100 that nobody names
}

TEST(StepColumns, AreReadAndNotNotes) {
  const auto row = [](const char* products, const char* recompute) {
    return CsvRow("t.csv:2", {{"products", products},
                              {"recompute", recompute},
                              {"notes", "float8 linear; full activation checkpointing"}});
  };
  EXPECT_EQ(products_of(row("b16", "none")), LinearPrecision::b16);
  EXPECT_EQ(products_of(row("fp8", "none")), LinearPrecision::fp8);
  EXPECT_EQ(testing::message_of([&] { products_of(row("int4", "none")); }),
            "t.csv:2: unknown products 'int4'; use b16 or fp8");
  EXPECT_EQ(recompute_of(row("b16", "none")), Recompute{});
  EXPECT_EQ(recompute_of(row("b16", "op")), (Recompute{Recompute::Kind::every, 2}));
}

TEST(TrainingSteps, OfNemoAreCountedAsItPublishedThem) {
  struct {
    const char* model;
    std::int64_t seq_len;
    double tokens_per_s, tflops;
  } const kPublished[] = {{"llama-2-7b", 4096, 16847, 776},
                          {"llama-3.1-8b", 8192, 12036, 697},
                          {"llama-3.1-70b", 8192, 1533, 738}};
  for (const auto& of : kPublished) {
    PlanQuestion question;
    question.model = load_model(of.model).model;
    question.workload.seq_len = of.seq_len;
    EXPECT_NEAR(of.tokens_per_s * flops_counted_by_nemo(question) * 1e-12, of.tflops, 0.005 * of.tflops)
        << of.model;
  }
}

// NeMo switched cuDNN's attention off until August 2024.
TEST(TrainingSteps, AreAskedWithTheKernelsOfTheirSource) {
  int of_nemo = 0;
  for (const PublishedStep& step : training_steps()) {
    const bool old = step.source == "NeMo long sequence 24.03.01" || step.source == "NeMo summary 24.07";
    const std::string& kernel = step.question.software.attention_kernel;
    if (old) ++of_nemo;
    EXPECT_EQ(kernel == "fa2", old) << step.where << " " << kernel;
  }
  EXPECT_EQ(of_nemo, 12);
}

// Both readings of a balance that is not stated stand beside each other.
TEST(TrainingSteps, WhoseBalanceIsUnstatedComeAsBoth) {
  std::vector<PublishedStep> steps = training_steps();
  std::erase_if(steps, [](const PublishedStep& step) {
    return step.oddity != "the source does not say how the sequence is balanced";
  });
  ASSERT_EQ(steps.size(), 6U);
  for (std::size_t i = 0; i < steps.size(); i += 2) {
    EXPECT_EQ(steps[i].where, steps[i + 1].where);
    EXPECT_EQ(steps[i].layout.strategy.balance.kind, Balance::Kind::head_tail);
    EXPECT_EQ(steps[i + 1].layout.strategy.balance.kind, Balance::Kind::contiguous);
    EXPECT_NE(steps[i].what, steps[i + 1].what);
  }
}

}  // namespace
}  // namespace cp::sim
