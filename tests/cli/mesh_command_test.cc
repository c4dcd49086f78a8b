// cpsim mesh, and scenarios that have degrees in place of a mesh or a layout.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/scenario/attention_request.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/redistribute_request.h"
#include "sim/scenario/train_job.h"
#include "tests/cli/cpsim_process.h"
#include "tests/support/messages.h"
#include "traces/scenario.h"

namespace cp::cli {
namespace {

using ::cp::testing::message_of;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MeshCommand, ShowsAxesAliasesAndGroups) {
  const Words words = {"mesh", "--world-size", "16", "--dp-shard", "-1", "--dp-replicate",
                       "2",    "--cp",         "2",  "--tp",       "2"};
  const Finished finished = cpsim(words);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  for (const char* part : {"dp_replicate=2 dp_shard=2 cp=2 tp=2 pp=1 ep=1 etp=2 | dp=4 world=16\n",
                           "mesh        dp_replicate=2,dp_shard=2,cp=2,tp=2\n",
                           "layout      tp=2,cp=2,dp_shard=2,dp_replicate=2,strategy=ulysses",
                           "dp_replicate x dp_shard x cp", "[0,4] [1,5] [2,6] [3,7] and 4 more"})
    EXPECT_THAT(finished.out, HasSubstr(part));
  const json of_rank = json::parse(cpsim(with(words, {"--json", "--rank", "5"})).out);
  EXPECT_EQ(of_rank["schema"], "cpsim.mesh/1");
  EXPECT_EQ(of_rank["dp_shard"], 2);
  for (const json& named : of_rank["groups"]) {
    if (named["name"] == "fsdp") {
      EXPECT_EQ(named["groups"], json::parse("[[1, 5]]"));
    }
    if (named["name"] == "loss") {
      EXPECT_EQ(named["groups"], json::parse("[[1, 3, 5, 7, 9, 11, 13, 15]]"));
    }
  }
}

// Both rules, and what a layout has of them.
TEST(MeshCommand, KnowsBothRulesOfExperts) {
  const Words words = {"mesh", "--dp-shard", "4", "--tp", "2", "--ep", "2"};
  const json peer = json::parse(cpsim(with(words, {"--json"})).out);
  EXPECT_EQ(peer["world_size"], 16);
  EXPECT_TRUE(peer["layout"].is_null());
  EXPECT_THAT(peer["no_layout"].get<std::string>(), HasSubstr("ExpertRule::nested with dp_shard=8"));
  const json nested = json::parse(cpsim(with(words, {"--json", "--expert-rule", "nested"})).out);
  EXPECT_EQ(nested["world_size"], 8);
  EXPECT_EQ(nested["layout"], "tp=2,dp_shard=4,ep=2");
  EXPECT_EQ(nested["efsdp_size"], 2);
}

TEST(MeshCommand, RefusesWithTheNearestThatWorks) {
  const auto error = [](Words words) {
    words.insert(words.begin(), "mesh");
    const Finished finished = cpsim(words);
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"--world-size", "12", "--tp", "8"}), HasSubstr("use a world_size of 8 or 16"));
  EXPECT_THAT(error({"--world-size", "8", "--dp-shard", "3"}),
              HasSubstr("use dp_shard=8, or -1 to infer it"));
  EXPECT_THAT(error({"--cp", "6", "--ulysses-degree", "4"}), HasSubstr("use ulysses_degree in {1, 2, 3, 6}"));
  EXPECT_THAT(error({"--dp-shard", "-1", "--tp", "2"}), HasSubstr("give world_size, or dp_shard itself"));
  EXPECT_THAT(error({"--dp-shard", "0"}), HasSubstr("--dp-shard 0 is out of range"));
  EXPECT_THAT(error({"--expert-rule", "torchtitan"}), HasSubstr("use peer"));
  EXPECT_THAT(error({"--tp", "16", "--model", "llama-3.1-8b", "--strict"}),
              HasSubstr("num_key_value_heads=8 is not divisible by tp=16; use tp=8"));
  EXPECT_THAT(error({"--tp", "2", "--rank", "2"}), HasSubstr("use a rank from 0 to 1"));
  EXPECT_THAT(error({"--strict"}), HasSubstr("add --model"));
}

