// What frameworks can say: the table itself, the search that keeps to it, the texts that are written by it,
// and the page that shows it.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/frameworks/framework.h"
#include "sim/planner/emit/emit.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/search.h"
#include "tests/planner/questions.h"
#include "tests/support/golden.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_question;

constexpr Framework kTraining[] = {Framework::megatron, Framework::torchtitan, Framework::deepspeed};

TEST(Frameworks, ThePageShowsTheTable) {
  EXPECT_EQ(testing::compare_with_golden("../../docs/frameworks.md", frameworks_page()), "");
}

TEST(Frameworks, EachHasAVersionASourceAndRulesWithSourcesOfTheirOwn) {
  for (const FrameworkFacts& framework : all_frameworks()) {
    EXPECT_FALSE(framework.version.empty() || framework.source.empty()) << framework.name;
    const bool own = framework.framework == Framework::cprun || framework.framework == Framework::attention;
    EXPECT_EQ(rules(framework.framework).empty(), own) << framework.name;
    std::set<std::string_view> choices;
    for (const FrameworkRule& rule : rules(framework.framework)) {
      EXPECT_FALSE(rule.can.empty() || rule.source.empty()) << framework.name << " " << rule.choice;
      EXPECT_TRUE(choices.insert(rule.choice).second) << framework.name << " " << rule.choice << " twice";
    }
  }
}

std::vector<ParallelLayout> all_of(const PlanQuestion& question, std::int64_t* left_out = nullptr) {
  const LayoutSpace space(question, true);
  std::vector<ParallelLayout> layouts;
  for (const ParallelLayout& family : space.families(left_out)) {
    const std::vector<ParallelLayout> members = space.members(family);
    EXPECT_EQ(static_cast<std::int64_t>(members.size()), space.num_members(family));
    layouts.insert(layouts.end(), members.begin(), members.end());
  }
  return layouts;
}

// What is run instead of a layout can be said, but where nothing is run in its place; and nothing else
// changes it.
TEST(Frameworks, WhatIsRunInsteadCanBeSaid) {
  const PlanQuestion question = small_question(8);
  for (const Framework framework : kTraining) {
    for (const ParallelLayout& layout : all_of(question)) {
      FrameworkCase said{question.model, question.workload, layout};
      const Expressed once = express(framework, said), twice = express(framework, once.run);
      EXPECT_EQ(once.run.layout == layout && once.lost.empty(), once.lost.empty()) << to_string(layout);
      EXPECT_EQ(twice.run.layout, once.run.layout) << name(framework) << " " << to_string(layout);
    }
  }
}

// The search holds exactly those layouts that lose nothing.
TEST(Frameworks, TheSpaceIsWhatCanBeSaid) {
  PlanQuestion question = small_question(8);
  question.fixed.micro_batch = 1;
  const std::vector<ParallelLayout> all = all_of(question);
  for (const Framework framework : kTraining) {
    std::set<std::string> expected, found;
    for (const ParallelLayout& layout : all) {
      if (express(framework, {question.model, question.workload, layout}).lost.empty())
        expected.insert(to_string(layout));
    }
    PlanQuestion kept = question;
    kept.frameworks = {framework};
    std::int64_t left_out = 0;
    const std::vector<ParallelLayout> said = all_of(kept, &left_out);
    for (const ParallelLayout& layout : said) found.insert(to_string(layout));
    EXPECT_EQ(found, expected) << name(framework);
    EXPECT_FALSE(found.empty()) << name(framework);
    EXPECT_EQ(left_out + static_cast<std::int64_t>(said.size()), static_cast<std::int64_t>(all.size()));
  }
}

