// cpsim prove, from the outside.
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ProveCommand, PrintsWhatIsExact) {
  const Finished finished =
      cpsim({"prove", "--model", "llama-3.1-8b", "--layout", "tp=2,cp=2,strategy=ring", "--seq-len", "19"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("exact"), HasSubstr("one device in float64: loss 5."),
                                  HasSubstr("0 to 3  exchange   ring"),
                                  HasSubstr("1 of 1 layouts are exact: llama-3.1-8b of 4 layers")));
}

// Of 19 rows rank 1 sees the 10 of rank 0: of a tp rank one kv head with K and V of 10 columns.
TEST(ProveCommand, SaysWhatEachLayerTakesFromOtherRanks) {
  const Finished finished = cpsim({"prove", "--model", "llama-3.1-8b", "--layout", "tp=2,cp=2,strategy=ring",
                                   "--seq-len", "19", "--documents", "1", "--json"});
  const auto layers = nlohmann::json::parse(finished.out).at("layouts").at(0).at("attention");
  ASSERT_EQ(layers.size(), 4U);
  const auto& move = layers.at(3).at("moves").at(0);
  EXPECT_EQ(move.at("operation"), "exchange");
  EXPECT_EQ(move.at("ranks"), nlohmann::json::parse("[[0, 2], [1, 3]]"));
  EXPECT_EQ(move.at("kv_bytes").get<int>(), 2 * 10 * 2 * 10 * 4);
  EXPECT_EQ(move.at("q_bytes").get<int>(), 0);
}

// With the numbers of seed 0 a choice of one expert hangs on a rounding under this layout.
TEST(ProveCommand, DrawsAgainWhereRoundingsLeaveNothingToBeKnown) {
  const std::string path = ::testing::TempDir() + "cp_rounding.json";
  std::ofstream(path)
      << R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06})";
  const Finished finished = cpsim({"prove", "--model", path, "--layout",
                                   "tp=2,cp=2,dp_shard=2,strategy=ring,balance=head_tail,zero=2,"
                                   "sequence_parallel=no,micro_batch=2,recompute=every:2",
                                   "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const auto proved = nlohmann::json::parse(finished.out).at("layouts").at(0);
  EXPECT_EQ(proved.at("exact"), true);
  EXPECT_EQ(proved.at("seed"), 1);
}

TEST(ProveCommand, TakesAllLayoutsOfSomeRanks) {
  const Finished finished = cpsim(
      {"prove", "--model", "mixtral-8x7b", "--layouts", "all", "--ranks", "2", "--seq-len", "11", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const auto answer = nlohmann::json::parse(finished.out);
  EXPECT_TRUE(answer.at("ok").get<bool>());
  EXPECT_GE(answer.at("layouts").size(), 15U);
}

// Documents are packed and tokens dropped unless the flags say otherwise, and what was proved says so.
TEST(ProveCommand, PacksDocumentsAndDropsTokens) {
  const std::vector<std::string> words = {"prove", "--model", "mixtral-8x7b", "--layout", "ep=2,dp_shard=2"};
  EXPECT_THAT(cpsim(words).out, AllOf(HasSubstr(", documents 0/"), HasSubstr("; experts drop ")));
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    more.emplace_back("--json");
    return nlohmann::json::parse(cpsim(more).out);
  };
  const auto plain = with({"--documents", "1", "--expert-imbalance", "8"});
  EXPECT_FALSE(plain["layouts"][0].contains("cu_seqlens"));
  EXPECT_EQ(plain["layouts"][0]["dropped_choices"], 0);
  const auto packed = with({"--documents", "5", "--expert-imbalance", "1"});
  const auto& documents = packed["layouts"][0]["cu_seqlens"];  // of each sequence
  ASSERT_EQ(documents.size(), 4U);
  EXPECT_EQ(documents[0].size(), 6U);
  EXPECT_NE(documents[0], documents[1]);
  EXPECT_GT(packed["layouts"][0]["dropped_choices"], 0);
  EXPECT_EQ(packed["ok"], true);
}

TEST(ProveCommand, RefusesWhatItCannotProve) {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), "prove");
    const Finished finished = cpsim(words);
    EXPECT_EQ(finished.exit_code, 2);
    return finished.err;
  };
  EXPECT_THAT(error({"--layout", "tp=2"}), HasSubstr("--model is missing"));
  EXPECT_THAT(error({"--model", "llama-3.1-8b"}), HasSubstr("give one layout with --layout"));
  EXPECT_THAT(error({"--model", "llama-3.1-8b", "--layout", "tp=3"}), HasSubstr("tp=3"));
  EXPECT_THAT(error({"--model", "mixtral-8x7b", "--layouts", "all", "--expert-imbalance", "0.5"}),
              HasSubstr("expert_imbalance=0.5 must be at least 1"));
  EXPECT_THAT(error({"--model", "llama-3.1-8b", "--layout", "pp=8,virtual_stages=8"}),
              HasSubstr("pp * virtual_stages = 64 is more than the 32 layers"));
}

// Neither times nor memory hang on frequencies, so that cpsim plan answers, and says what it leaves out.
TEST(ProveCommand, RefusesModelsThatArePlannedAlone) {
  const std::string path = ::testing::TempDir() + "cp_longrope.json";
  std::ofstream(path)
      << R"({"model_type": "phi3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64,
    "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0]}})";
  const Finished proved = cpsim({"prove", "--model", path, "--layout", "tp=1"});
  EXPECT_EQ(proved.exit_code, 2);
  EXPECT_THAT(proved.err, HasSubstr("cp_longrope cannot be computed: rope_type \"longrope\""));
  const Finished planned =
      cpsim({"plan", "--model", path, "--gpus", "1", "--seq-len", "512", "--global-batch", "1"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("\"longrope\""));
}

}  // namespace
}  // namespace cp::cli
