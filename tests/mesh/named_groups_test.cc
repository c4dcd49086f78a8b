#include "shared/mesh/named_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/rank_groups.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using Groups = std::vector<std::vector<Rank>>;

std::map<std::string, NamedGroups> by_name(const ParallelDims& dims) {
  std::map<std::string, NamedGroups> all;
  for (const NamedGroups& named : named_groups(dims)) all[named.name] = named;
  return all;
}

TEST(NamedGroups, AreThoseOfAxesAliasesAndExperts) {
  ParallelConfig config;
  config.cp = 2, config.tp = 2, config.ep = 2, config.expert_rule = ExpertRule::nested;
  const auto all = by_name(ParallelDims(config, 8));
  EXPECT_EQ(all.at("tp").groups, (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(all.at("fsdp").groups, (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(all.at("loss").groups, (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_THAT(all.at("loss").axes, ElementsAre("dp_shard", "cp"));
  EXPECT_EQ(all.at("ep").groups, (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(all.at("efsdp").groups, (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(all.at("etp").groups, all.at("tp").groups);
  EXPECT_THAT(all.at("cp").of(6), ElementsAre(4, 6));
  expect_refused([&] { all.at("cp").of(8); }, {"rank 8 is not in the world", "0 to 7"});
}

// Without experts there are no groups of theirs, and an axis is listed once.
TEST(NamedGroups, ListWhatThereIs) {
  ParallelConfig config;
  config.tp = 2;
  EXPECT_FALSE(by_name(ParallelDims(config, 8)).contains("efsdp"));
  config.ep = 2;  // peer: an axis of the mesh
  const ParallelDims dims(config, 8);
  EXPECT_FALSE(by_name(dims).at("ep").of_experts);
  EXPECT_EQ(std::ranges::count(named_groups(dims), "ep", &NamedGroups::name), 1);
}

// Each kind of group parts the world, and has the size that the degrees say.
RC_GTEST_PROP(NamedGroupsProperty, PartTheWorld, ()) {
  ParallelConfig config;
  const auto small = [](const char* name) { return pick(name, rc::gen::inRange(1, 4)); };
  config.dp_replicate = small("dp_replicate"), config.cp = small("cp"), config.tp = small("tp");
  config.pp = small("pp");
  const int tp = *config.tp, shard = small("dp_shard");
  config.dp_shard = shard;
  config.expert_rule = pick("nested", rc::gen::arbitrary<bool>()) ? ExpertRule::nested : ExpertRule::peer;
  config.etp = pick("etp = 1", rc::gen::arbitrary<bool>()) ? 1 : tp;
  const bool nested = config.expert_rule == ExpertRule::nested;
  const int pool = shard * *config.cp * tp / *config.etp;
  config.ep = nested ? static_cast<int>(nearest_divisor(pool, small("ep at most"))) : small("ep");
  const int world = *config.dp_replicate * shard * *config.cp * tp * *config.pp * (nested ? 1 : *config.ep);
  const ParallelDims dims(config, world);
  for (const NamedGroups& named : named_groups(dims)) {
    std::set<Rank> seen;
    for (const std::vector<Rank>& group : named.groups) {
      RC_ASSERT(static_cast<int>(group.size()) == named.size());
      RC_ASSERT(std::ranges::is_sorted(group));
      seen.insert(group.begin(), group.end());
    }
    RC_ASSERT(static_cast<int>(seen.size()) == world);
    RC_ASSERT(*seen.rbegin() == world - 1);
    if (named.name == "efsdp") {
      RC_ASSERT(named.size() == dims.efsdp_size());
    }
    if (named.name == "ep") {
      RC_ASSERT(named.size() == dims.ep());
    }
    if (named.name == "etp") {
      RC_ASSERT(named.size() == dims.etp());
    }
    if (named.name == "dp") {
      RC_ASSERT(named.size() == dims.dp_size());
    }
  }
}

// The groups of experts are those that plans of layouts use, which are found without a mesh.
RC_GTEST_PROP(NamedGroupsProperty, ExpertsAreWherePlansHaveThem, ()) {
  ParallelConfig config;
  const auto small = [](const char* name) { return pick(name, rc::gen::inRange(1, 5)); };
  config.dp_replicate = small("dp_replicate"), config.cp = small("cp"), config.tp = small("tp");
  const int shard = pick("dp_shard", rc::gen::inRange(2, 5));
  config.dp_shard = shard, config.expert_rule = ExpertRule::nested;
  config.ep = pick("ep", rc::gen::element(shard, shard * *config.cp));
  const ParallelDims dims(config, *config.dp_replicate * shard * *config.cp * *config.tp);
  const auto all = by_name(dims);
  const ParallelLayout layout = layout_of(dims);
  for (Rank rank = 0; rank < dims.world_size(); ++rank)
    RC_ASSERT(all.at("ep").of(rank) == RankGroups(layout, rank).ep_group());
}

}  // namespace
}  // namespace cp
