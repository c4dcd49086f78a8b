// Rows, sensitivities and heads as text, JSON and CSV: from answers made by hand.
#include "sim/present/plan/plan_what_if_screen.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "shared/transformer/short_layout.h"
#include "sim/cost/presets/csv.h"
#include "sim/present/plan/plan_screen.h"
#include "tests/support/example_answer.h"

namespace cp::sim {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A layout that says as much as one can.
constexpr const char* kLong =
    "tp=2,cp=16,dp_shard=4,dp_replicate=2,pp=2,virtual_stages=4,strategy=all_gather,ulysses_degree=4,"
    "balance=head_tail_exchange,sharding=dp_shard,zero=3,sequence_parallel=no,order=cp-tp-dp-pp,micro_batch="
    "2,"
    "recompute=every:2,loss_chunks=16,mlp_chunks=8,activations=host";

PlanRow row_at(int gpus, double tokens_per_s_per_gpu, const char* layout) {
  const PlanAnswer answer = testing::example_answer();
  PlanRow row;
  row.number = gpus, row.gpus = gpus, row.nodes = gpus / 8;
  row.seq_len = 131072, row.batch = 16, row.cluster = "dgx-h100";
  row.best = answer.best.front();
  row.best->tokens_per_s_per_gpu = tokens_per_s_per_gpu;
  row.best->layout = parse_parallel_layout(layout);
  return row;
}

PlanRows rows_of_gpus() {
  PlanAnswer answer = testing::example_answer();
  answer.question.assumptions = {"phase training"};
  PlanRows rows;
  rows.question = "sweep", rows.summary = "one sentence", rows.varies = "gpus";
  rows.head = plan_head(answer.question, "the command under next");
  PlanRow none;
  none.number = 12, none.why = "twelve, \"no\"", none.refused = true;
  rows.rows = {none, row_at(16, 100, "tp=2,cp=8,strategy=ring,balance=head_tail"), row_at(64, 75, kLong)};
  rows.notes = {{"refused", "with 12 GPUs: no"}, {"next", str("cpsim plan ", std::string(120, 'x'))}};
  return rows;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) lines.emplace_back(line);
  return lines;
}

TEST(RowsText, ComparesWithTheFirstThatHasAnAnswer) {
  const std::string text = rows_text(rows_of_gpus());
  EXPECT_THAT(text,
              StartsWith("one sentence\n\nasked       training: 16 sequences of 131,072 tokens a step"));
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("\n  12       -         -             -       -     -  not possible\n"),
            HasSubstr("\n  16  3.21 s        1x           100  47.0 %  62.4  tp=2,cp=8,ring,head_tail\n"),
            HasSubstr("\n  64  3.21 s        3x            75  47.0 %  62.4  tp=2,cp=16,dp=4,"),
            HasSubstr("\n      vs first: tokens a second of all GPUs\n")));
}

// A layout that is too long goes on below, and its pieces are the layout.
TEST(RowsText, NoLineOfATableIsWiderThan120) {
  PlanRows rows = rows_of_gpus();
  for (const bool long_name : {false, true}) {
    if (long_name)
      rows.varies = "cluster", rows.rows[1].number.reset(), rows.rows[1].name = "/home/somebody/mine.txtpb";
    const std::string text = rows_text(rows);
    std::string pieces;
    bool in_layout = false;
    for (const std::string& line : lines_of(text)) {
      if (!line.starts_with("next ")) {
        EXPECT_LE(line.size(), 120U) << line;
      }
      if (line.find("tp=2,cp=16") != std::string::npos) in_layout = true;
      if (line.starts_with("      vs first")) in_layout = false;
      if (in_layout) pieces += line.substr(line.rfind(' ') + 1);
    }
    EXPECT_EQ(pieces, short_text(parse_parallel_layout(kLong)));
    EXPECT_EQ(to_string(parse_parallel_layout(pieces)), kLong);
  }
}

TEST(RowsText, BrieflyWithoutHeadAndCommand) {
  const std::string text = rows_text(rows_of_gpus(), true);
  EXPECT_THAT(text, StartsWith("one sentence\n\nGPUs "));
  EXPECT_THAT(text, AllOf(HasSubstr("\nrefused     with 12 GPUs: no\n"), Not(HasSubstr("\nnext "))));
}

