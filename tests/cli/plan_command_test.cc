// cpsim plan, from the outside: small searches.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A small space.
const Words kShortTraining = {"plan",      "--model", "llama-3.1-8b",      "--nodes", "1",
                              "--seq-len", "32K",     "--global-batch",    "8",       "--recompute",
                              "selective", "--fix",   "pp=1,loss_chunks=4"};

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// All but how long the search took.
json answer_of(const Finished& finished) {
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  json answer = json::parse(finished.out);
  answer["counts"].erase("seconds");
  return answer;
}

json answer_of_two(const Finished& finished) {
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return json::parse(finished.out);
}

TEST(PlanCommand, TheFirstScreenAnswers) {
  const Finished finished = cpsim({"plan", "--model", "llama-3.1-8b", "--nodes", "1", "--seq-len", "32K",
                                   "--global-batch", "8", "--recompute", "selective", "--baseline", "tp=8"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, IsEmpty());
  for (const char* part :
       {"llama-3.1-8b, 32,768 tokens, 8 GPUs of dgx-h100: ", "\nmodel       llama-3.1-8b: 8.03 B parameters",
        "\nworkload    training: 8 sequences of 32,768 tokens", "\nfixed       recompute=selective\n",
        "optimizer adamw", "\nfastest  step, s", "\nbest        ", "GiB: parameters ", "  pure CP ",
        "  TP + CP ", "  with PP ", "  baseline ",
        "\nruns        cprun train --ranks-as-threads --model llama-3.1-8b --layout ",
        " layouts: ", " replayed, in ",
        "\nnext        cpsim plan --model llama-3.1-8b --nodes 1 --seq-len 32768 --global-batch 8"})
    EXPECT_THAT(finished.out, HasSubstr(part));
  EXPECT_LE(std::count(finished.out.begin(), finished.out.end(), '\n'), 52);
}

TEST(PlanCommand, TheAnswerIsTheSameForAnyNumberOfThreads) {
  const json one = answer_of(cpsim(with(kShortTraining, {"--json", "--threads", "1"})));
  const json three = answer_of(cpsim(with(kShortTraining, {"--json", "--threads", "3"})));
  EXPECT_EQ(one, three);
  EXPECT_EQ(one["schema"], "cpsim.plan/1");
  EXPECT_EQ(one["best"][0]["rank"], 1);
  for (const json& candidate : one["all"]) {
    EXPECT_LE(candidate["memory_bytes"]["counted"], candidate["usable_bytes"]);
    EXPECT_EQ(candidate["layout_fields"]["gpus"], 8);
    EXPECT_LT(candidate["mfu"], 1);
    EXPECT_GT(candidate["mfu"], 0);
  }
  EXPECT_FALSE(one["timeline"]["tracks"].empty());
  EXPECT_FALSE(one["published"].empty());
}

TEST(PlanCommand, WhatIsFixedStaysFixed) {
  const json answer =
      answer_of(cpsim(with(kShortTraining, {"--json", "--fix", "tp=2,cp=4", "--fix",
                                            "strategy=ring,balance=head_tail", "--top", "2"})));
  EXPECT_EQ(answer["question"]["top"], 2);
  for (const json& candidate : answer["all"]) {
    EXPECT_EQ(candidate["layout_fields"]["tp"], 2);
    EXPECT_EQ(candidate["layout_fields"]["cp"], 4);
    EXPECT_EQ(candidate["layout_fields"]["core"], "ring");
    EXPECT_EQ(candidate["layout_fields"]["balance"], "head_tail");
  }
}

TEST(PlanCommand, PrefillAndDecodeHaveScreensOfTheirOwn) {
  const Words serving = {"plan", "--model", "llama-3.1-8b", "--gpus", "4", "--concurrent", "4"};
  const Finished prefill = cpsim(with(serving, {"--phase", "prefill", "--seq-len", "32K"}));
  EXPECT_EQ(prefill.exit_code, 0) << prefill.err;
  EXPECT_THAT(prefill.out, AllOf(HasSubstr("4 GPUs of dgx-h100"), HasSubstr("to the first token"),
                                 HasSubstr("fastest  TTFT, "), HasSubstr("KV cache")));
  const Finished decode = cpsim(with(serving, {"--phase", "decode", "--cached", "32K"}));
  EXPECT_EQ(decode.exit_code, 0) << decode.err;
  EXPECT_THAT(decode.out,
              AllOf(HasSubstr("between tokens"), HasSubstr("fastest  TTIT, "), Not(HasSubstr("MFU"))));
}

TEST(PlanCommand, ExplainsWhyNotAnother) {
  const auto explain = [](const std::string& layout, const Words& more = {}) {
    const Finished finished = cpsim(with(with(kShortTraining, {"--explain", layout}), more));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return finished.out;
  };
  EXPECT_THAT(explain("tp=8,micro_batch=3"), HasSubstr("is rejected: global_batch=8 is not a multiple"));
  EXPECT_THAT(explain("dp_shard=8,cp=1,recompute=none"),
              AllOf(HasSubstr("does not fit"), HasSubstr("activations"), HasSubstr("it would take "),
                    HasSubstr(" than the best, ")));
  EXPECT_THAT(explain("tp=8,loss_chunks=4"), AllOf(HasSubstr("slower than the best"), HasSubstr("difference"),
                                                   HasSubstr("whole"), HasSubstr("\nmemory ")));
  // What it says of a layout holds for the layout that its text means, whatever the software adds to it.
  for (const Words& more : {Words{}, Words{"--software", "usp", "--fix", "cp=8,strategy=ring"},
                            Words{"--fix", "cp=8,strategy=ulysses"}}) {
    const json best = answer_of(cpsim(with(with(kShortTraining, more), {"--json"})))["best"][0];
    EXPECT_THAT(explain(best["layout"], more), HasSubstr("nothing is faster")) << best["layout"];
    const json same = json::parse(explain(best["layout"], with(more, {"--json"})));
    EXPECT_EQ(same["step_us"], best["step_us"]) << best["layout"];
  }
  const json why = json::parse(explain("tp=8,loss_chunks=4", {"--json"}));
  EXPECT_GT(why["step_us"], why["best"]["step_us"]);
  EXPECT_FALSE(why["parts"].empty());
}

TEST(PlanCommand, WritesTablesAndAReport) {
  const TemporaryFolder folder;
  const Finished finished =
      cpsim(with(kShortTraining, {"--csv", folder.file("all.csv"), "--report", folder.file("plan.html")}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("\nreport      " + folder.file("plan.html")));
  EXPECT_THAT(read(folder.file("all.csv")), StartsWith("rank,layout,"));
  EXPECT_THAT(read(folder.file("plan.html")), AllOf(HasSubstr("<html"), HasSubstr("llama-3.1-8b")));
  const Finished printed = cpsim(with(kShortTraining, {"--csv", "-"}));
  EXPECT_EQ(printed.out, read(folder.file("all.csv")));
}

TEST(PlanCommand, HandsTheBestLayoutOver) {
  const Words any = {"plan",           "--model", "llama-3.1-8b", "--nodes", "1", "--seq-len", "32K",
                     "--global-batch", "8",       "--recompute",  "full"};
  const Finished megatron = cpsim(with(any, {"--emit", "megatron", "--explain", "tp=8,loss_chunks=4"}));
  EXPECT_EQ(megatron.exit_code, 0) << megatron.err;
  EXPECT_THAT(megatron.out, HasSubstr("--tensor-model-parallel-size 8"));
  EXPECT_THAT(megatron.err, HasSubstr("cpsim plan: --emit: "));  // Megatron has no chunked loss
  const TemporaryFolder folder;
  const Finished attention = cpsim(with(
      kShortTraining, {"--fix", "cp=8", "--emit", "attention", "--output", folder.file("attention.txtpb")}));
  EXPECT_EQ(attention.exit_code, 0) << attention.err;
  EXPECT_THAT(attention.out,
              AllOf(HasSubstr("\nfastest "), HasSubstr("cpsim run --scenario " + folder.file("")),
                    HasSubstr("\nemitted     ")));
  const Finished run = cpsim({"run", "--scenario", folder.file("attention.txtpb"), "--seq-len", "64",
                              "--head-dim", "8", "--dtype", "f32"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
}

// The next command proves what was written for cprun (tests/cprun runs it).
TEST(PlanCommand, HandsTheTrainingOver) {
  const TemporaryFolder folder;
  const std::string path = folder.file("train.txtpb");
  const Words question = with(kShortTraining, {"--fix", "dp_shard=2,tp=2,cp=2,strategy=ring"});
  const Finished written = cpsim(with(question, {"--emit", "cprun", "--output", path}));
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, AllOf(HasSubstr("\nnext        cprun --verify train " + path + "\n"),
                                 HasSubstr("\nruns        cprun train --ranks-as-threads " + path + "\n")));
  const Finished printed = cpsim(with(question, {"--emit", "cprun"}));
  EXPECT_EQ(printed.out, read(path));
  EXPECT_THAT(printed.err, HasSubstr("cprun train --ranks-as-threads FILE trains it"));
}

// The best layout that the framework can say, not the best of all with its loss chunks lost.
TEST(PlanCommand, WhatIsHandedOverFits) {
  const Words question = {"plan",
                          "--model",
                          "qwen2.5-7b",
                          "--gpus",
                          "64",
                          "--seq-len",
                          "256K",
                          "--global-batch",
                          "64",
                          "--fix",
                          "pp=1,micro_batch=1,order=tp-cp-dp-pp"};
  for (const char* framework : {"torchtitan", "megatron", "deepspeed"}) {
    const Finished finished = cpsim(with(question, {"--emit", framework}));
    EXPECT_EQ(finished.exit_code, 0) << framework << finished.err;
    EXPECT_THAT(finished.out, HasSubstr("numbers: bf16, matmuls in bf16, gradients f32, adamw")) << framework;
    EXPECT_THAT(finished.err, Not(HasSubstr("does not fit"))) << framework;
    for (const char* lost : {"logits of all rows", "balance ", "ulysses_degree=", "strategy "})
      EXPECT_THAT(finished.err, Not(HasSubstr(lost))) << framework;
  }
  // Asked to, it writes what does not fit, says so in the file, and ends with the code of what does not fit.
  const TemporaryFolder folder;
  const Finished large = cpsim(with(
      question, {"--emit", "torchtitan", "-o", folder.file("t.toml"), "--explain",
                 "cp=16,dp_shard=4,strategy=all_gather,balance=head_tail,recompute=none,loss_chunks=4"}));
  EXPECT_EQ(large.exit_code, 20) << large.out << large.err;
  EXPECT_THAT(large.err, AllOf(HasSubstr("what it says needs 88."), HasSubstr("78 GiB can be used")));
  EXPECT_THAT(read(folder.file("t.toml")),
              AllOf(HasSubstr("IT DOES NOT FIT"), HasSubstr("#   the loss in 4 chunks: "),
                    HasSubstr("the biases of q, k and v")));
}

TEST(PlanCommand, TwoLayoutsCompareWithEachOther) {
  const Words two = with(kShortTraining, {"--compare", "tp=8", "tp=2,cp=4"});
  const Finished finished = cpsim(two);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(StartsWith("A  tp=8"), HasSubstr("\nB  tp=2,cp=4,"), HasSubstr("\nfound "),
                                  HasSubstr("\nA is "), HasSubstr("\nwhole "), HasSubstr("\nat once ")));
  const json both = answer_of_two(cpsim(with(two, {"--json"})));
  EXPECT_EQ(both["schema"], "cpsim.plan.compare/1");
  ASSERT_EQ(both["layouts"].size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(both["layouts"][i]["verdict"], "fits");
    double sum = 0;
    for (const json& part : both["parts"]) sum += part["us"][i].get<double>();
    EXPECT_NEAR(sum, both["layouts"][i]["step_us"].get<double>(), 1e-6 * sum);
  }
  // Each is what --explain finds for it.
  const json alone = answer_of_two(cpsim(with(kShortTraining, {"--explain", "tp=2,cp=4", "--json"})));
  EXPECT_EQ(both["layouts"][1]["layout"], alone["layout"]);
  EXPECT_EQ(both["layouts"][1]["step_us"], alone["step_us"]);
}

// Keys that are not given are searched, and named.
TEST(PlanCommand, ABaselineIsNoStrawMan) {
  const json searched = answer_of(cpsim(with(kShortTraining, {"--json", "--baseline", "tp=2,cp=4"})));
  const json fixed = answer_of(cpsim(with(kShortTraining, {"--json", "--fix", "tp=2,cp=4"})));
  const json& baseline = searched["classes"].back();
  EXPECT_EQ(baseline["name"], "baseline");
  EXPECT_EQ(baseline["candidate"]["layout"], fixed["best"][0]["layout"]);
  EXPECT_THAT(baseline["found"].get<std::string>(), AllOf(HasSubstr("strategy="), HasSubstr("balance=")));
}

TEST(PlanCommand, NumberFormatsAreSaid) {
  const Words torchtitan = {"plan",      "--model", "llama-3.1-8b",        "--nodes",    "1",
                            "--seq-len", "32K",     "--global-batch",      "8",          "--recompute",
                            "full",      "--fix",   "pp=1,dp_replicate=1", "--software", "torchtitan"};
  const json b16 = answer_of(cpsim(with(torchtitan, {"--json"})));
  const json fp8 = answer_of(cpsim(with(torchtitan, {"--json", "--linear-dtype", "fp8"})));
  EXPECT_EQ(b16["question"]["workload"]["linear_dtype"], "bf16");
  EXPECT_EQ(fp8["question"]["workload"]["linear_dtype"], "fp8");
  EXPECT_LT(fp8["best"][0]["step_us"], b16["best"][0]["step_us"]);
  EXPECT_THAT(cpsim(torchtitan).out, AllOf(HasSubstr("bf16, products bf16, adamw"),
                                           HasSubstr("layouts that torchtitan 0.2 (2025)")));
}

TEST(PlanCommand, AScenarioSaysTheSame) {
  const TemporaryFolder folder;
  const std::string path = folder.file("plan.txtpb");
  const Words flags = {"plan",
                       "--model",
                       "mixtral-8x7b",
                       "--cluster",
                       "hgx-h200",
                       "--gpus",
                       "8",
                       "--software",
                       "megatron",
                       "--phase",
                       "training",
                       "--seq-len",
                       "8K",
                       "--global-batch-tokens",
                       "128K",
                       "--micro-batch",
                       "1",
                       "--dtype",
                       "bf16",
                       "--linear-dtype",
                       "fp8",
                       "--gradient-dtype",
                       "bf16",
                       "--optimizer",
                       "adamw_16",
                       "--recompute",
                       "full",
                       "--expert-imbalance",
                       "1.25",
                       "--fix",
                       "pp=1",
                       "--fix",
                       "cp=1",
                       "--max-memory",
                       "120",
                       "--baseline",
                       "tp=8",
                       "--top",
                       "3"};
  const json given = answer_of(cpsim(with(flags, {"--json", "--save-scenario", path})));
  EXPECT_EQ(given["question"]["assumptions"], json::array());
  EXPECT_THAT(given["next_command"].get<std::string>(), HasSubstr("cpsim plan --scenario " + path));
  const json read_again = answer_of(cpsim({"plan", "--json", "--save-scenario", path, "--scenario", path}));
  EXPECT_EQ(read_again, given);
  const json changed =
      answer_of(cpsim({"plan", "--json", "--scenario", path, "--seq-len", "4K", "--fix", "tp=8"}));
  EXPECT_EQ(changed["question"]["workload"]["seq_len"], 4096);
  EXPECT_EQ(changed["question"]["fixed"]["tp"], 8);
  EXPECT_EQ(changed["question"]["fixed"]["pp"], 1);
}

// A model that is likely not the one that was meant: every form of the answer begins with it.
TEST(PlanCommand, AMisspeltConfigIsWarnedOfFirst) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("config.json"))
      << R"({"model_type": "olmo7", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_head": 2, "intermediate_size": 1024, "vocab_size": 8000, "torch_dtype": "bfloat16",
             "max_position_embeddings": 8192, "tie_word_embeddings": false, "bos_token_id": 1, "vision_tower": "v"})";
  const Words plan = {"plan",      "--model", folder.file("config.json"), "--gpus", "2",
                      "--seq-len", "1K",      "--global-batch",           "2"};
  const char *slip =
                 "num_key_value_head is not read; did you mean num_key_value_heads? num_key_value_heads is "
                 "missing, so 8 is taken, as num_attention_heads",
             *type = "model_type \"olmo7\" is not known";
  const json answer = answer_of(cpsim(with(plan, {"--json"})));
  ASSERT_EQ(answer["warnings"].size(), 2U);
  EXPECT_THAT(answer["warnings"][0].get<std::string>(), HasSubstr(type));
  EXPECT_THAT(answer["warnings"][1].get<std::string>(), StartsWith(slip));
  EXPECT_THAT(
      answer["question"]["assumptions"].dump(),
      AllOf(HasSubstr("1 key of the config is not read: vision_tower"), Not(HasSubstr("bos_token_id"))));
  for (const Words& brief : {Words{}, Words{"--quiet"}}) {
    const Finished screen = cpsim(with(plan, brief));
    const auto warning = screen.out.find("\n\nwarning     model_type ");
    EXPECT_LT(warning, screen.out.find("fastest")) << screen.out;
    EXPECT_EQ(screen.out.find("\nwarning ", screen.out.find("fastest")), std::string::npos);
  }
  EXPECT_THAT(cpsim(with(plan, {"--explain", "tp=2"})).out, StartsWith("warning     model_type "));
  EXPECT_EQ(answer_of_two(cpsim(with(plan, {"--compare", "tp=2", "dp_shard=2", "--json"})))["warnings"],
            answer["warnings"]);
  EXPECT_THAT(cpsim(with(plan, {"--csv", "-"})).err, HasSubstr("cpsim plan: warning: model_type "));
  EXPECT_THAT(cpsim(with(plan, {"--emit", "megatron"})).err,
              HasSubstr("cpsim plan: warning: num_key_value_head "));
  const Finished nothing = cpsim(with(plan, {"--max-memory", "0.01"}));
  EXPECT_EQ(nothing.exit_code, 20);
  EXPECT_THAT(nothing.err, StartsWith("cpsim plan: warning: model_type "));
}

