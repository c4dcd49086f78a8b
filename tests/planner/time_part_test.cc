// The texts of a step's parts stand in people's scripts: in columns of --csv, in keys of --json, on the
// screen.
#include "sim/planner/search/time_part.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/ranking.h"
#include "sim/present/page/report_html.h"
#include "sim/present/plan/answer_csv.h"
#include "sim/present/plan/answer_json.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Texts {
  TimePart part;
  std::string_view name, bound;
};

constexpr Texts kTexts[] = {
    {TimePart::attention, "attention", "attention kernels"},
    {TimePart::products, "products", "matrix products"},
    {TimePart::other_kernels, "other kernels", "memory-bound kernels"},
    {TimePart::bubble, "bubble", "pipeline bubble"},
    {TimePart::exposed_tp, "exposed tp", "tensor-parallel transfers"},
    {TimePart::exposed_cp, "exposed cp", "context-parallel transfers"},
    {TimePart::exposed_fsdp, "exposed fsdp", "transfers of parameters and gradients"},
    {TimePart::exposed_dp, "exposed dp", "gradients that replicas add up"},
    {TimePart::exposed_ep, "exposed ep", "expert-parallel transfers"},
    {TimePart::exposed_pp, "exposed pp", "transfers between stages"},
    {TimePart::exposed_offload, "exposed offload", "the host's memory"},
    {TimePart::host, "host", "the host, which issues kernels"},
    {TimePart::host_between_steps, "host between steps", "the host, between two steps"},
    {TimePart::prompts_of_others, "prompts of others", "prompts that are read between"}};

TEST(TimeParts, AreSaidAsTheyAlwaysWere) {
  ASSERT_EQ(std::size(kTexts), kNumTimeParts);
  std::set<TimePart> seen;
  for (const Texts& texts : kTexts) {
    EXPECT_EQ(name(texts.part), texts.name);
    EXPECT_EQ(bound_text(texts.part), texts.bound);
    EXPECT_TRUE(seen.insert(texts.part).second) << texts.name;
  }
}

// "exposed" and the axis, both ways.
TEST(TimeParts, OfAnAxisAreItsExposedTransfers) {
  std::size_t of_axes = 0;
  for (const TimePart part : all_time_parts()) {
    const auto axis = axis_of(part);
    EXPECT_EQ(is_exposed(part), name(part).starts_with("exposed ")) << name(part);
    if (!axis) continue;
    ++of_axes;
    EXPECT_EQ(exposed(*axis), part);
    EXPECT_EQ(std::string(name(part)), "exposed " + std::string(name(*axis)));
    EXPECT_EQ(name(span_kind(*axis)), name(*axis));
  }
  EXPECT_EQ(of_axes, 6U);
}

TEST(SpanKinds, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const SpanKind kind : all_span_kinds()) names.insert(name(kind));
  EXPECT_EQ(names, (std::set<std::string_view>{"attention", "product", "kernel", "tp", "cp", "fsdp", "dp",
                                               "ep", "pp", "offload", "forward", "backward"}));
}

// The forms of an answer say them alike: one column, one key, one word each.
TEST(TimeParts, StandInEveryFormOfAnAnswer) {
  PlanAnswer answer;
  answer.question = testing::small_question(8, 4096, 2);
  Candidate slower = Evaluator(answer.question).evaluate(parse_parallel_layout("tp=4,dp_shard=2")),
            faster = slower;
  slower.parts.clear(), faster.parts.clear();
  for (const TimePart part : all_time_parts()) {
    slower.parts.push_back({part, 1000});
    slower.bound = part;
    const std::string word(name(part)), bound(bound_text(part));
    EXPECT_EQ(difference(slower, faster).starts_with("+1 ms"), true);
    answer.all = answer.best = {slower};
    std::string column = "part_" + word + "_us";
    std::replace(column.begin(), column.end(), ' ', '_');
    EXPECT_THAT(to_csv(answer), HasSubstr(column));
    EXPECT_THAT(to_csv(answer), HasSubstr(bound));
    EXPECT_THAT(to_json(answer), HasSubstr("\"" + word + "\": 1000"));
    EXPECT_THAT(to_json(answer), HasSubstr("\"bound\": \"" + bound + "\""));
  }
}

// The page has no table of its own: what it knows of parts and kinds comes with it.
TEST(TimeParts, HaveTheirColoursOnThePage) {
  const std::string page = report_html({});
  for (const TimePart part : all_time_parts())
    EXPECT_THAT(page,
                ::testing::ContainsRegex("const partColours = .*\"" + std::string(name(part)) + "\":\""))
        << name(part);
  for (const SpanKind kind : all_span_kinds())
    EXPECT_THAT(page, ::testing::ContainsRegex("kindColours = .*\"" + std::string(name(kind)) + "\":\""))
        << name(kind);
}

double us_of(const Candidate& candidate, TimePart part) {
  double us = 0;
  for (const PartTime& each : candidate.parts) us += each.part == part ? each.us : 0;
  return us;
}

// Replicas that add up gradients are no context parallelism, and tied tables are summed between stages.
TEST(TimeParts, OfReplicasAndTiedTablesAreNotOfContextParallelism) {
  PlanQuestion question = testing::small_question(8, 4096, 8);
  Evaluator evaluator(question);
  const Candidate replicas = evaluator.evaluate(parse_parallel_layout("dp_replicate=8"));
  EXPECT_GT(us_of(replicas, TimePart::exposed_dp), 0);
  EXPECT_EQ(us_of(replicas, TimePart::exposed_cp), 0);
  PlanQuestion tied = question, apart = question;
  tied.model.tied_embeddings = true, apart.model.tied_embeddings = false;
  const ParallelLayout stages = parse_parallel_layout("pp=2,tp=4");
  const Candidate of_tied = Evaluator(tied).evaluate(stages), of_apart = Evaluator(apart).evaluate(stages);
  EXPECT_EQ(us_of(of_tied, TimePart::exposed_cp), 0);
  EXPECT_GT(us_of(of_tied, TimePart::exposed_pp), us_of(of_apart, TimePart::exposed_pp));
}

}  // namespace
}  // namespace cp::sim
