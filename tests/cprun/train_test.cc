// cprun train as processes: what threads cannot show (tests/training).
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"
#include "tests/training/curve_tolerance.h"
#include "traces/trace_files.h"

namespace cp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string small(const cli::TemporaryFolder& folder, int steps) {
  return scenario(
      folder, str(R"(train { model: "llama-3.1-8b" scaled_down: true layout: "dp_shard=2,cp=2,strategy=ring"
    seq_len: 24 global_batch: 4 learning_rate: 5e-4 steps: )",
                  steps, " }"));
}

// Of the lines of steps, by step.
std::vector<double> losses_in(const std::string& log) {
  std::ifstream file(log);
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["event"] != "step") continue;
    losses.resize(std::max<std::size_t>(losses.size(), json["step"].get<std::size_t>()));
    losses[json["step"].get<std::size_t>() - 1] = json["loss"];
  }
  return losses;
}

void expect_near(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], curve_tolerance(static_cast<std::int64_t>(i) + 1) * expected[i])
        << i + 1;
}

TEST(CprunTrain, DoesWhatTheFabricDoes) {
  const cli::TemporaryFolder folder;
  // Of pipelines with fewer micro-batches than stages, as many, and more.
  for (const char* layout :
       {"dp_shard=2,cp=2,strategy=ring", "pp=4,micro_batch=2", "pp=4", "pp=2,virtual_stages=2,tp=2"}) {
    const ProgramEnd end = cprun({"--verify", "train", small(folder, 2), "--layout", layout});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.out, HasSubstr("identical: 4 ranks, "));
    EXPECT_THAT(end.out, HasSubstr("losses of 2 steps differ by at most "));
  }
}