TEST(RowsJson, HasWhatIsUnknownAsNull) {
  PlanRows rows = rows_of_gpus();
  rows.assumptions = {"odd \xff bytes"};
  const json found = json::parse(rows_json(rows));
  EXPECT_EQ(found["schema"], "cpsim.plan.sweep/1");
  EXPECT_EQ(found["varies"], "gpus");
  const json &none = found["rows"][0], &last = found["rows"][2];
  EXPECT_EQ(none["value"], 12);
  for (const char* key :
       {"seq_len", "global_batch", "nodes", "gpus", "cluster", "best", "tokens_per_s", "vs_first"})
    EXPECT_TRUE(none[key].is_null()) << key;
  EXPECT_EQ(none["why"], "twelve, \"no\"");
  EXPECT_EQ(last["best"]["layout"], kLong);
  EXPECT_EQ(last["tokens_per_s"], 4800);
  EXPECT_EQ(last["vs_first"], 3);
}

TEST(RowsCsv, ReadsBack) {
  const std::vector<CsvRow> rows = read_csv(rows_csv(rows_of_gpus()), "rows");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].text("why"), "twelve, \"no\"");
  for (const char* key : {"seq_len", "gpus", "cluster", "layout", "step_us", "vs_first", "usable_bytes"})
    EXPECT_EQ(rows[0].text(key), "") << key;
  EXPECT_EQ(rows[2].text("varies"), "gpus");
  EXPECT_EQ(rows[2].whole("value"), 64);
  EXPECT_EQ(rows[2].text("layout"), kLong);
  EXPECT_EQ(rows[2].number("tokens_per_s"), 4800);
  EXPECT_EQ(rows[2].number("step_us"), 3.21e6);
  EXPECT_EQ(rows[2].text("why"), "");
}

// ---- the head ----

TEST(PlanHead, IsThreeLinesWhateverIsAsked) {
  PlanQuestion question = testing::example_answer().question;
  question.assumptions = {"phase training"};
  for (const bool long_texts : {false, true}) {
    if (long_texts) {
      question.cluster.name = std::string(300, 'c');
      question.assumptions.assign(9, std::string(300, 'a'));
      question.fixed.cp = 2;
    }
    const std::vector<std::string> lines = lines_of(head_text(plan_head(question, "the command under next")));
    ASSERT_EQ(lines.size(), 4U);  // the last one is empty
    EXPECT_THAT(lines[0], StartsWith("asked       training: 16 sequences of 131,072 tokens a step, fixed "));
    EXPECT_THAT(lines[1],
                StartsWith(long_texts ? "on          2 nodes of ccc" : "on          2 nodes of dgx-h100: "));
    EXPECT_THAT(lines[2], AllOf(StartsWith("assumed     "), HasSubstr("; all: the command under next")));
    for (const std::string& line : lines) EXPECT_LE(line.size(), kScreenWidth) << line;
  }
  question.assumptions.clear();
  EXPECT_THAT(head_text(plan_head(question, "x")), HasSubstr("\nassumed     nothing; all: x\n"));
}

TEST(PlanHead, WarningsComeFirstAndAlsoInBrief) {
  PlanQuestion question = testing::example_answer().question;
  question.warnings = {"num_key_value_head is not read"};
  const PlanHead head = plan_head(question, "x");
  EXPECT_THAT(head_text(head), StartsWith("warning     num_key_value_head is not read\nasked "));
  EXPECT_EQ(head_text(head, true), "warning     num_key_value_head is not read\n");
  question.warnings.clear();
  EXPECT_EQ(head_text(plan_head(question, "x"), true), "");
}

TEST(Fitting, CountsWhatItLeavesOut) {
  const std::vector<std::string> items{"one", "two", "three", "four"};
  EXPECT_EQ(fitting(items, ", ", 21), "one, two, three, four");
  EXPECT_EQ(fitting(items, ", ", 20), "one, two, 2 more");
  EXPECT_EQ(fitting({"one", "a long one", "2"}, "; ", 16), "one; 2; 1 more");
  EXPECT_EQ(fitting({"abcdefghijkl"}, ", ", 8 + 8), "abcdefghijkl");
  EXPECT_EQ(fitting({"abcdefghijkl", "m"}, ", ", 16), "abcdefghijkl, m");
  EXPECT_EQ(fitting({"abcdefghijklmnop", "m"}, ", ", 16), "abcde..., 1 more");
  // No letter is cut in two.
  EXPECT_EQ(fitting({"ab\xc3\xa4"
                     "cdefghijklmn"},
                    ", ", 14),
            "ab...");
}

}  // namespace
}  // namespace cp::sim