TEST(MeshCommand, ItsScenarioIsTheSame) {
  const TemporaryFolder folder;
  const std::string path = folder.file("mesh.txtpb");
  const Finished saved =
      cpsim({"mesh", "--world-size", "8", "--cp", "4", "--ulysses-degree", "2", "--save-scenario", path});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_EQ(cpsim({"mesh", "--scenario", path}).out, saved.out);
  EXPECT_THAT(cpsim({"run", "--scenario", path}).err, HasSubstr("use cpsim mesh --scenario"));
}

// ---- degrees in scenarios ----

proto::Scenario scenario(const std::string& text) { return read_scenario_text(text, "f.txtpb"); }

TEST(ParallelDimsFields, AreAMeshOfRedistributionsAndAttention) {
  const sim::RedistributeRequest moved =
      sim::make_request(scenario(R"text(redistribute { parallel_dims { world_size: 8 tp: 2 } shape: "8x8"
                                      from: "S(0),R" to: "R,S(1)" })text")
                            .redistribute());
  EXPECT_EQ(moved.source.mesh.to_string(), "dp_shard=4,tp=2");
  const auto attention = [](const char* more) {
    return sim::make_attention_job(
        scenario(str("run { seq_len: 64 q_heads: 8 kv_heads: 8 parallel_dims { cp: 4 tp: 2 ", more)).run());
  };
  const sim::AttentionJob whole = attention("} }");
  EXPECT_EQ(whole.ranks, (std::vector<Rank>{0, 2, 4, 6}));
  EXPECT_EQ(whole.strategies, (std::vector<Strategy>{whole_ulysses(4)}));
  EXPECT_EQ(attention("ulysses_degree: 2 } }").strategies.front().ulysses_degree, 2);
  EXPECT_EQ(attention("ulysses_degree: 2 } strategy: \"ulysses_all_gather\" }").strategies.front().core,
            Core::all_gather);
  EXPECT_THAT(message_of([&] { attention("} mesh: \"cp=4\" }"); }), HasSubstr("give one of them"));
  EXPECT_THAT(message_of([] {
                sim::make_attention_job(scenario("run { seq_len: 64 parallel_dims { tp: 2 } }").run());
              }),
              HasSubstr("use cp=2 or more"));
}

TEST(ParallelDimsFields, AreTheDegreesOfATraining) {
  const auto layout = [](const std::string& fields, int ranks) {
    proto::Scenario given = scenario(
        str("train { model: \"llama-3.1-8b\" scaled_down: true seq_len: 32 steps: 1 ", fields, " }"));
    if (ranks > 0) sim::tell_world_size(given, ranks);
    return to_string(sim::make_train_job(given.train()).request.layout);
  };
  EXPECT_EQ(layout("parallel_dims { tp: 2 }", 8), "tp=2,dp_shard=4");
  EXPECT_EQ(layout("parallel_dims { cp: 2 dp_shard: -1 } layout: \"ring,recompute=full\"", 4),
            "cp=2,dp_shard=2,strategy=ring,balance=contiguous,recompute=full");
  EXPECT_EQ(layout("layout: \"tp=2,dp_shard=-1\"", 4), "tp=2,dp_shard=2");
  EXPECT_EQ(layout("parallel_dims { tp: 2 }", 0), "tp=2");
  const auto refused = [&](const std::string& fields) { return message_of([&] { layout(fields, 0); }); };
  EXPECT_THAT(refused("layout: \"dp=-1\""), HasSubstr("--nproc-per-node"));
  EXPECT_THAT(refused("parallel_dims { dp_shard: -1 }"), HasSubstr("give world_size, or dp_shard itself"));
  EXPECT_THAT(refused("parallel_dims { tp: 2 } layout: \"cp=2,strategy=ring\""),
              AllOf(HasSubstr("gives cp"), HasSubstr("leave it out of one of them")));
  EXPECT_THAT(refused("parallel_dims { dp_shard: 2 ep: 2 expert_rule: \"peer\" }"),
              HasSubstr("ExpertRule::nested with dp_shard=4"));
}

TEST(ParallelDimsFields, AreFixedInAPlan) {
  const proto::PlanLayouts plan = sim::with_fixed_degrees(
      scenario(
          R"(plan { model: "llama-3.1-8b" seq_len: 4096 fix: "cp=2" parallel_dims { world_size: 16 tp: 4 dp: -1 } })")
          .plan());
  EXPECT_EQ(plan.gpus(), 16);
  ASSERT_EQ(plan.fix_size(), 2);
  EXPECT_EQ(plan.fix(0), "tp=4");
  EXPECT_EQ(plan.fix(1), "cp=2");
}

}  // namespace
}  // namespace cp::cli
