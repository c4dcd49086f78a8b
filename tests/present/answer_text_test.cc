// The forms of an answer that other programs read: JSON and CSV.
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/presets/csv.h"
#include "sim/present/plan/answer_csv.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/headline.h"
#include "tests/support/example_answer.h"

namespace cp::sim {
namespace {

using nlohmann::json;

TEST(Headline, SaysTheAnswerInOneSentence) {
  PlanAnswer answer = testing::example_answer();
  EXPECT_EQ(headline(answer),
            "Llama-3.1-8B, 131,072 tokens, 16 GPUs of dgx-h100: tp=2, cp=8 ring head_tail, 3.21 s a step");
  answer.question.workload.phase = Phase::decode;
  answer.best[0].layout = parse_parallel_layout("tp=8,dp_shard=2");
  answer.best[0].step_us = 23456;
  EXPECT_EQ(headline(answer),
            "Llama-3.1-8B, 131,072 tokens, 16 GPUs of dgx-h100: dp_shard=2, tp=8, 23.5 ms between tokens");
  answer.best[0].ttft_us = 156e6, answer.best[0].low_us = 20000, answer.best[0].high_us = 30000;
  EXPECT_TRUE(headline(answer).ends_with("23.5 ms between tokens, 2 min 36 s to the first"));
  EXPECT_EQ(prediction(Phase::decode, answer.best[0]),
            "23.5 ms between tokens (20 ms to 30 ms), 2 min 36 s to the first");
  answer.best[0].ttft_us.reset();
  EXPECT_EQ(prediction(Phase::training, answer.best[0]), "23.5 ms a step (20 ms to 30 ms)");
  answer.best.clear();
  EXPECT_EQ(headline(answer), "Llama-3.1-8B, 131,072 tokens, 16 GPUs of dgx-h100: nothing fits");
}

TEST(AnswerJson, HoldsTheQuestionWithItsSources) {
  const json question = json::parse(to_json(testing::example_answer()))["question"];
  EXPECT_EQ(question["model"]["name"], "Llama-3.1-8B");
  EXPECT_EQ(question["model"]["parameters"], 8030261248);  // as published
  EXPECT_TRUE(question["model"]["experts"].is_null());
  EXPECT_EQ(question["workload"]["phase"], "training");
  EXPECT_EQ(question["cluster"]["gpus"], 16);
  EXPECT_EQ(question["fixed"], (json{{"micro_batch", 1}}));
  EXPECT_EQ(question["baseline"], "tp=8,cp=2,strategy=ring,balance=head_tail");
  EXPECT_EQ(question["assumptions"].back(), testing::kAwkward);
  std::set<std::string> fields;
  for (const json& value : question["cluster"]["values"]) {
    fields.insert(value["field"]);
    if (value["field"] == "gpu.tflops_16") {
      EXPECT_EQ(value["value"], 989);
      EXPECT_EQ(value["origin"], "published");
      EXPECT_EQ(value["source"], "H100 SXM data sheet, dense");
    }
    EXPECT_EQ(value["origin"].is_null(), value["source"].is_null()) << value;
  }
  EXPECT_TRUE(fields.contains("gpu.tflops_16") && fields.contains("rates"));
  EXPECT_FALSE(question["software"]["values"].empty());
}

TEST(AnswerJson, SaysHowEachNumberIsKnown) {
  const std::map<std::string, std::string> origins = {{"hbm_gbps", "measured"},
                                                      {"tflops_f32", "published"},
                                                      {"power_limit_w", "estimated"},
                                                      {"kernel_launch_us", "assumed"},
                                                      {"sustained_clock", "borrowed"}};
  std::string text = "name: \"mine\" like: \"dgx-h100\" gpu {";
  for (const auto& [field, origin] : origins)
    text += " " + field + " { value: 1 origin: " + origin + " source: \"of " + field + "\" }";
  PlanAnswer answer = testing::example_answer();
  answer.question.cluster = read_cluster(text + " }", "mine.txtpb");
  answer.question.software = read_software(
      "name: \"mine\" like: \"cprun\" merge_passes { value: 2 origin: measured source: \"m\" }", "s.txtpb");
  const json question = json::parse(to_json(answer))["question"];
  std::size_t found = 0;
  for (const json& value : question["cluster"]["values"]) {
    const std::string field = value["field"];
    if (!field.starts_with("gpu.") || !origins.contains(field.substr(4))) continue;
    EXPECT_EQ(value["origin"], origins.at(field.substr(4)));
    EXPECT_EQ(value["source"], "of " + field.substr(4));
    ++found;
  }
  EXPECT_EQ(found, origins.size());
  for (const json& value : question["software"]["values"]) {
    if (value["field"] != "merge_passes") continue;
    EXPECT_EQ(value["origin"], "measured");
  }
}

TEST(AnswerJson, HoldsTheCandidates) {
  const PlanAnswer answer = testing::example_answer();
  const json text = json::parse(to_json(answer));
  EXPECT_EQ(text["schema"], "cpsim.plan/1");
  EXPECT_EQ(text["summary"], headline(answer));
  ASSERT_EQ(text["best"].size(), answer.best.size());
  ASSERT_EQ(text["all"].size(), answer.all.size());
  for (std::size_t i = 0; i < answer.all.size(); ++i) {
    const Candidate& candidate = answer.all[i];
    const json& row = text["all"][i];
    EXPECT_EQ(parse_parallel_layout(row["layout"].get<std::string>()), candidate.layout);
    EXPECT_EQ(row["layout_fields"]["gpus"], candidate.layout.world());
    EXPECT_EQ(row["layout_fields"]["strategy"].is_null(), candidate.layout.cp == 1);
    EXPECT_EQ(row["step_us"], candidate.step_us);
    EXPECT_EQ(row["left_bytes"], candidate.left_bytes());
    EXPECT_EQ(row["fits"], candidate.likely_fits() ? "likely" : "unlikely");
    double parts = 0;
    for (const auto& [name, us] : row["parts_us"].items()) parts += us.get<double>();
    EXPECT_NEAR(parts, candidate.step_us, 1e-6 * candidate.step_us);
    for (const auto& [term, bytes] : terms(candidate.memory)) {
      EXPECT_EQ(row["memory_bytes"][std::string(term)], bytes);
    }
    EXPECT_EQ(row["memory_bytes"]["counted"], candidate.memory.used() - candidate.memory.context);
  }
  EXPECT_EQ(text["classes"][2]["candidate"]["layout"], text["all"][13]["layout"]);
  EXPECT_TRUE(text["classes"][3]["candidate"].is_null());
  EXPECT_EQ(text["counts"]["rejected"][1], (json{{"reason", "world is not the GPUs"}, {"count", 9216}}));
  EXPECT_EQ(text["nearest"]["measured"], 2179);
  EXPECT_NEAR(text["nearest"]["error"].get<double>(), 2179.0 / 2042 - 1, 1e-12);
  EXPECT_EQ(text["warnings"][1], testing::kAwkward);
}

TEST(AnswerJson, KeepsEverySpanOfTheTimeline) {
  PlanAnswer answer = testing::example_answer();
  std::reverse(answer.timeline.begin(), answer.timeline.end());
  const json timeline = json::parse(to_json(answer, -1))["timeline"];
  EXPECT_EQ(timeline["tracks"].size(), 8);
  std::size_t spans = 0;
  double compute_us = 0;
  for (const json& track : timeline["tracks"]) {
    double before = -1;
    for (const json& span : track["spans"]) {
      EXPECT_GE(span[0], before);
      before = span[0];
      if (track["stream"] == "compute") compute_us += span[1].get<double>() - before;
    }
    spans += track["spans"].size();
  }
  double expected_us = 0;
  for (const ReportSpan& span : answer.timeline) {
    if (span.stream == "compute") expected_us += span.end_us - span.begin_us;
  }
  EXPECT_EQ(spans, answer.timeline.size());
  EXPECT_NEAR(compute_us, expected_us,
              1e-3 * static_cast<double>(spans));  // begin and end: to half a nanosecond
  EXPECT_EQ(timeline["tracks"][0]["rank"], 0);
  const json& last = timeline["tracks"][0]["spans"].back();
  EXPECT_EQ(timeline["labels"][last[2].get<std::size_t>()], testing::kAwkward);
  EXPECT_EQ(timeline["kinds"][last[3].get<std::size_t>()], "kernel");
}

TEST(AnswerJson, SurvivesAnEmptyAnswerAndBrokenText) {
  PlanAnswer empty;
  empty.warnings = {"half a letter: \xc3"};
  const json text = json::parse(to_json(empty));
  EXPECT_TRUE(text["best"].empty());
  EXPECT_TRUE(text["nearest"].is_null());
  EXPECT_EQ(text["warnings"][0], "half a letter: \xef\xbf\xbd");
}

TEST(AnswerCsv, HasALineForEachCandidate) {
  PlanAnswer answer = testing::example_answer();
  answer.all[2].ttft_us = 12345.5;
  answer.all[3].bound = TimePart::host;                      // its text has a comma
  const auto rows = read_csv(to_csv(answer), "answer.csv");  // throws where a line has more or fewer cells
  ASSERT_EQ(rows.size(), answer.all.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Candidate& candidate = answer.all[i];
    EXPECT_EQ(rows[i].text("layout"), to_string(candidate.layout));
    EXPECT_EQ(rows[i].text("bound"), bound_text(candidate.bound));
    EXPECT_EQ(rows[i].number("step_us"), candidate.step_us);
    EXPECT_EQ(rows[i].number("memory_optimizer_bytes"), static_cast<double>(candidate.memory.optimizer));
    EXPECT_EQ(rows[i].number("part_bubble_us") > 0, candidate.layout.pp > 1);
    EXPECT_EQ(rows[i].number("memory_high_bytes"), static_cast<double>(candidate.memory_high_bytes));
    EXPECT_EQ(rows[i].text("ttft_us"), i == 2 ? "12345.5" : "");
  }
}

}  // namespace
}  // namespace cp::sim
