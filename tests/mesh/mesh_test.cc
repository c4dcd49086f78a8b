#include "shared/mesh/mesh.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/mesh_testing.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using Names = std::vector<std::string>;

Mesh cube() { return Mesh({{"dp", 2}, {"pp", 2}, {"cp", 2}}); }

TEST(Mesh, CountsRanksFromZeroWithTheLastAxisFastest) {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  EXPECT_EQ(mesh.num_axes(), 2);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.axis_size(0), 2);
  EXPECT_EQ(mesh.axis_size(1), 3);
  EXPECT_EQ(mesh.axis_index("tp"), 1);
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mesh.coordinates(4), ElementsAre(1, 1));
  EXPECT_EQ(mesh.rank_at(std::vector{1, 1}), 4);
}

TEST(Mesh, AcceptsRanksInAnyOrder) {
  const Mesh mesh({{"a", 2}, {"b", 2}}, {40, 2, 11, 3});
  EXPECT_EQ(mesh.index_of(11), 2);
  EXPECT_THAT(mesh.coordinates(11), ElementsAre(1, 0));
  EXPECT_EQ(mesh.coordinate(2, 1), 1);
  EXPECT_EQ(mesh.rank_at(std::vector{0, 0}), 40);
  EXPECT_TRUE(mesh.contains(3));
  EXPECT_FALSE(mesh.contains(0));
  EXPECT_FALSE(mesh.contains(12));
  EXPECT_FALSE(mesh.contains(-1));
}

