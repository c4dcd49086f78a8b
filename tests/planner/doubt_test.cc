// What is not known of a question's rates.
#include "sim/planner/search/doubt.h"

#include <gtest/gtest.h>

#include "sim/cost/timeline/rate_doubt.h"
#include "sim/cost/timeline/widths.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

TEST(QuestionDoubt, IsOfWhatThePhaseComputes) {
  PlanQuestion question = testing::training_question("llama-3.1-8b", 2, 8192, 16);
  const Doubt training = doubt_of(question);
  EXPECT_EQ(training[Rate::attention_forward],
            doubt_of(question.cluster, question.software, 128)[Rate::attention_forward]);
  question.workload.phase = Phase::decode;
  const Doubt decode = doubt_of(question);
  EXPECT_NE(decode[Rate::attention_forward], training[Rate::attention_forward])
      << "few rows have a rate, and errors, of their own";
  EXPECT_EQ(decode.of_all, widths::kOfAll);
  question.model.head_dim = 32;
  question.workload.phase = Phase::training;
  EXPECT_GT(doubt_of(question)[Rate::attention_forward], training[Rate::attention_forward])
      << "a head size that nobody measured";
}

}  // namespace
}  // namespace cp::sim
