// cpsim redistribute, from the outside.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/redistribute/lower.h"
#include "tests/cli/cpsim_process.h"
#include "traces/scenario.h"
#include "traces/trace_proto.h"

namespace cp::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Words redistribute(const Words& more) {
  Words words = {"redistribute"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The example of docs/redistribution.md, for a tensor of 64 KiB.
Words example(const Words& more = {}) {
  Words words = redistribute({"--mesh", "dp=2,cp=2,tp=2", "--shape", "32x32x16", "--dtype", "f32", "--from",
                              "S(0)[0],S(0)[1],S(0)[2]", "--to", "S(1)[0],S(1)[1],S(1)[2]"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Parses what a command that must succeed prints.
json json_of(const Words& words) {
  const Finished finished = cpsim(words);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, IsEmpty());
  return json::parse(finished.out);
}

TEST(RedistributeCommand, TheExampleIsPlannedExplainedAndVerified) {
  const Finished finished = cpsim(example({"--run"}));
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.err, IsEmpty()) << "no progress line where there is no terminal";
  EXPECT_THAT(
      finished.out,
      AllOf(HasSubstr("32x32x16 f32, 64 KiB in all"), HasSubstr("on dp=2,cp=2,tp=2"),
            HasSubstr("8 KiB per rank"),
            ContainsRegex(
                "1  all_to_all +dp,cp,tp +S\\(0\\),S\\(0\\),S\\(0\\) +S\\(1\\),S\\(1\\),S\\(1\\) +7 KiB"),
            ContainsRegex("total +7 KiB +56 KiB"), HasSubstr("peak memory"), HasSubstr("bound 32 KiB"),
            HasSubstr("verified: 8 ranks, 64 KiB compared, all 16,384 elements right")));
}

TEST(RedistributeCommand, JsonHasStepsTotalsAndVerdict) {
  const json report = json_of(redistribute({"--mesh", "dp=2,tp=4", "--shape", "9x7x5", "--from",
                                            "P(sum),S(1)", "--to", "S(0),R", "--run", "--json"}));
  EXPECT_EQ(report["shape"], (std::vector<int>{9, 7, 5}));
  EXPECT_EQ(report["dtype"], "f32");
  EXPECT_EQ(report["mesh"], "dp=2,tp=4");
  EXPECT_EQ(report["from"], "P(sum),S(1)");
  EXPECT_EQ(report["to"], "S(0),R");
  ASSERT_GE(report["steps"].size(), 2U);
  std::int64_t received = 0;
  double time_us = 0;
  std::string at = "P(sum),S(1)";
  for (const json& step : report["steps"]) {
    EXPECT_TRUE(step["kind"].is_string());
    for (const json& axis : step["mesh_axes"]) EXPECT_TRUE(axis == "dp" || axis == "tp") << axis;
    EXPECT_EQ(step["from"], at);
    at = step["to"];
    EXPECT_LE(step["bytes_received_max"], step["bytes_received_total"]);
    received += step["bytes_received_total"].get<std::int64_t>();
    time_us += step["time_us"].get<double>();
  }
  EXPECT_EQ(at, "S(0),R");
  const json& totals = report["totals"];
  EXPECT_EQ(totals["bytes_received_total"], received);
  EXPECT_LE(totals["time_us"].get<double>(), time_us * 1.000001)
      << "the slowest rank of each step need not be the same";
  EXPECT_LE(totals["peak_bytes"], totals["bound_bytes"]);
  EXPECT_EQ(report["verified"], true);
  EXPECT_EQ(report["run"]["ranks"], 8);
  EXPECT_EQ(report["run"]["elements_compared"], 4 * 5 * 7 * 5 + 4 * 4 * 7 * 5);
}

TEST(RedistributeCommand, WithoutRunThereIsNoVerdict) {
  const json report = json_of(example({"--json"}));
  EXPECT_FALSE(report.contains("verified"));
  EXPECT_FALSE(report.contains("run"));
}

TEST(RedistributeCommand, AlternativesAreExplained) {
  EXPECT_THAT(cpsim(example()).out, HasSubstr("why not one direct exchange"));
  const json report = json_of(example({"--json"}));
  EXPECT_GT(report["direct_exchange"]["totals"]["time_us"], report["totals"]["time_us"]);
  EXPECT_LT(report["leanest"]["totals"]["peak_bytes"], report["totals"]["peak_bytes"]);
}

TEST(RedistributeCommand, TheParetoSetMarksTheChosenPlan) {
  const json report = json_of(example({"--pareto", "--json"}));
  const json& plans = report["pareto"];
  ASSERT_GE(plans.size(), 2U);
  for (std::size_t i = 1; i < plans.size(); ++i) {
    EXPECT_GT(plans[i]["totals"]["time_us"], plans[i - 1]["totals"]["time_us"]);
    EXPECT_LT(plans[i]["totals"]["peak_bytes"], plans[i - 1]["totals"]["peak_bytes"]);
  }
  const std::string text = cpsim(example({"--pareto"})).out;
  EXPECT_THAT(text, ContainsRegex("\n\\* .*all_to_all\\(dp,cp,tp\\)\n"));
  EXPECT_THAT(text, ContainsRegex("\n  .*exchange\\(dp,cp,tp\\)\n"));
}

TEST(RedistributeCommand, ObjectiveBytesNeverMovesMore) {
  const Words request = redistribute({"--mesh", "a=2,b=4", "--shape", "24x24", "--from", "S(0),R", "--to",
                                      "R,S(0)", "--json", "--objective"});
  const auto bytes = [&](const std::string& objective) {
    Words words = request;
    words.push_back(objective);
    return json_of(words)["totals"]["bytes_received_max"].get<std::int64_t>();
  };
  EXPECT_LE(bytes("bytes"), bytes("time"));
}

TEST(RedistributeCommand, EqualIndexMapsNeedNoStep) {
  const Finished finished = cpsim(redistribute({"--mesh", "a=2,b=2", "--to-mesh", "c=4", "--shape", "8x3",
                                                "--from", "S(0),S(0)", "--to", "S(0)", "--run"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out,
              AllOf(HasSubstr("no steps"), HasSubstr("the same index maps"), HasSubstr("verified: 4 ranks")));
}

TEST(RedistributeCommand, CostModelFlagsChangeTheTime) {
  const double before = json_of(example({"--json"}))["totals"]["time_us"];
  const double slow = json_of(example({"--json", "--step-latency-us", "1000"}))["totals"]["time_us"];
  EXPECT_NEAR(slow - before, 990, 1e-6);
  const Words tp = {"--mesh", "dp=2,tp=4", "--shape", "1024x1024", "--from",
                    "R,S(0)", "--to",      "R,R",     "--json"};
  Words faster = tp;
  faster.insert(faster.end(), {"--axis-gbps", "dp=45,tp=600"});
  EXPECT_LT(json_of(redistribute(faster))["totals"]["time_us"],
            json_of(redistribute(tp))["totals"]["time_us"]);
}

// A sum inside of a node takes what `estimate` says of it.
TEST(RedistributeCommand, OnAClusterMovesTakeWhatEstimateSays) {
  const Words sum = redistribute({"--cluster", "dgx-h100", "--mesh", "tp=8", "--shape", "8192x16384",
                                  "--dtype", "bf16", "--from", "P(sum)", "--to", "R", "--json"});
  const json report = json_of(sum);
  EXPECT_EQ(report["cluster"], "dgx-h100, 1 node");
  ASSERT_EQ(report["steps"].size(), 1U);
  EXPECT_EQ(report["steps"][0]["kind"], "all_reduce");
  const double estimated = json_of({"estimate", "--cluster", "dgx-h100", "--collective", "all_reduce",
                                    "--bytes", "256MiB", "--json"})["time_us"];
  EXPECT_NEAR(report["steps"][0]["time_us"].get<double>(), estimated, 1e-6 * estimated);
  // What an all-reduce that is not in place copies comes before it.
  EXPECT_GE(report["totals"]["time_us"].get<double>(), estimated * (1 - 1e-6));
  EXPECT_LT(report["totals"]["time_us"].get<double>(), 1.5 * estimated);
}

TEST(RedistributeCommand, ClustersDifferAndSoDoNodes) {
  const auto us = [](const std::string& cluster, const std::string& mesh) {
    return json_of(redistribute({"--cluster", cluster, "--mesh", mesh, "--shape", "8192x16384", "--dtype",
                                 "bf16", "--from", "S(0)", "--to", "S(1)", "--json"}))["totals"]["time_us"]
        .get<double>();
  };
  EXPECT_LT(us("hgx-b200", "tp=8"), us("dgx-a100", "tp=8"));
  EXPECT_LT(us("dgx-a100", "tp=8"), us("l20-pcie", "tp=8"));
  EXPECT_LT(us("dgx-h100", "tp=8"), us("dgx-h100", "tp=8@0/1/2/3/8/9/10/11"));
}

TEST(RedistributeCommand, AClusterAndACostModelAreTwoAnswersToOneQuestion) {
  const auto error = [](const Words& more) {
    const Finished finished = cpsim(example(more));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(
      error({"--cluster", "dgx-h100", "--node-gbps", "300"}),
      HasSubstr("--cluster dgx-h100 says what moves cost, and so do the flags of the cost model; leave one"));
  EXPECT_THAT(error({"--cluster", "dgx-h10"}), HasSubstr("dgx-h100"));
  EXPECT_THAT(error({"--nodes", "2"}), HasSubstr("add, for example, --cluster dgx-h100"));
  EXPECT_THAT(error({"--cluster", "a100-pcie", "--nodes", "1"}), HasSubstr("use --nodes 2"));
}

TEST(RedistributeCommand, ThePlanOfARankIsThatOfTheLibrary) {
  const Finished finished = cpsim(example({"--plan", "--rank", "3"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const Mesh mesh = Mesh::parse("dp=2,cp=2,tp=2");
  const Shape shape = {32, 32, 16};
  const Plan expected = lower(plan_redistribution(parse_layout("S(0),S(0),S(0)", mesh, shape, DType::f32),
                                                  parse_layout("S(1),S(1),S(1)", mesh, shape, DType::f32)),
                              3);
  EXPECT_EQ(parse_plan(finished.out), expected);
}

TEST(RedistributeCommand, GradientsAreRedistributionsToo) {
  for (const std::string rule : {"adjoint", "replicated"}) {
    const json report =
        json_of(redistribute({"--mesh", "dp=2,tp=2", "--shape", "8x6", "--from", "S(0),P(sum)", "--to",
                              "R,S(1)", "--gradient", rule, "--run", "--json"}));
    EXPECT_EQ(report["verified"], true);
    EXPECT_EQ(report["from"], rule == "adjoint" ? "P(sum),S(1)" : "R,S(1)");
    EXPECT_EQ(report["to"], "S(0),R");
  }
}

// The backward of an average: what every plan ends with.
Words averages_gradient(const Words& more = {}) {
  Words words = redistribute(
      {"--mesh", "dp=4", "--shape", "8x3", "--from", "P(avg)", "--to", "S(0)", "--gradient", "adjoint"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(RedistributeCommand, AGradientsFactorIsAStepOfTheReportAndOfThePlanThatRuns) {
  const Finished finished = cpsim(averages_gradient({"--run"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("gradient of P(avg) -> S(0) (adjoint)"),
                                  ContainsRegex("1  all_gather +dp +S\\(0\\) +R"),
                                  ContainsRegex("2  scale x0.25 +- +R +R"), HasSubstr("verified: 4 ranks")));
  const json report = json_of(averages_gradient({"--run", "--json", "--local-latency-us", "1000"}));
  EXPECT_EQ(report["gradient"]["scale"], 0.25);
  ASSERT_EQ(report["steps"].size(), 2U);
  EXPECT_EQ(report["steps"][1]["kind"], "scale");
  EXPECT_EQ(report["steps"][1]["factor"], 0.25);
  EXPECT_EQ(report["verified"], true);
  const double scale_us = report["steps"][1]["time_us"].get<double>();
  EXPECT_GT(scale_us, 1000) << "a local step";
  EXPECT_EQ(report["totals"]["time_us"].get<double>(),
            report["steps"][0]["time_us"].get<double>() + scale_us);

  const Plan plan = parse_plan(cpsim(averages_gradient({"--plan", "--rank", "2"})).out);
  const std::vector<StepRef> steps = steps_of(plan);
  ASSERT_FALSE(steps.empty());
  const auto* kernel = std::get_if<Kernel>(&steps.back().step->work);
  ASSERT_NE(kernel, nullptr);
  ASSERT_TRUE(std::holds_alternative<Scale>(*kernel));
  EXPECT_EQ(std::get<Scale>(*kernel).factor, 0.25);
}

TEST(RedistributeCommand, AScaleAloneIsAStepToo) {
  const Words words = redistribute(
      {"--mesh", "a=2", "--shape", "4", "--from", "P(avg)", "--to", "R", "--gradient", "adjoint", "--run"});
  const Finished finished = cpsim(words);  // R, P(sum)'s dual, comes in and stays R, P(avg)'s
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out,
              AllOf(HasSubstr("scale x0.5"), Not(HasSubstr("no steps")), HasSubstr("verified")));
}

TEST(RedistributeCommand, TheParetoSetOfAGradientIsScaledToo) {
  const Finished finished = cpsim(averages_gradient({"--pareto"}));
  EXPECT_THAT(finished.out, ContainsRegex("\n\\* .*all_gather\\(dp\\) > scale x0.25\n"));
}

// MindSpeed's grad_scale: by the ranks of the group that gathers.
TEST(RedistributeCommand, GradientScalesAreByTheRanksThatSplitOrGather) {
  const std::vector<std::pair<std::string, double>> scales = {{"up", 6}, {"down", 1 / 6.0}, {"none", 1}};
  for (const auto& [word, factor] : scales) {
    for (const std::string from : {"S(0,head_tail),S(0,balanced),R", "R,R,S(1)"}) {
      const std::string to =
          from == "R,R,S(1)" ? "S(0,per_sequence:0/5/13:sizes:1/4:8/0),S(0,balanced),S(1)" : "R,R,R";
      const json report = json_of(
          redistribute({"--mesh", "ring=2,ulysses=3,dp=2", "--shape", "13x4", "--from", from, "--to", to,
                        "--gradient", "replicated", "--gradient-scale", word, "--run", "--json"}));
      EXPECT_EQ(report["gradient"]["scale"], factor) << word;
      EXPECT_EQ(report["verified"], true);
      EXPECT_EQ(report["steps"].back()["kind"] == "scale", word != "none");
    }
  }
}

// What is saved is the gradient, and what is read again is the same plan.
TEST(RedistributeCommand, ScenariosKeepTheGradientAndItsScale) {
  const TemporaryFolder folder;
  const std::string path = folder.file("backward.txtpb");
  const Words flags = redistribute({"--mesh", "cp=3", "--shape", "7x2", "--from", "S(0,balanced)", "--to",
                                    "R", "--gradient", "replicated", "--gradient-scale", "up"});
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const json saved = json_of(with(flags, {"--json", "--save-scenario", path}));
  EXPECT_EQ(saved["gradient"]["scale"], 3);
  const proto::Scenario scenario = read_scenario_file(path);
  EXPECT_EQ(scenario.redistribute().gradient(), proto::Redistribute::replicated);
  EXPECT_EQ(scenario.redistribute().gradient_scale(), proto::Redistribute::up);
  EXPECT_EQ(scenario.redistribute().from(), "S(0,balanced)") << "the redistribution's, not the backward's";
  EXPECT_EQ(json_of(redistribute({"--scenario", path, "--json"})), saved);
  EXPECT_EQ(cpsim(redistribute({"--scenario", path, "--plan"})).out, cpsim(with(flags, {"--plan"})).out);
  EXPECT_THAT(cpsim(redistribute({"--scenario", path, "--run"})).out, HasSubstr("verified: 3 ranks"));
  // A default that is asked for is not left out.
  EXPECT_FALSE(json_of(redistribute({"--scenario", path, "--gradient", "forward", "--gradient-scale", "none",
                                     "--json"}))
                   .contains("gradient"));
}

TEST(RedistributeCommand, EveryReductionAndDtypeIsVerified) {
  for (const std::string op : {"sum", "avg", "min", "max", "product"}) {
    for (const std::string dtype : {"f32", "f16", "bf16", "i32", "i64"}) {
      if (op == "avg" && dtype.front() == 'i') continue;
      const Finished finished =
          cpsim(redistribute({"--mesh", "a=3,b=2", "--shape", "7x5", "--dtype", dtype, "--from",
                              "P(" + op + "),S(0)", "--to", "S(1),R", "--run"}));
      EXPECT_EQ(finished.exit_code, 0) << op << " " << dtype << ": " << finished.err;
      EXPECT_THAT(finished.out, HasSubstr("verified: 6 ranks"));
    }
  }
}

TEST(RedistributeCommand, ThePlanKeepsTheSchedulesSeedsAndTypesGiven) {
  const Finished finished =
      cpsim(example({"--run", "--schedule", "baton", "--seed", "7", "--travel-dtype", "bf16"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("travels as bf16"), HasSubstr("verified")));
}

TEST(RedistributeCommand, TracesAreWritten) {
  const TemporaryFolder folder;
  const Finished finished = cpsim(example({"--run", "--trace", folder.file("run.trace")}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const TraceFile trace = read_trace_file(folder.file("run.trace"));
  EXPECT_FALSE(trace.truncation);
  ASSERT_EQ(trace.ranks.size(), 8U);
  EXPECT_FALSE(first_difference(trace.ranks, trace.ranks));
  EXPECT_FALSE(trace.ranks.front().observed.empty());
  EXPECT_TRUE(trace.ranks.front().digests.contains("output"));
}

TEST(RedistributeCommand, ScenariosSayWhatTheFlagsMean) {
  const TemporaryFolder folder;
  const std::string path = folder.file("change.txtpb");
  const Words flags = {
      "--objective", "bytes", "--max-memory-factor",   "1.5", "--travel-dtype", "bf16",         "--seed", "3",
      "--schedule",  "baton", "--exchange-efficiency", "0.9", "--axis-gbps",    "dp=45,tp=300", "--json"};
  Words save = flags;
  save.insert(save.end(), {"--save-scenario", path});
  const json saved = json_of(example(save));
  EXPECT_EQ(saved, json_of(redistribute({"--scenario", path, "--json"})));
  EXPECT_EQ(saved, json_of(example(flags))) << "the scenario is not only right for itself";
  const std::string again = folder.file("again.txtpb");
  cpsim(redistribute({"--scenario", path, "--save-scenario", again}));
  EXPECT_EQ(write_scenario_text(read_scenario_file(path)), write_scenario_text(read_scenario_file(again)));
}

TEST(RedistributeCommand, FlagsOverrideTheScenario) {
  const TemporaryFolder folder;
  const std::string path = folder.file("change.txtpb");
  const Finished saved =
      cpsim(example({"--objective", "bytes", "--travel-dtype", "bf16", "--save-scenario", path}));
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const json report =
      json_of(redistribute({"--scenario", path, "--objective", "time", "--shape", "16x16x16", "--json"}));
  EXPECT_EQ(report["objective"], "time") << "a default that is asked for is not left out";
  EXPECT_EQ(report["shape"], (std::vector<int>{16, 16, 16}));
  EXPECT_EQ(report["travel_dtype"], "bf16");
}

TEST(RedistributeCommand, ErrorsInScenariosHaveAPlace) {
  const TemporaryFolder folder;
  const std::string path = folder.file("wrong.txtpb");
  std::ofstream(path)
      << "redistribute {\n  mesh: \"dp=2\"\n  shap: \"8x8\"\n  from: \"S(0)\"\n  to: \"R\"\n}\n";
  const Finished finished = cpsim(redistribute({"--scenario", path}));
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("wrong.txtpb:3:"), HasSubstr("shape")));
  EXPECT_THAT(finished.out, IsEmpty());
}

TEST(RedistributeCommand, AFailedRunSaysSoInJson) {
  // 16 TiB: planned, explained, not run.
  const Finished finished = cpsim(redistribute(
      {"--mesh", "a=4", "--shape", "1Mix4Mi", "--from", "S(0)", "--to", "S(1)", "--run", "--json"}));
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_EQ(json::parse(finished.out)["verified"], false);
  EXPECT_THAT(finished.err,
              AllOf(HasSubstr("needs 48 TiB"), HasSubstr("are free"), HasSubstr("use --shape")));
}

}  // namespace
}  // namespace cp::cli