TEST(Mesh, AxesOfSizeOneChangeNothing) {
  const Mesh mesh({{"a", 1}, {"b", 2}, {"c", 1}, {"d", 2}, {"e", 1}});
  EXPECT_THAT(mesh.coordinates(2), ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(mesh.groups("c"), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  EXPECT_THAT(mesh.groups(std::vector{0, 1, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_EQ(mesh.slice("a", 3), Mesh({{"a", 1}}, {3}));
}

TEST(Mesh, RefusesAxesAndRanksThatMakeNoMesh) {
  using Axes = std::vector<MeshAxis>;
  expect_refused([] { Mesh(Axes{}); }, {"at least one axis"});
  expect_refused([] { Mesh(Axes{{"", 2}}); }, {"cannot name a mesh axis"});
  expect_refused([] { Mesh(Axes{{"d p", 2}}); }, {"cannot name a mesh axis"});
  expect_refused([] { Mesh(Axes{{"a=b", 2}}); }, {"cannot name a mesh axis"});
  expect_refused([] { Mesh(Axes{{"dp", 0}}); }, {"dp=0"});
  expect_refused([] { Mesh(Axes{{"dp", -2}, {"tp", -2}}); }, {"dp=-2"});
  expect_refused([] { Mesh(Axes{{"dp", 2}, {"tp", 2}, {"dp", 2}}); }, {"dp comes twice in dp=2,tp=2,dp=2"});
  expect_refused([] { Mesh(Axes{{"a", Mesh::kMaxRanks}, {"b", 2}}); }, {"too many ranks"});
  expect_refused(
      [] {
        Mesh(Axes{{"a", 2'000'000'000}, {"b", 2'000'000'000}, {"c", 8}});
      },
      {"too many ranks"});
  expect_refused([] { Mesh({{"a", 2}, {"b", 2}}, {0, 1, 2}); }, {"needs 4 ranks, not 3"});
  expect_refused([] { Mesh({{"a", 2}}, {0, 1, 2}); }, {"needs 2 ranks, not 3"});
  expect_refused([] { Mesh({{"a", 2}}, {1, 1}); }, {"rank 1 comes twice"});
  expect_refused([] { Mesh({{"a", 2}}, {0, -1}); }, {"rank -1 is negative"});
  expect_refused(
      [] {
        Mesh({{"a", 2}}, {0, 1 << 24});
      },
      {"rank 16777216 of the mesh a=2 is out of range; ranks are 0 to 16777215"});
}

TEST(Mesh, RefusesLookUpsOutsideOfIt) {
  const Mesh mesh = cube();
  expect_refused([&] { mesh.axis_size(3); }, {"has no axis 3"});
  expect_refused([&] { mesh.axis_size(-1); }, {"has no axis -1"});
  expect_refused([&] { mesh.coordinate(0, 3); }, {"has no axis 3"});
  expect_refused([&] { mesh.axis_index("tp"); }, {"'tp' is not an axis of the mesh dp=2,pp=2,cp=2"});
  expect_refused([&] { mesh.index_of(8); }, {"rank 8 is not in the mesh dp=2,pp=2,cp=2"});
  expect_refused([&] { mesh.coordinate(-1, 0); }, {"rank -1 is not in the mesh"});
  expect_refused([&] { mesh.coordinates(8); }, {"rank 8"});
  expect_refused([&] { mesh.rank_at(std::vector{0, 0}); }, {"no coordinates (0,0)"});
  expect_refused([&] { mesh.rank_at(std::vector{0, 0, 2}); }, {"no coordinates (0,0,2)"});
  expect_refused([&] { mesh.rank_at(std::vector{0, -1, 0}); }, {"no coordinates (0,-1,0)"});
  expect_refused(
      [&] {
        mesh.rank_at(std::vector{2'147'483'647, 0, 0});
      },
      {"no coordinates (2147483647,0,0)"});
  expect_refused(
      [&] {
        mesh.groups(std::vector{0, 0});
      },
      {"axis dp of the mesh dp=2,pp=2,cp=2 is chosen twice"});
  expect_refused([&] { mesh.groups(std::vector{3}); }, {"has no axis 3"});
  expect_refused([&] { mesh.groups("tp"); }, {"'tp' is neither an axis nor an alias"});
  expect_refused([&] { mesh.group_of(8, std::vector{0}); }, {"rank 8"});
  expect_refused([&] { mesh.group_of(0, std::vector{1, 1}); }, {"chosen twice"});
}

TEST(Mesh, TextFormIsParsedAndPrinted) {
  EXPECT_EQ(Mesh::parse("dp=2,cp=4"), Mesh({{"dp", 2}, {"cp", 4}}));
  EXPECT_EQ(Mesh::parse("a=2,b=2@0/2/1/3"), Mesh({{"a", 2}, {"b", 2}}, {0, 2, 1, 3}));
  EXPECT_EQ(Mesh::parse(" dp = 2 , cp = 1 @ 5 / 4 "), Mesh({{"dp", 2}, {"cp", 1}}, {5, 4}));
  EXPECT_EQ(Mesh::parse("a=2@0/1").to_string(), "a=2");
  EXPECT_EQ(Mesh::parse("a=2@1/2").to_string(), "a=2@1/2");
  EXPECT_EQ(Mesh({{"a", 2}, {"b", 1}}, {1, 0}).to_string(), "a=2,b=1@1/0");
}

TEST(Mesh, RefusesMalformedText) {
  expect_refused([] { Mesh::parse(""); }, {"at least one axis"});
  expect_refused([] { Mesh::parse("dp"); }, {"the mesh axis 'dp' in 'dp' has no size"});
  expect_refused([] { Mesh::parse("dp=2,"); }, {"has no size"});
  expect_refused([] { Mesh::parse("dp="); }, {"the size of mesh axis dp"});
  expect_refused([] { Mesh::parse("dp=two"); }, {"the size of mesh axis dp 'two'"});
  expect_refused([] { Mesh::parse("dp=2=3"); }, {"the size of mesh axis dp '2=3'"});
  expect_refused([] { Mesh::parse("dp=8Gi"); }, {"the size of mesh axis dp '8Gi' is out of range"});
  expect_refused([] { Mesh::parse("dp=-2"); }, {"the size of mesh axis dp '-2' is out of range; use 1 to "});
  expect_refused([] { Mesh::parse("dp=0"); }, {"the size of mesh axis dp '0' is out of range; use 1 to "});
  expect_refused([] { Mesh::parse("=2"); }, {"cannot name a mesh axis"});
  expect_refused([] { Mesh::parse("dp=2,dp=2"); }, {"dp comes twice"});
  expect_refused([] { Mesh::parse("dp=2@"); }, {"needs 2 ranks, not 0"});
  expect_refused([] { Mesh::parse("dp=2@0"); }, {"needs 2 ranks, not 1"});
  expect_refused([] { Mesh::parse("dp=2@0/x"); }, {"the rank 'x'"});
  expect_refused([] { Mesh::parse("dp=2@0/-1"); }, {"the rank '-1' is out of range"});
  expect_refused([] { Mesh::parse("dp=2@0/2147483648"); }, {"the rank '2147483648' is out of range"});
}

TEST(Mesh, GroupsOfSeveralAxesFollowTheOrderGiven) {
  const Mesh mesh = cube();
  EXPECT_THAT(mesh.groups(std::vector{0, 2}), ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(mesh.groups(std::vector{2, 0}), ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
  EXPECT_THAT(mesh.group_of(6, std::vector{2, 0}), ElementsAre(2, 6, 3, 7));
  EXPECT_THAT(mesh.groups(std::vector{2, 1, 0}), ElementsAre(ElementsAre(0, 4, 2, 6, 1, 5, 3, 7)));
  EXPECT_EQ(mesh.groups(std::vector<int>{}).size(), 8U);
  EXPECT_THAT(mesh.group_of(6, std::vector<int>{}), ElementsAre(6));
}

TEST(Mesh, SliceOfASliceIsTheSliceOfBoth) {
  const Mesh mesh = cube();
  for (const Rank rank : mesh.ranks()) {
    EXPECT_EQ(mesh.slice(Names{"dp", "cp"}, rank).slice("cp", rank), mesh.slice("cp", rank));
  }
}

TEST(Mesh, RefusesSlicesThatAreNoSubsequence) {
  const Mesh mesh = cube().flatten(Names{"dp", "cp"}, "dp_cp");
  expect_refused([&] { mesh.slice(Names{"cp", "dp"}, 0); }, {"dp does not come after cp"});
  expect_refused([&] { mesh.slice(Names{"dp", "dp"}, 0); }, {"dp does not come after dp"});
  expect_refused([&] { mesh.slice(Names{"dp_cp", "cp"}, 0); }, {"cp does not come after cp"});
  expect_refused([&] { mesh.slice(Names{"dp_cp", "pp"}, 0); }, {"pp does not come after cp"});
  expect_refused([&] { mesh.slice(Names{}, 0); }, {"names no axis"});
  expect_refused([&] { mesh.slice("", 0); }, {"'' is neither an axis nor an alias"});
  expect_refused([&] { mesh.slice("tp", 0); },
                 {"'tp' is neither an axis nor an alias of the mesh dp=2,pp=2,cp=2"});
  expect_refused([&] { mesh.slice("tp", 0); }, {"its aliases are: dp_cp"});
  expect_refused([&] { mesh.slice("dp", 8); }, {"rank 8 is not in the mesh"});
}

TEST(Mesh, AliasesJoinAxesInTheOrderGiven) {
  const Mesh mesh = cube().flatten(Names{"cp", "dp"}, "cp_dp");
  EXPECT_TRUE(mesh.has_alias("cp_dp"));
  EXPECT_FALSE(mesh.has_alias("dp"));
  EXPECT_THAT(mesh.axes_of("cp_dp"), ElementsAre(2, 0));
  EXPECT_THAT(mesh.axes_of("pp"), ElementsAre(1));
  EXPECT_EQ(mesh.slice("cp_dp", 2), Mesh({{"cp_dp", 4}}, {2, 6, 3, 7}));
  EXPECT_THAT(mesh.groups("cp_dp"), ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
}

TEST(Mesh, AnAliasMayFlattenOneAxisOrAnotherAlias) {
  const Mesh mesh = cube().flatten(Names{"dp"}, "fsdp").flatten(Names{"fsdp", "pp"}, "both");
  EXPECT_EQ(mesh.slice("fsdp", 1), Mesh({{"fsdp", 2}}, {1, 5}));
  EXPECT_EQ(mesh.slice("both", 1), Mesh({{"both", 4}}, {1, 3, 5, 7}));
  EXPECT_EQ(mesh.slice(Names{"both", "cp"}, 0), Mesh({{"both", 4}, {"cp", 2}}));
}

TEST(Mesh, AliasesBelongToTheFlattenedValueAlone) {
  const Mesh plain = cube();
  const Mesh flattened = plain.flatten(Names{"dp", "pp"}, "x");
  EXPECT_FALSE(plain.has_alias("x"));
  EXPECT_FALSE(flattened.slice(Names{"dp", "pp"}, 0).has_alias("x"));
  EXPECT_EQ(plain, flattened);
}

TEST(Mesh, RefusesAliasesThatAreTakenOrMalformed) {
  const Mesh mesh = cube().flatten(Names{"dp", "cp"}, "x");
  expect_refused([&] { mesh.flatten(Names{"dp"}, "x"); }, {"already has an axis or an alias x"});
  expect_refused([&] { mesh.flatten(Names{"dp"}, "pp"); }, {"already has an axis or an alias pp"});
  expect_refused([&] { mesh.flatten(Names{"dp"}, ""); }, {"cannot name a mesh axis"});
  expect_refused([&] { mesh.flatten(Names{}, "y"); }, {"flattens no axis"});
  expect_refused([&] { mesh.flatten(Names{"dp", "dp"}, "y"); }, {"chosen twice"});
  expect_refused([&] { mesh.flatten(Names{"x", "cp"}, "y"); }, {"chosen twice"});
  expect_refused([&] { mesh.flatten(Names{"tp"}, "y"); }, {"'tp' is neither an axis nor an alias"});
  expect_refused([&] { mesh.axis_index("x"); }, {"'x' is an alias, not an axis"});
}

TEST(Mesh, ConcatenateMakesOrdersThatSliceRefuses) {
  const Mesh mesh = cube();
  for (const Rank rank : {0, 1, 4, 5}) {
    const Mesh parts[] = {mesh.slice("cp", rank), mesh.slice("dp", rank)};
    EXPECT_EQ(Mesh::concatenate(parts, rank), Mesh({{"cp", 2}, {"dp", 2}}, {0, 4, 1, 5}));
  }
  const Mesh parts[] = {mesh.slice("cp", 7), mesh.slice("dp", 7)};
  EXPECT_EQ(Mesh::concatenate(parts, 7), Mesh({{"cp", 2}, {"dp", 2}}, {2, 6, 3, 7}));
}

TEST(Mesh, ConcatenateKnowsTheRootThroughSlicesAliasesAndConcatenations) {
  const Mesh mesh = cube().flatten(Names{"pp", "cp"}, "inner");
  const Mesh swapped_parts[] = {mesh.slice(Names{"dp", "cp"}, 6).slice("cp", 6), mesh.slice("dp", 6)};
  const Mesh swapped = Mesh::concatenate(swapped_parts, 6);
  ASSERT_EQ(swapped, Mesh({{"cp", 2}, {"dp", 2}}, {2, 6, 3, 7}));
  const Mesh again[] = {mesh.slice("pp", 6), swapped.slice("dp", 6), swapped.slice("cp", 6)};
  EXPECT_EQ(Mesh::concatenate(again, 6), Mesh({{"pp", 2}, {"dp", 2}, {"cp", 2}}, {0, 1, 4, 5, 2, 3, 6, 7}));
  const Mesh with_alias[] = {mesh.slice("inner", 6), mesh.slice("dp", 6)};
  EXPECT_EQ(Mesh::concatenate(with_alias, 6), Mesh({{"inner", 4}, {"dp", 2}}, {0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST(Mesh, ConcatenateTakesSlicesOfEqualMeshes) {
  const Mesh parts[] = {cube().slice("cp", 0), Mesh::parse("dp=2,pp=2,cp=2").slice("dp", 0)};
  EXPECT_EQ(Mesh::concatenate(parts, 0), Mesh({{"cp", 2}, {"dp", 2}}, {0, 4, 1, 5}));
}

TEST(Mesh, ConcatenateRefusesPartsThatDoNotFit) {
  const Mesh mesh = cube();
  const auto concatenate = [](std::vector<Mesh> parts, Rank member) {
    return [parts = std::move(parts), member] { Mesh::concatenate(parts, member); };
  };
  expect_refused(concatenate({}, 0), {"no meshes to concatenate"});
  expect_refused(concatenate({mesh.slice("cp", 0), Mesh::parse("dp=2")}, 0), {"slices of different meshes"});
  expect_refused(concatenate({mesh.slice("cp", 0), mesh.slice("dp", 2)}, 0),
                 {"rank 0 is not in the mesh dp=2"});
  expect_refused(concatenate({mesh.slice("cp", 0), mesh.slice("cp", 0)}, 0), {"chosen twice"});
  expect_refused(concatenate({mesh.slice("cp", 0), mesh}, 0), {"chosen twice"});
  const Mesh flat = mesh.flatten(Names{"dp", "cp"}, "x");
  expect_refused(concatenate({flat.slice("x", 0), mesh.slice("cp", 0)}, 0), {"axis cp of the mesh"});
}

TEST(Mesh, EqualityAndHashSeeAxesAndRanksAlone) {
  const Mesh mesh = cube();
  const Mesh copy = mesh;
  EXPECT_EQ(copy, mesh);
  const Mesh rebuilt = Mesh::parse("dp=2,pp=2,cp=2@0/1/2/3/4/5/6/7").flatten(Names{"dp"}, "x");
  EXPECT_EQ(rebuilt, mesh);
  EXPECT_EQ(digest_of(rebuilt), digest_of(mesh));
  for (const char* other :
       {"dp=2,pp=2,tp=2", "dp=4,cp=2", "dp=8", "dp=4,pp=2,cp=1", "dp=2,pp=2,cp=2@1/0/2/3/4/5/6/7",
        "dp=2,pp=2,cp=2@0/1/2/3/4/5/6/8", "dp=2,pp=2,cp=2,tp=1"}) {
    EXPECT_NE(Mesh::parse(other), mesh) << other;
    EXPECT_NE(digest_of(Mesh::parse(other)), digest_of(mesh)) << other;
  }
}

TEST(Mesh, HoldsAHundredThousandRanks) {
  const int size = 100'000;
  std::vector<Rank> reversed(size);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const std::vector<MeshAxis> axes = {{"dp", 125}, {"cp", 100}, {"tp", 8}};
  for (const Mesh& mesh : {Mesh(axes), Mesh(axes, reversed)}) {
    const auto groups = mesh.groups("cp");
    ASSERT_EQ(groups.size(), 1000U);
    for (const auto& group : groups) {
      ASSERT_EQ(group.size(), 100U);
      ASSERT_EQ(group, mesh.group_of(group[37], std::vector{1}));
    }
    for (const Rank rank : {0, 1, 799, 800, 99'999}) {
      EXPECT_EQ(mesh.rank_at(mesh.coordinates(rank)), rank);
      EXPECT_EQ(mesh.slice(Names{"dp", "tp"}, rank).size(), 1000);
    }
    EXPECT_EQ(Mesh::parse(mesh.to_string()), mesh);
  }
}

}  // namespace
}  // namespace cp
