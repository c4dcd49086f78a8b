// cpsim run, from the outside.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "shared/context_parallel/kernel_options.h"
#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (std::to_string(getpid()) + name)).string();
}

TEST(RunCommand, OneStrategyIsExact) {
  const Finished finished =
      cpsim({"run", "--mesh", "cp=8", "--strategy", "ring", "--balance", "head_tail", "--seq-len", "256",
             "--q-heads", "8", "--kv-heads", "2", "--head-dim", "16", "--causal", "--backward"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("ring head_tail"));
  EXPECT_THAT(finished.out, HasSubstr("1 of 1 exact"));
  EXPECT_THAT(finished.err, IsEmpty());
}

// Plans of a GPU run on the fabric; results lie within what its 16-bit partial results cost.
TEST(RunCommand, PlansForAGpuKeepTheirBounds) {
  const std::vector<std::string> run = {"run", "--mesh",    "cp=4", "--strategies", "all",       "--seq-len",
                                        "61",  "--q-heads", "8",    "--kv-heads",   "2",         "--head-dim",
                                        "16",  "--dtype",   "bf16", "--causal",     "--backward"};
  const Finished finished = cpsim(with(run, {"--target", "sm90", "--json"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const auto report = nlohmann::json::parse(finished.out);
  for (const auto& row : report["strategies"]) EXPECT_EQ(row["exact"], true) << row;
  const Finished wrong = cpsim(with(run, {"--target", "sm91"}));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(
      wrong.err,
      HasSubstr("--target sm91: target 'sm91' is unknown; use one of host, sm80, sm90, sm100, sm120"));
}

TEST(RunCommand, AllStrategiesAreExactOnAnOddLength) {
  const Finished finished =
      cpsim({"run", "--mesh", "cp=4", "--strategies", "all", "--seq-len", "61", "--q-heads", "8",
             "--kv-heads", "2", "--head-dim", "8", "--causal", "--backward", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const auto report = nlohmann::json::parse(finished.out);
  EXPECT_GT(report["strategies"].size(), 10U);
  for (const auto& row : report["strategies"]) EXPECT_EQ(row["exact"], true) << row;
}

// More ranks than query heads: Ulysses over all of them is refused, and its alternative runs.
TEST(RunCommand, ARefusedStrategysAlternativeRuns) {
  const Finished finished =
      cpsim({"run", "--mesh", "cp=8", "--strategies", "all", "--seq-len", "61", "--q-heads", "6",
             "--kv-heads", "3", "--head-dim", "8", "--causal", "--documents", "0/7/7/50", "--padding"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out,
              HasSubstr("ulysses(8) contiguous: refused: ulysses_degree=8 is more than q_heads=6"));
  EXPECT_THAT(finished.out, HasSubstr("refused; this instead: exact"));
  EXPECT_THAT(finished.out, HasSubstr(" exact, 1 in place of refused ones: 8 ranks"));
  EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
}

// What copy engines cannot move runs by multiprocessors instead.
TEST(RunCommand, CopyEnginesMoveWhatTheyCan) {
  const std::vector<std::string> run = {"run",        "--mesh",      "cp=4",       "--q-heads", "8",
                                        "--kv-heads", "4",           "--head-dim", "8",         "--causal",
                                        "--backward", "--transfers", "copy_engine"};
  const Finished finished = cpsim(with(run, {"--seq-len", "64", "--strategies", "all"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("ring head_tail, copy engines"));
  EXPECT_THAT(finished.out, HasSubstr("refused: transfers=copy_engine cannot serve pass_q"));
  EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
  const Finished odd = cpsim(with(run, {"--seq-len", "61", "--strategy", "ulysses"}));
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("they hold 15 or 16 query rows each; pad the sequence to a multiple of 8"));
}

TEST(RunCommand, MergesBesideAttention) {
  const Finished finished =
      cpsim({"run", "--mesh", "cp=4", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "8", "--causal",
             "--backward", "--seq-len", "61", "--merges", "beside", "--strategies", "all"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("ring head_tail, merges beside"));
  EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
}

// What a hybrid is on a prime number of ranks is said, and nothing runs twice under two names.
TEST(RunCommand, SaysWhatANameStandsFor) {
  const std::vector<std::string> shape = {"run",       "--mesh", "cp=5",       "--seq-len", "40",
                                          "--q-heads", "6",      "--head-dim", "4"};
  const Finished hybrid = cpsim(with(shape, {"--strategy", "ulysses_ring"}));
  EXPECT_EQ(hybrid.exit_code, 0) << hybrid.err;
  EXPECT_THAT(hybrid.out, HasSubstr("ulysses_ring: no degree between 1 and 5 divides the 5 ranks, so "
                                    "ulysses(5) contiguous ran instead"));
  const Finished rings = cpsim(with(shape, {"--strategy", "double_ring"}));
  EXPECT_THAT(rings.out, HasSubstr("double_ring: no number between 1 and 5 divides the 5 ranks, so ring"));
  const Finished plain = cpsim(with(shape, {"--strategy", "ulysses"}));
  EXPECT_THAT(plain.out, Not(HasSubstr("divides")));

  const Finished all = cpsim(with(shape, {"--strategies", "all", "--json"}));
  std::set<std::string> names;
  const auto report = nlohmann::json::parse(all.out);
  for (const auto& row : report["strategies"]) names.insert(row["strategy"]);
  EXPECT_EQ(names.size(), report["strategies"].size());
}

// What changes masks, scores and weights, by every strategy, alone and together.
TEST(RunCommand, ChunksCapsSinksAndDropoutAreExactByAllStrategies) {
  const std::vector<std::string> shape = {
      "run", "--mesh",     "cp=4", "--strategies", "all", "--seq-len", "61",        "--q-heads",
      "4",   "--kv-heads", "2",    "--head-dim",   "8",   "--causal",  "--backward"};
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--chunk", "16"},
           {"--softcap", "2"},
           {"--sinks"},
           {"--dropout", "0.1"},
           {"--attention-chunk", "9", "--window", "7", "--softcap", "30", "--sink-logits", "--dropout-p",
            "0.5", "--documents", "0/20/61", "--dtype", "bf16"}}) {
    const Finished finished = cpsim(with(shape, flags));
    EXPECT_EQ(finished.exit_code, 0) << join(flags, " ") << ": " << finished.err << finished.out;
    EXPECT_THAT(finished.out, HasSubstr("exact: 4 ranks"));
    EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
    EXPECT_EQ(finished.out.find("error dsinks") != std::string::npos,
              flags.front() == "--sinks" || flags.size() > 2);
  }
  const Finished wrong = cpsim(with(shape, {"--dropout", "1"}));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("dropout=1 is not a probability below 1; use, for example, 0.1"));
  EXPECT_THAT(cpsim(with(shape, {"--softcap", "-3"})).err, HasSubstr("softcap=-3 bounds no score"));
  EXPECT_THAT(cpsim(with(shape, {"--chunk", "0"})).err, HasSubstr("--chunk 0"));
}

// Each strategy both ways, and what the table says of the way.
TEST(RunCommand, LatentRowsRunWithEveryStrategy) {
  const std::vector<std::string> shape = {"run", "--mesh",    "cp=4",      "--strategies", "all", "--seq-len",
                                          "61",  "--q-heads", "4",         "--head-dim",   "8",   "--latent",
                                          "12",  "--causal",  "--backward"};
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {},
           {"--keys", "heads"},
           {"--keys", "latent", "--rope-dim", "3"},
           {"--qk-rope-head-dim", "3", "--dtype", "bf16", "--documents", "0/20/61", "--sinks"}}) {
    const Finished finished = cpsim(with(shape, flags));
    EXPECT_EQ(finished.exit_code, 0) << join(flags, " ") << ": " << finished.err << finished.out;
    EXPECT_THAT(finished.out, AllOf(HasSubstr(": 4 ranks"), HasSubstr("keys travel as"),
                                    HasSubstr("error dlatent"), HasSubstr("error dkv_up")));
    EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
    const std::string keys = flags.empty() ? "" : flags[1];
    EXPECT_EQ(finished.out.find("ring head_tail, heads travel") != std::string::npos, keys == "heads");
    EXPECT_EQ(finished.out.find("ring head_tail, latent rows travel") != std::string::npos, keys == "latent");
    if (!keys.empty()) continue;
    EXPECT_THAT(finished.out, ContainsRegex("ring head_tail  *latent  "));
    EXPECT_THAT(finished.out, ContainsRegex("pass_q head_tail  *heads  "));
  }
  EXPECT_THAT(cpsim(with(shape, {"--keys", "rows"})).err,
              HasSubstr("unknown travelling keys 'rows'; use heads, latent or fewer_bytes"));
  EXPECT_THAT(cpsim(with(shape, {"--rope-dim", "8"})).err,
              HasSubstr("rope_dim=8 leaves nothing of head_dim=8"));
  EXPECT_THAT(
      cpsim(with(shape, {"--gradients", "dq,dk"})).out + cpsim(with(shape, {"--gradients", "dq,dk"})).err,
      HasSubstr("dk and dv of latent rows become dlatent and dkv_up together"));
}

// By flags and by fields of a scenario alike, with the reason and what works instead.
TEST(RunCommand, OptionsThatNoKernelHasAreRefusedByName) {
  const std::set<KernelOption> numbers = {KernelOption::sink_tokens, KernelOption::prefix,
                                          KernelOption::sparse_mode},
                               switches = {KernelOption::return_weights, KernelOption::skip_lse};
  const std::string path = temporary("options.txtpb");
  for (const KernelOptionInfo& option : kernel_options()) {
    const std::string name(option.name);
    std::string flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool is_number = numbers.contains(option.option), is_switch = switches.contains(option.option);
    const std::string value = is_switch ? "" : is_number ? "7" : "each";
    const auto refused = [&](const Finished& finished) {
      EXPECT_EQ(finished.exit_code, 2) << finished.out;
      EXPECT_THAT(finished.err, HasSubstr(name + (value.empty() ? "" : "=" + value) + ": " +
                                          std::string(option.reason) + "; " + std::string(option.instead)));
    };
    std::vector<std::string> flags = {"run", "--mesh", "cp=2", "--seq-len", "8", flag};
    if (!is_switch) flags.push_back(value);
    refused(cpsim(flags));
    std::ofstream(path) << "run { mesh: 'cp=2' seq_len: 8 " << name << ": "
                        << (is_switch   ? "true"
                            : is_number ? value
                                        : "'" + value + "'")
                        << " }";
    refused(cpsim({"run", "--scenario", path}));
    if (!is_number) continue;
    const Finished none = cpsim({"run", "--mesh", "cp=2", "--seq-len", "8", "--head-dim", "4", flag, "0"});
    EXPECT_EQ(none.exit_code, 0) << none.err;
  }
  std::filesystem::remove(path);
}

TEST(RunCommand, OneRefusedStrategyIsAnErrorThatSaysWhatWorks) {
  const Finished finished =
      cpsim({"run", "--mesh", "cp=8", "--strategy", "ulysses", "--seq-len", "64", "--q-heads", "6"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("use 4, of {1, 2, 4}"));
}

TEST(RunCommand, BadInputNamesTheFlagAndWhatWorks) {
  const std::vector<std::string> base = {"run", "--mesh", "cp=4", "--seq-len", "64"};
  const auto error = [&](const std::vector<std::string>& more) {
    const Finished finished = cpsim(with(base, more));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"--balance", "snake"}), HasSubstr("--balance snake"));
  EXPECT_THAT(error({"--documents", "0/20"}),
              AllOf(HasSubstr("44 of 64 keys belong to no document; let the last document end at 64"),
                    HasSubstr("--padding")));
  EXPECT_THAT(error({"--batch", "2", "--documents", "0/64;0/8"}),
              HasSubstr("0/8 ends at 8, so 56 of 64 keys"));
  EXPECT_THAT(error({"--strategy", "rng"}), HasSubstr("did you mean ring?"));
  EXPECT_THAT(error({"--documents", "0/80"}), HasSubstr("end at 80, beyond kv_len=64"));
  EXPECT_THAT(error({"--strategies", "all", "--trace", "x"}), HasSubstr("--trace x holds one run"));
  EXPECT_THAT(error({"--rotation", "left"}), HasSubstr("use exchange or all_gather"));
  EXPECT_THAT(error({"--transfers", "dma"}), HasSubstr("use sm or copy_engine"));
  EXPECT_THAT(error({"--merges", "later"}), HasSubstr("use in_turn or beside"));
  EXPECT_THAT(error({"--format", "thd"}), HasSubstr("unknown tensor format 'thd'; use bshd, bnsd or sbhd"));
  EXPECT_THAT(error({"--lse", "there"}), HasSubstr("--lse there is unknown; use home or computed"));
  EXPECT_THAT(error({"--gradients", "dq"}), HasSubstr("add --backward"));
  EXPECT_THAT(error({"--backward", "--gradients", "q"}), HasSubstr("--gradients q: 'q' is not a gradient"));
  EXPECT_THAT(error({"--batch", "3", "--documents", "0/64;0/8"}), HasSubstr("or 3 lists"));
}

// Every strategy holds every ledger: queries alone learn, of batch entries with documents of their own, in
// Megatron's order.
TEST(RunCommand, AllStrategiesTakeWhatIsAskedOfThem) {
  for (const std::vector<std::string>& asked :
       {std::vector<std::string>{"--gradients", "dq", "--lse", "home"},
        {"--gradients", "dk,dv", "--lse", "computed"}}) {
    const Finished finished =
        cpsim(with({"run",      "--mesh",     "cp=4",       "--strategies", "all",         "--seq-len",
                    "61",       "--batch",    "2",          "--q-heads",    "4",           "--kv-heads",
                    "2",        "--head-dim", "8",          "--causal",     "--documents", "0/7/7/50;0/30/61",
                    "--format", "sbhd",       "--backward", "--padding"},
                   asked));
    EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
    EXPECT_THAT(finished.out, HasSubstr(", 3/2 documents by batch entry"));
    EXPECT_THAT(finished.out, HasSubstr("forward and backward (" + asked[1] + ")"));
    EXPECT_THAT(finished.out, Not(HasSubstr("WRONG")));
    EXPECT_EQ(finished.out.find("error dq") == std::string::npos, asked[1] != "dq");
  }
}

TEST(RunCommand, WhatDoesNotFitIsRefusedWithALengthThatDoes) {
  const Finished finished = cpsim({"run", "--mesh", "cp=4", "--seq-len", "1000000000000", "--causal"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, ::testing::ContainsRegex(
                                "one device's float64 tensors of .* need .* are free; use --seq-len [0-9]+"));
}

TEST(RunCommand, ScenariosSayWhatTheFlagsMeanAndTracesAreWritten) {
  const std::string scenario = temporary("run.txtpb"), trace = temporary("run.cptrace");
  const Finished saved =
      cpsim({"run", "--mesh", "cp=4", "--strategy", "ulysses_ring", "--balance", "head_tail", "--seq-len",
             "37", "--causal", "--window", "9", "--backward", "--save-scenario", scenario});
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  const Finished again = cpsim({"run", "--scenario", scenario, "--trace", trace});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out,
              HasSubstr("1 x 37 x 8 heads x 64 f32, causal, window 9 on cp=4, forward and backward"));
  EXPECT_GT(std::filesystem::file_size(trace), 0U);
  std::filesystem::remove(scenario);
  std::filesystem::remove(trace);
}

}  // namespace
}  // namespace cp::cli
