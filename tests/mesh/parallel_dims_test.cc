#include "shared/mesh/parallel_dims.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/mesh/mesh_testing.h"

namespace cp {
namespace {

// {"dp_replicate", "dp_shard", "cp", "tp", "pp", "ep"} as most cases need them.
ParallelConfig degrees(int dp_replicate, int dp_shard, int cp, int tp, int pp, int ep,
                       ExpertRule rule = ExpertRule::peer) {
  ParallelConfig config;
  config.dp_replicate = dp_replicate;
  config.dp_shard = dp_shard;
  config.cp = cp;
  config.tp = tp;
  config.pp = pp;
  config.ep = ep;
  config.expert_rule = rule;
  return config;
}

void expect_degrees_refused(const ParallelConfig& config, int world_size,
                            const std::vector<std::string>& reasons) {
  expect_refused([&] { ParallelDims(config, world_size); }, reasons);
}

TEST(ParallelDims, DefaultsFillTheWorldWithShards) {
  EXPECT_EQ(ParallelDims({}, 1).summary(),
            "dp_replicate=1 dp_shard=1 cp=1 tp=1 pp=1 ep=1 etp=1 | dp=1 world=1");
  EXPECT_EQ(ParallelDims({}, 8).dp_shard(), 8);
  ParallelConfig config;
  config.tp = 4;
  EXPECT_EQ(ParallelDims(config, 8).dp_shard(), 2);
}

TEST(ParallelDims, LegacyDpMeansDpShardWhenThatIsUnset) {
  ParallelConfig config;
  config.dp = 4;
  config.tp = 2;
  EXPECT_EQ(ParallelDims(config, 8).dp_shard(), 4);
  expect_degrees_refused(config, 16, {"=8 is not world_size=16"});
  config.dp = -1;
  EXPECT_EQ(ParallelDims(config, 16).dp_shard(), 8);
  config.dp = config.dp_shard = 4;
  EXPECT_EQ(ParallelDims(config, 8).dp_shard(), 4);
  // HyperParallel goes by dp_shard there, without a word.
  config.dp_shard = 2;
  expect_degrees_refused(config, 4, {"dp=4 and dp_shard=2 are two names of one degree", "give one of them"});
}

struct InferenceCase {
  ParallelConfig config;
  int world_size;
  int dp_shard;
};

TEST(ParallelDims, InfersDpShardFromTheRestOfTheWorld) {
  const std::vector<InferenceCase> cases = {
      {degrees(2, -1, 1, 2, 1, 1), 8, 2},  // H16
      {degrees(1, -1, 1, 1, 1, 1), 1, 1},
      {degrees(1, -1, 4, 2, 1, 1), 8, 1},
      {degrees(1, -1, 2, 2, 2, 1), 16, 2},
      {degrees(1, -1, 1, 1, 1, 2), 8, 4},                      // H19: ep takes part of the world
      {degrees(1, -1, 1, 1, 1, 2, ExpertRule::nested), 8, 8},  // H18: it does not
      {degrees(3, -1, 1, 7, 1, 1), 21 * 4'000'000, 4'000'000},
  };
  for (const InferenceCase& c : cases) {
    const ParallelDims dims(c.config, c.world_size);
    EXPECT_EQ(dims.dp_shard(), c.dp_shard) << dims.summary();
    EXPECT_EQ(dims.world_size(), c.world_size);
  }
}

TEST(ParallelDims, RefusesAWorldThatTheOtherDegreesDoNotDivide) {
  expect_degrees_refused(
      degrees(1, -1, 1, 3, 1, 1), 8,
      {"dp_shard cannot be inferred", "world_size=8", "the other degrees, 3", "6 or 9", "tp=3"});
  expect_degrees_refused(degrees(1, -1, 4, 4, 1, 1), 8, {"use a world_size of 16,"});
  expect_degrees_refused(degrees(1, -1, 1, 4, 1, 4), 8, {"the other degrees, 16"});
  const int huge = 2'147'483'647;
  expect_degrees_refused(degrees(huge, -1, huge, huge, huge, huge), 8, {"dp_shard cannot be inferred"});
}

TEST(ParallelDims, RefusesADegreeBelowOne) {
  for (const int bad : {0, -1, -2}) {
    const std::string text = str("=", bad, " must be at least 1");
    expect_degrees_refused(degrees(bad, 1, 1, 1, 1, 1), 1, {"dp_replicate" + text});  // H17
    expect_degrees_refused(degrees(1, 1, bad, 1, 1, 1), 1, {"cp" + text});
    expect_degrees_refused(degrees(1, 1, 1, bad, 1, 1), 1, {"tp" + text});
    expect_degrees_refused(degrees(1, 1, 1, 1, bad, 1), 1, {"pp" + text});
    expect_degrees_refused(degrees(1, 1, 1, 1, 1, bad), 1, {"ep" + text});
    ParallelConfig config;
    config.etp = bad;
    expect_degrees_refused(config, 1, {"etp" + text});
    config = {};
    config.ulysses_degree = bad;
    expect_degrees_refused(config, 1, {"ulysses_degree" + text});
    expect_degrees_refused({}, bad, {"world_size" + text});
  }
  expect_degrees_refused(degrees(1, 0, 1, 1, 1, 1), 1, {"dp_shard=0 must be at least 1, or -1"});  // H17
  expect_degrees_refused(degrees(1, -2, 1, 1, 1, 1), 1, {"dp_shard=-2 must be at least 1, or -1"});
}

TEST(ParallelDims, RefusesAProductThatIsNotTheWorld) {
  expect_degrees_refused(degrees(2, 2, 1, 2, 1, 1), 10,  // H17
                         {"dp_replicate*dp_shard*cp*tp*pp*ep=8 is not world_size=10", "use a world_size of 8",
                          "(dp_replicate=2 dp_shard=2 cp=1 tp=2 pp=1 ep=1 etp=2 world_size=10)"});
  expect_degrees_refused(degrees(1, 2, 1, 2, 1, 1), 8,
                         {"=4 is not world_size=8", "use dp_shard=4, or -1 to infer it"});
  expect_degrees_refused(degrees(1, 8, 1, 1, 1, 2), 8, {"=16 is not world_size=8", "use dp_shard=4"});  // H19
  const int huge = 2'147'483'647;
  expect_degrees_refused(degrees(huge, huge, huge, huge, huge, huge), huge, {"is not world_size=2147483647"});
}

TEST(ParallelDims, ExpertTensorParallelIsTpOrOne) {
  ParallelConfig config = degrees(1, 1, 1, 4, 1, 2);
  EXPECT_EQ(ParallelDims(config, 8).etp(), 4);
  config.etp = 1;
  EXPECT_EQ(ParallelDims(config, 8).etp(), 1);
  config.etp = 2;
  expect_degrees_refused(config, 8, {"etp=2 is neither tp=4 nor 1"});
  config.expert_rule = ExpertRule::nested;
  config.dp_shard = 2;
  expect_degrees_refused(config, 8, {"etp=2 is neither tp=4 nor 1"});
  config.ep = 1;
  EXPECT_EQ(ParallelDims(config, 8).etp(), 2) << "without experts the degree is unused";
}

TEST(ParallelDims, NestedExpertsDivideTheShardedRanks) {
  expect_degrees_refused(degrees(1, 2, 1, 1, 1, 3, ExpertRule::nested), 2,  // H18
                         {"ep*etp=3 does not divide dp_shard*cp*tp=2", "use ep=2 "});
  EXPECT_EQ(ParallelDims(degrees(2, 2, 2, 1, 1, 4, ExpertRule::nested), 8).efsdp_size(), 1);
  expect_degrees_refused(degrees(2, 2, 2, 1, 1, 8, ExpertRule::nested), 8, {"use ep=4 "});

  ParallelConfig config = degrees(1, 2, 1, 2, 1, 4, ExpertRule::nested);
  expect_degrees_refused(config, 4, {"ep*etp=8 does not divide dp_shard*cp*tp=4", "use ep=2, or etp=1"});
  config.etp = 1;
  EXPECT_EQ(ParallelDims(config, 4).efsdp_size(), 1);
}

TEST(ParallelDims, UlyssesDegreeDividesCp) {
  ParallelConfig config = degrees(1, 1, 4, 1, 1, 1);
  EXPECT_EQ(ParallelDims(config, 4).ulysses_degree(), 4) << "unset means pure Ulysses";
  for (const int good : {1, 2, 4}) {
    config.ulysses_degree = good;
    EXPECT_EQ(ParallelDims(config, 4).ulysses_degree(), good);
  }
  for (const int bad : {3, 5, 8}) {
    config.ulysses_degree = bad;
    expect_degrees_refused(config, 4,
                           {"cp=4 is not divisible by ulysses_degree=" + std::to_string(bad), "{1, 2, 4}"});
  }
  config.cp = 1;
  EXPECT_EQ(ParallelDims(config, 1).ulysses_degree(), 1)
      << "without context parallelism the degree is unused";
}

TEST(ParallelDims, SizesAndSwitchesFollowTheDegrees) {
  const ParallelDims dims(degrees(2, 3, 4, 5, 1, 6), 720);
  EXPECT_EQ(dims.dp_size(), 6);
  EXPECT_EQ(dims.non_dp_size(), 120);
  EXPECT_TRUE(dims.tp_enabled() && dims.cp_enabled() && dims.ep_enabled() && dims.fsdp_enabled());
  EXPECT_FALSE(dims.pp_enabled());
  const ParallelDims one({}, 1);
  EXPECT_FALSE(one.tp_enabled() || one.cp_enabled() || one.ep_enabled() || one.pp_enabled() ||
               one.fsdp_enabled());
  EXPECT_TRUE(ParallelDims(degrees(2, 1, 1, 1, 1, 1), 2).fsdp_enabled());
  EXPECT_TRUE(ParallelDims(degrees(1, 2, 1, 1, 1, 1), 2).fsdp_enabled());
}

TEST(ParallelDims, NonDpSizeCountsExpertsUnderThePeerRuleAlone) {
  EXPECT_EQ(ParallelDims(degrees(1, 1, 2, 3, 2, 1), 12).non_dp_size(), 12);  // H21
  EXPECT_EQ(ParallelDims(degrees(1, 1, 2, 3, 2, 2), 24).non_dp_size(), 24);
  EXPECT_EQ(ParallelDims(degrees(1, 1, 2, 3, 2, 2, ExpertRule::nested), 12).non_dp_size(), 12);
}

TEST(ParallelDims, ExpertsAreShardedOnTheirOwnOnlyWhenThereAreAny) {
  ParallelConfig config = degrees(1, 4, 1, 2, 1, 1, ExpertRule::nested);  // H22
  EXPECT_EQ(ParallelDims(config, 8).efsdp_size(), 8);
  EXPECT_FALSE(ParallelDims(config, 8).efsdp_enabled());
  config.ep = 2;
  EXPECT_EQ(ParallelDims(config, 8).efsdp_size(), 2) << "8 / (ep 2 * etp 2)";
  EXPECT_TRUE(ParallelDims(config, 8).efsdp_enabled());
  config.etp = 1;
  EXPECT_EQ(ParallelDims(config, 8).efsdp_size(), 4);
  config.ep = 8;
  EXPECT_EQ(ParallelDims(config, 8).efsdp_size(), 1);
  EXPECT_TRUE(ParallelDims(config, 8).efsdp_enabled()) << "even over a single rank";

  config.expert_rule = ExpertRule::peer;
  EXPECT_EQ(ParallelDims(config, 64).efsdp_size(), 8) << "ep is not taken from dp_shard*cp*tp";
  config.etp = 2;
  EXPECT_EQ(ParallelDims(config, 64).efsdp_size(), 4);
}

TEST(ParallelDims, SeqLenDivisorAllowsForHeadTailShards) {
  EXPECT_EQ(ParallelDims(degrees(1, 1, 2, 4, 1, 1), 8).seq_len_divisor(), 16);  // H20
  EXPECT_EQ(ParallelDims({}, 1).seq_len_divisor(), 2);
}

TEST(ParallelDims, HeadsAndExpertsMustDivide) {
  const ParallelDims dims(degrees(1, 1, 1, 8, 1, 4), 32);
  const auto refused = [&](ModelDims model, const std::vector<std::string>& reasons, bool strict = false) {
    expect_refused([&] { dims.validate_against_model(model, std::nullopt, strict); }, reasons);
  };
  EXPECT_NO_THROW(dims.validate_against_model({}));
  EXPECT_NO_THROW(dims.validate_against_model({32, 8, 64}, std::nullopt, true));
  refused({12, {}, {}}, {"num_attention_heads=12 is not divisible by tp=8", "use tp=6"});
  refused({32, 8, 6}, {"num_experts=6 is not divisible by ep=4", "use ep=3"});
  refused({32, 12, {}}, {"num_key_value_heads=12 and tp=8 do not divide each other", "use tp=6"});
  // Two tp ranks can share a kv head; HyperParallel's do not.
  EXPECT_NO_THROW(dims.validate_against_model({32, 4, {}}));
  refused({32, 4, {}}, {"num_key_value_heads=4 is not divisible by tp=8", "use tp=4"}, true);
  EXPECT_NO_THROW(ParallelDims({}, 4).validate_against_model({7, 5, 3}, std::nullopt, true));
}

TEST(ParallelDims, SeqLenMustDivideOnlyWhenStrict) {
  const ParallelDims dims(degrees(1, 1, 2, 4, 1, 1), 8);
  for (const std::int64_t seq_len : {1, 7, 9, 15, 17}) {
    EXPECT_NO_THROW(dims.validate_against_model({}, seq_len));
    expect_refused([&] { dims.validate_against_model({}, seq_len, true); },
                   {"seq_len=" + std::to_string(seq_len) + " is not divisible by cp*tp=8"});
  }
  for (const std::int64_t seq_len : {0, 8, 16})
    EXPECT_NO_THROW(dims.validate_against_model({}, seq_len, true));
  EXPECT_NO_THROW(dims.validate_against_model({}, std::nullopt, true));
  EXPECT_NO_THROW(ParallelDims({}, 4).validate_against_model({}, 7, true));
  expect_refused([&] { dims.validate_against_model({}, 7, true); }, {"use a seq_len of 8,"});
  expect_refused([&] { dims.validate_against_model({}, 17, true); }, {"use a seq_len of 16 or 24,"});
}

TEST(ParallelDims, PipelinesArePlannedButNotRun) {
  const ParallelDims dims(degrees(1, 2, 1, 1, 4, 1), 8);
  EXPECT_EQ(dims.pp(), 4);
  expect_refused([&] { dims.require_runnable(); }, {"pp=4 can be planned but not executed; use pp=1"});
  EXPECT_NO_THROW(ParallelDims({}, 8).require_runnable());
}

struct MeshCase {
  ParallelConfig config;
  int world_size;
  const char* mesh;
  std::vector<std::string> fsdp, dp, loss;  // the axes behind each alias; none: there is no such alias
};

TEST(ParallelDims, BuildsTheCanonicalMeshWithItsAliases) {
  const std::string replicate = "dp_replicate", shard = "dp_shard";
  const std::vector<MeshCase> cases = {
      {degrees(1, 1, 1, 1, 1, 1), 1, "dp_shard=1", {shard}, {shard}, {shard}},
      {degrees(1, 4, 1, 1, 1, 1), 4, "dp_shard=4", {shard}, {shard}, {shard}},
      {degrees(4, 1, 1, 1, 1, 1), 4, "dp_replicate=4", {}, {replicate}, {replicate}},
      {degrees(2, 2, 1, 1, 1, 1),
       4,
       "dp_replicate=2,dp_shard=2",
       {shard},
       {replicate, shard},
       {replicate, shard}},
      {degrees(1, 1, 2, 2, 1, 1), 4, "cp=2,tp=2", {}, {}, {"cp"}},
      {degrees(1, 2, 2, 1, 1, 1), 4, "dp_shard=2,cp=2", {shard}, {shard}, {shard, "cp"}},
      {degrees(2, 1, 2, 1, 1, 1), 4, "dp_replicate=2,cp=2", {}, {replicate}, {replicate, "cp"}},
      {degrees(1, 1, 1, 2, 2, 1), 4, "tp=2,pp=2", {}, {}, {}},
      {degrees(2, 2, 2, 2, 2, 2),
       64,
       "dp_replicate=2,dp_shard=2,ep=2,cp=2,tp=2,pp=2",
       {shard},
       {replicate, shard},
       {replicate, shard, "cp"}},
      {degrees(2, 2, 2, 2, 2, 2, ExpertRule::nested),
       32,
       "dp_replicate=2,dp_shard=2,cp=2,tp=2,pp=2",
       {shard},
       {replicate, shard},
       {replicate, shard, "cp"}},
  };
  for (const MeshCase& c : cases) {
    SCOPED_TRACE(c.mesh);
    const Mesh mesh = ParallelDims(c.config, c.world_size).build_mesh();
    EXPECT_EQ(mesh.to_string(), c.mesh);
    const auto behind = [&](const char* alias) {
      return mesh.has_alias(alias) ? names_of(mesh, mesh.axes_of(alias)) : std::vector<std::string>{};
    };
    EXPECT_EQ(behind("fsdp"), c.fsdp);
    EXPECT_EQ(behind("dp"), c.dp);
    EXPECT_EQ(behind("loss"), c.loss);
  }
}

TEST(ParallelDims, AliasesReachTheirRanks) {
  const Mesh mesh = ParallelDims(degrees(2, 2, 2, 1, 1, 1), 8).build_mesh();
  EXPECT_EQ(mesh.slice("fsdp", 5).to_string(), "fsdp=2@5/7");
  EXPECT_EQ(mesh.slice("dp", 5).to_string(), "dp=4@1/3/5/7");
  EXPECT_EQ(mesh.slice("loss", 5).to_string(), "loss=8");
}

TEST(ParallelDims, SummaryIsOneLine) {
  EXPECT_EQ(ParallelDims(degrees(1, 2, 4, 1, 1, 1), 8).summary(),
            "dp_replicate=1 dp_shard=2 cp=4 tp=1 pp=1 ep=1 etp=1 | dp=2 world=8");
  EXPECT_EQ(ParallelDims(degrees(2, -1, 1, 2, 2, 3), 48).summary(),
            "dp_replicate=2 dp_shard=2 cp=1 tp=2 pp=2 ep=3 etp=2 | dp=4 world=48");
}

// ---- the reference, rule by rule ----

struct Rule {
  const char* rule;     // of HyperParallel's parallel_dims.py, in its order
  const char* degrees;  // "tp=4,dp=2"
  int world;
  const char* summary;  // what comes out, or
  const char* refusal;  // why nothing does
};

TEST(ParallelDims, HasEveryRuleOfTheReference) {
  const std::vector<Rule> rules = {
      {"nothing given works on one rank", "", 1,
       "dp_replicate=1 dp_shard=1 cp=1 tp=1 pp=1 ep=1 etp=1 | dp=1 world=1", ""},
      {"tp=4 alone infers dp", "tp=4", 8,
       "dp_replicate=1 dp_shard=2 cp=1 tp=4 pp=1 ep=1 etp=4 | dp=2 world=8", ""},
      {"dp_shard=-1 fills the world", "dp_replicate=2,dp_shard=-1,cp=2", 16,
       "dp_replicate=2 dp_shard=4 cp=2 tp=1 pp=1 ep=1 etp=1 | dp=8 world=16", ""},
      {"dp stands for dp_shard", "dp=4,cp=2", 8,
       "dp_replicate=1 dp_shard=4 cp=2 tp=1 pp=1 ep=1 etp=1 | dp=4 world=8", ""},
      {"dp beside dp_replicate is dp_shard, too", "dp=4,dp_replicate=2", 8,
       "dp_replicate=2 dp_shard=4 cp=1 tp=1 pp=1 ep=1 etp=1 | dp=8 world=8", ""},
      {"etp is tp unless it is given", "tp=2,ep=2", 4,
       "dp_replicate=1 dp_shard=1 cp=1 tp=2 pp=1 ep=2 etp=2 | dp=1 world=4", ""},
      {"degrees are at least 1", "cp=0", 8, "", "cp=0 must be at least 1"},
      {"dp_shard is -1 or at least 1", "dp_shard=0", 8, "", "dp_shard=0 must be at least 1, or -1"},
      {"what is inferred is whole", "tp=3,dp_shard=-1", 8, "", "world_size=8 is not divisible"},
      {"ep is an axis of its own", "ep=2,dp_shard=-1", 8,
       "dp_replicate=1 dp_shard=4 cp=1 tp=1 pp=1 ep=2 etp=1 | dp=4 world=8", ""},
      {"the product is the world", "dp_shard=4,tp=4", 8, "", "=16 is not world_size=8"},
      {"and -1 is what to set", "dp_shard=4,tp=1", 8, "", "or -1 to infer it"},
      {"etp is tp or 1", "tp=4,ep=2,etp=2", 8, "", "etp=2 is neither tp=4 nor 1"},
      {"ulysses_degree is at most cp", "cp=4,ulysses_degree=8", 4, "",
       "cp=4 is not divisible by ulysses_degree=8"},
      {"ulysses_degree divides cp", "cp=4,ulysses_degree=3", 4, "",
       "cp=4 is not divisible by ulysses_degree=3"},
  };
  for (const Rule& rule : rules) {
    SCOPED_TRACE(str(rule.rule, ": ", rule.degrees, " on ", rule.world));
    ParallelConfig config;
    const std::vector<std::pair<const char*, std::optional<int>*>> members = {
        {"dp_replicate", &config.dp_replicate},
        {"dp_shard", &config.dp_shard},
        {"dp", &config.dp},
        {"cp", &config.cp},
        {"tp", &config.tp},
        {"ep", &config.ep},
        {"etp", &config.etp},
        {"ulysses_degree", &config.ulysses_degree}};
    for (const std::string_view part : split(rule.degrees, ',')) {
      for (const auto& [name, member] : members) {
        if (part.starts_with(str(name, "=")))
          *member = std::stoi(std::string(part.substr(part.find('=') + 1)));
      }
    }
    if (*rule.refusal != 0) {
      expect_degrees_refused(config, rule.world, {rule.refusal});
    } else {
      EXPECT_EQ(ParallelDims(config, rule.world).summary(), rule.summary);
    }
  }
}

// ---- texts ----

// Every key of the reference, as texts of layouts and --fix give them.
TEST(DegreeTexts, EveryKeyIsReadOrRefused) {
  ParallelConfig config;
  for (const std::string_view key : degree_keys()) EXPECT_TRUE(read_degree(config, key, "2")) << key;
  EXPECT_EQ(config, (ParallelConfig{2, 2, 2, 2, 2, 2, 2, 2, std::nullopt, ExpertRule::peer}));
  EXPECT_FALSE(read_degree(config, "zero", "1"));
  for (const std::string_view key : degree_keys()) {
    const bool infers = key == "dp" || key == "dp_shard";
    if (infers) {
      EXPECT_TRUE(read_degree(config, key, "-1"));
    } else {
      expect_refused([&] { read_degree(config, key, "-1"); }, {str(key, "=-1 is out of range; use 1 to")});
    }
    for (const char* bad : {"0", "-2", "16777217", "two", ""})
      EXPECT_THROW(read_degree(config, key, bad), InvalidInput) << key << "=" << bad;
  }
}

TEST(DegreeTexts, WithoutAWorldDegreesTakeAsManyRanksAsTheyNeed) {
  ParallelConfig config;
  EXPECT_EQ(infer_degrees(config), ParallelDegrees{});
  config.tp = 4, config.dp = -1, config.ep = 8;
  EXPECT_EQ(infer_degrees(config).dp_shard, 1);
  config.tp = config.cp = config.pp = Mesh::kMaxRanks;
  expect_refused([&] { infer_degrees(config); }, {"more than 16777216 ranks", "tp=16777216"});
}

TEST(DegreeTexts, TheNearestDivisorIsAtMostTheValue) {
  EXPECT_EQ(nearest_divisor(28, 8), 7);
  EXPECT_EQ(nearest_divisor(32, 64), 32);
  EXPECT_EQ(nearest_divisor(7, 6), 1);
}

}  // namespace
}  // namespace cp