// So that the best layout of a search, written down, is the layout itself, and fits.
TEST(Frameworks, TheBestOfASearchIsSaidWithoutLoss) {
  for (const Framework framework : kTraining) {
    PlanQuestion question = small_question(8, 65536);
    question.fixed.micro_batch = 1;
    question.frameworks = {framework};
    const PlanAnswer answer = search_layouts(question);
    PlanQuestion any = question;
    any.frameworks.clear();
    EXPECT_EQ(answer.counts.enumerated, static_cast<std::int64_t>(all_of(any).size())) << name(framework);
    EXPECT_NE(std::find_if(answer.counts.rejected.begin(), answer.counts.rejected.end(),
                           [](const auto& reason) { return reason.first.ends_with(" cannot say it"); }),
              answer.counts.rejected.end())
        << name(framework);
    for (const Candidate& candidate : answer.all) {
      const Expressed said = express(framework, {question.model, question.workload, candidate.layout});
      EXPECT_THAT(said.lost, ::testing::IsEmpty()) << name(framework) << " " << to_string(candidate.layout);
    }
    const Emitted emitted = emit(framework, question.model, question.workload, answer.best.front().layout,
                                 {"small", 2, 4, false, {}, memory_rules(question), usable_bytes(question)});
    EXPECT_TRUE(emitted.fits);
    ASSERT_TRUE(emitted.needed_bytes);
    EXPECT_EQ(*emitted.needed_bytes, counted_bytes(answer.best.front().memory));
  }
}

TEST(Frameworks, WhatIsFixedAndCannotBeSaidIsNamed) {
  PlanQuestion question = small_question(8);
  question.frameworks = {Framework::torchtitan};
  question.fixed.loss_chunks = 4;
  EXPECT_THAT(
      message_of([&] { search_layouts(question); }),
      AllOf(HasSubstr("can be expressed for torchtitan: the loss in 4 chunks"), HasSubstr("fix fewer")));
}

// ---- what is written and does not fit ----

Emitted emitted(Framework framework, const char* layout, double usable_gib) {
  PlanQuestion question = testing::training_question("qwen2.5-7b", 2, 262144, 16);
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  return emit(
      framework, question.model, question.workload, parse_parallel_layout(layout, 16),
      {"qwen2.5-7b", 2, 8, false, {}, memory_rules(question), static_cast<std::int64_t>(usable_gib * kGiB)});
}

// The loss in chunks is lost, and with it what it saved.
TEST(Emitted, NeedsTheMemoryOfWhatIsRunInstead) {
  const char* chunked = "cp=16,strategy=all_gather,balance=head_tail,loss_chunks=16,recompute=full";
  const char* whole = "cp=16,strategy=all_gather,balance=head_tail,recompute=full";
  const Emitted lost = emitted(Framework::torchtitan, chunked, 1000);
  const Emitted same = emitted(Framework::torchtitan, whole, 1000);
  ASSERT_TRUE(lost.needed_bytes && same.needed_bytes);
  EXPECT_EQ(*lost.needed_bytes, *same.needed_bytes);
  EXPECT_THAT(lost.text, AllOf(HasSubstr("\n#   the loss in 16 chunks: "), HasSubstr("# memory: ")));
  EXPECT_TRUE(lost.fits);
  const Emitted large = emitted(Framework::torchtitan, chunked, 8);
  EXPECT_FALSE(large.fits);
  EXPECT_THAT(large.text, HasSubstr(" of 8 GiB per GPU: IT DOES NOT FIT"));
}

TEST(Emitted, SaysItsNumbersAndItsVersion) {
  PlanQuestion question = testing::training_question("llama-3.1-8b", 1, 8192, 8);
  for (const bool fp8 : {false, true}) {
    const auto text = [&](Framework framework) {
      return emit(framework, question.model, question.workload, parse_parallel_layout("dp_shard=8"),
                  {"llama-3.1-8b", 1, 8, fp8})
          .text;
    };
    const char* numbers = fp8 ? "numbers: bf16, matmuls in fp8, gradients f32, adamw"
                              : "numbers: bf16, matmuls in bf16, gradients f32, adamw";
    for (const Framework framework : kTraining) {
      EXPECT_THAT(text(framework),
                  AllOf(HasSubstr(numbers), HasSubstr(std::string(facts(framework).version))));
    }
    EXPECT_EQ(text(Framework::torchtitan).find("quantize.linear.float8") != std::string::npos, fp8);
    EXPECT_EQ(text(Framework::megatron).find("--fp8-format hybrid") != std::string::npos, fp8);
    EXPECT_EQ(text(Framework::deepspeed).find("FP8 products: a configuration has") != std::string::npos, fp8);
  }
}

}  // namespace
}  // namespace cp::sim