TEST(PlanCommand, NothingFitsIsACodeOfItsOwn) {
  const Finished finished = cpsim(
      {"plan", "--model", "llama-3.1-405b", "--nodes", "1", "--seq-len", "128K", "--global-batch", "8"});
  EXPECT_EQ(finished.exit_code, 20);
  EXPECT_THAT(finished.out, IsEmpty());
  EXPECT_THAT(finished.err,
              AllOf(HasSubstr("fits"), HasSubstr("The nearest is "), HasSubstr("try --nodes ")));
}

TEST(PlanCommand, BadInputIsRefusedBeforeTheSearch) {
  const TemporaryFolder folder;
  const auto error = [](const Words& words) {
    const Finished finished = cpsim(words);
    EXPECT_EQ(finished.exit_code, 2) << finished.out << finished.err;
    EXPECT_THAT(finished.out, IsEmpty());
    return finished.err;
  };
  const auto changed = [&](const Words& more) { return error(with(kShortTraining, more)); };
  EXPECT_THAT(error({"plan"}), HasSubstr("--model is missing"));
  EXPECT_THAT(changed({"--fx", "tp=8"}), HasSubstr("did you mean --fix?"));
  EXPECT_THAT(error({"plan", "--seq-len", "many"}), HasSubstr("--seq-len many"));
  EXPECT_THAT(changed({"--phase", "serving"}), HasSubstr("use training, prefill or decode"));
  EXPECT_THAT(changed({"--dtype", "fp9"}), HasSubstr("--dtype fp9"));
  EXPECT_THAT(changed({"--explain", "tp=3"}), HasSubstr("--explain tp=3"));
  EXPECT_THAT(changed({"--fix", "tp=3"}), HasSubstr("do not fit 8 GPUs"));
  EXPECT_THAT(changed({"--fix", "tp=3,reshard=2"}), HasSubstr("do not fit 8 GPUs"));
  EXPECT_THAT(changed({"--fix", "tp=8,reshard=2"}),
              HasSubstr("reshard=2: this is about parameters that are sharded"));
  EXPECT_THAT(changed({"--json", "--csv", "-"}), HasSubstr("--json and --csv - write to standard output"));
  EXPECT_THAT(changed({"--output", "x"}), HasSubstr("--output x needs --emit"));
  EXPECT_THAT(changed({"--emit", "jax"}), AllOf(HasSubstr("--emit jax"), HasSubstr("megatron")));
  EXPECT_THAT(changed({"--emit", "vllm"}), HasSubstr("--emit vllm"));
  EXPECT_THAT(changed({"--explain", "tp=8", "--report", "x.html"}), HasSubstr("--report"));
  EXPECT_THAT(changed({"--explain", "tp=8", "--baseline", "tp=4"}), HasSubstr("use --compare tp=8 tp=4"));
  EXPECT_THAT(changed({"--compare", "tp=8", "cp=8", "--emit", "cprun"}),
              HasSubstr("--emit does not go with --compare"));
  EXPECT_THAT(changed({"--compare", "tp=8", "tp=3"}), HasSubstr("--compare tp=3"));
  EXPECT_THAT(changed({"--fix", "loss_chunks=4", "--emit", "torchtitan"}), HasSubstr("the loss in 4 chunks"));
  EXPECT_THAT(changed({"--report", folder.file("none/plan.html")}),
              AllOf(HasSubstr("the folder "), HasSubstr("none does not exist")));
  const Words whole = {"plan", "--model", "llama-3.1-8b", "--seq-len", "32K", "--global-batch", "8"};
  EXPECT_THAT(error(with(whole, {"--nodes", "268435456"})),
              HasSubstr("268435456 nodes of 8 GPUs are 2147483648 GPUs, and at most 16777216 can be "
                        "numbered; use at most 2097152"));
  EXPECT_THAT(error(with(whole, {"--gpus", "16777217"})), HasSubstr("use 1 to 16777216"));
  std::ofstream(folder.file("none.txtpb"))
      << "plan { model: \"llama-3.1-8b\" gpus: 0 seq_len: 8192 global_batch: 16 }";
  EXPECT_THAT(error({"plan", "--scenario", folder.file("none.txtpb")}),
              HasSubstr("--gpus 0 is out of range"));
  std::ofstream(folder.file("config.json")) << "{\"hidden_size\": 64}";
  EXPECT_THAT(
      error({"plan", "--model", folder.file("config.json"), "--seq-len", "1K", "--global-batch", "1"}),
      AllOf(HasSubstr("--model "), HasSubstr("num_hidden_layers"), HasSubstr("vocab_size")));
  std::ofstream(folder.file("config.json")) << "hidden_size: 64";
  EXPECT_THAT(
      error({"plan", "--model", folder.file("config.json"), "--seq-len", "1K", "--global-batch", "1"}),
      HasSubstr("not JSON"));
  std::ofstream(folder.file("run.txtpb")) << "run { mesh: \"cp=2\" seq_len: 64 }";
  EXPECT_THAT(error({"plan", "--scenario", folder.file("run.txtpb")}),
              HasSubstr("the file holds a job of another command, run { ... }; use cpsim run --scenario "));
}

// The search of a large model stops, and says what it found so far.
TEST(PlanCommand, CtrlCShowsWhatWasFoundSoFar) {
  CpsimProcess process({"plan", "--model", "llama-3.1-405b", "--nodes", "2048", "--seq-len", "128K",
                        "--global-batch", "2048", "--threads", "1"},
                       CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text(" replayed, best so far "));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130) << finished.out << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("\nfastest "), HasSubstr("\nwarning     interrupted")));
}

}  // namespace
}  // namespace cp::cli