TEST(CprunTrain, LeavesATraceWithTheTimesOfAllSteps) {
  const cli::TemporaryFolder folder;
  const std::string trace = folder.file("run.cptrace");
  const ProgramEnd end = cprun({"--trace", trace, "train", small(folder, 2), "--layout", "dp_shard=2"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const TraceFile file = read_trace_path(trace);
  ASSERT_EQ(file.ranks.size(), 2U);
  for (const RankTrace& rank : file.ranks) {
    EXPECT_GT(rank.issued.size(), 100U);
    EXPECT_EQ(rank.issued_times.size(), rank.issued.size());
    EXPECT_FALSE(rank.observed.empty());
    ASSERT_TRUE(rank.environment);
    EXPECT_EQ(rank.environment->backend, "gloo");
  }
  EXPECT_THAT(cprun({"--trace", trace, "--verify", "train", small(folder, 2)}).err,
              HasSubstr("--verify takes the ranks' traces itself"));
}

// dp_shard=-1 is what is left of the processes that are started, for launcher and ranks alike.
TEST(CprunTrain, FillsTheProcessesWithShards) {
  const cli::TemporaryFolder folder;
  const ProgramEnd end =
      cprun({"--nproc-per-node", "4", "train", small(folder, 1), "--layout", "tp=2,dp_shard=-1"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string degrees = scenario(folder, R"(train { model: "llama-3.1-8b" scaled_down: true seq_len: 24
    steps: 1 parallel_dims { cp: 2 dp_shard: -1 } })");
  const ProgramEnd of_degrees = cprun({"--nproc-per-node", "4", "--verify", "train", degrees});
  EXPECT_EQ(of_degrees.exit_code, 0) << of_degrees.err;
  EXPECT_THAT(of_degrees.out, HasSubstr("identical: 4 ranks, "));
}

// From a question to a proof: what cpsim plan hands over runs on processes as on the fabric, and on threads.
TEST(CprunTrain, RunsWhatPlanHandsOver) {
  const cli::TemporaryFolder folder;
  const std::string path = folder.file("train.txtpb");
  const cli::Finished planned =
      cli::cpsim({"plan", "--model", "llama-3.1-8b", "--gpus", "4", "--seq-len", "32K", "--global-batch", "8",
                  "--explain", "tp=2,cp=2,strategy=ring,recompute=full", "--emit", "cprun", "-o", path});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("next        cprun --verify train " + path));
  const ProgramEnd verified = cprun({"--verify", "train", path, "--steps", "2"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("identical: 4 ranks, "));
  const ProgramEnd threads = cprun({"train", "--ranks-as-threads", path, "--steps", "2"});
  EXPECT_THAT(threads.out, HasSubstr("done: 2 steps")) << threads.err;
}

TEST(CprunTrain, GoesOnOnOtherRanksAndWritesItsCurves) {
  const cli::TemporaryFolder folder;
  const std::string path = small(folder, 6);
  const auto log = [&](const char* name) { return folder.file(name); };
  ASSERT_EQ(cprun({"train", path, "--layout", "tp=1", "--log", log("one")}).exit_code, 0);
  const std::vector<double> one = losses_in(log("one"));
  ASSERT_EQ(one.size(), 6U);
  const auto part = [&](const char* steps, const char* layout) {
    const ProgramEnd end =
        cprun({"train", path, "--steps", "6", "--save", folder.file("run"), "--save-every", steps, "--log",
               log("parts"), "--layout", layout, "--page", log("page.html")});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    return end.out;
  };
  part("2", "dp_shard=2,cp=2,strategy=ring");
  // As if the machine had gone behind step 4.
  fs::remove_all(folder.file("run/step-00000006"));
  EXPECT_THAT(part("6", "tp=2"), HasSubstr("goes on behind step 4"));
  expect_near(losses_in(log("parts")), one);
  std::ifstream page(log("page.html"));
  const std::string text((std::istreambuf_iterator<char>(page)), {});
  EXPECT_THAT(text, HasSubstr("<h2>Loss"));
  EXPECT_THAT(text, HasSubstr("</html>"));
}

// The same command goes on, whichever of the two signals ended it.
TEST(CprunTrain, SavesWhenItIsStoppedAndGoesOn) {
  const cli::TemporaryFolder folder;
  const std::string path = small(folder, 1'000'000), save = folder.file("run");
  bool first = true;
  for (const int signal : {SIGTERM, SIGINT}) {
    Program job({built("cprun"), "train", path, "--save", save, "--log", folder.file("log")});
    ASSERT_TRUE(within(std::chrono::seconds(120), [&] {
      return job.read("out").find("] step ") != std::string::npos;
    })) << job.read("err");
    job.signal(signal);
    const ProgramEnd end = job.finish();
    EXPECT_THAT(end.out, HasSubstr("saved in ")) << end.err;
    EXPECT_THAT(end.out, HasSubstr(first ? "begins with parameters drawn" : "goes on behind step"));
    first = false;
    EXPECT_EQ(end.exit_code, 128 + signal) << end.err;
  }
  // None is made twice, and none is left out.
  const std::vector<double> losses = losses_in(folder.file("log"));
  EXPECT_EQ(std::count(losses.begin(), losses.end(), 0), 0);
}

// A rank that is killed at any moment: the same command goes on, and the curve is as if nothing had happened.
// At each phase of a checkpoint: training_rank_test.cc.
TEST(CprunTrain, GoesOnBehindAKilledRank) {
  const cli::TemporaryFolder folder;
  const std::string path = small(folder, 6), save = folder.file("run"), log = folder.file("log");
  ASSERT_EQ(cprun({"train", path, "--log", folder.file("whole")}).exit_code, 0);
  const std::vector<std::string> words = {built("cprun"), "train", path,    "--save", save,
                                          "--save-every", "1",     "--log", log};
  Program job(words);
  within(std::chrono::seconds(120),
         [&] { return losses_in(log).size() >= 2 || job.children("cprun").empty(); });
  const std::vector<pid_t> ranks = job.children("cprun");
  if (ranks.size() == 4) kill(ranks[2], SIGKILL);
  job.finish();
  const ProgramEnd end = cprun({words.begin() + 1, words.end()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("goes on behind step"));
  EXPECT_EQ(losses_in(log), losses_in(folder.file("whole")));
}

TEST(CprunTrain, RefusesWhatCannotRun) {
  const cli::TemporaryFolder folder;
  const auto error = [&](std::vector<std::string> arguments) {
    const ProgramEnd end = cprun(std::move(arguments));
    EXPECT_EQ(end.exit_code, 2);
    return end.err;
  };
  EXPECT_THAT(error({"train"}), HasSubstr("there is nothing to train"));
  EXPECT_THAT(error({"train", ring(folder)}),
              HasSubstr("has no train { ... }; run it without the word train"));
  EXPECT_THAT(error({small(folder, 2)}), HasSubstr("the scenario trains a model; use cprun train with it"));
  EXPECT_THAT(error({"--nproc-per-node", "3", "train", small(folder, 2)}),
              HasSubstr("has 4 ranks, and 3 are started; use --nproc-per-node 4, or another layout"));
  EXPECT_THAT(error({"train", small(folder, 2), "--step", "3"}),
              HasSubstr("unknown flag '--step'; did you mean --steps?"));
}

}  // namespace
}  // namespace cp::testing
