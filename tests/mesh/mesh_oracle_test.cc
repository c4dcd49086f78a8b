// Facts about meshes that other systems' public tests assert; the row's name is in each case. Rows of
// parallel degrees are in parallel_dims_test.cc.
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/mesh/mesh.h"
#include "tests/mesh/mesh_testing.h"

namespace cp {
namespace {

using Names = std::vector<std::string>;
using Groups = std::vector<std::vector<Rank>>;

struct GroupsCase {
  const char* row;
  const char* mesh;
  Names names;  // more than one: groups of their flattening
  Groups groups;
};

const std::vector<GroupsCase> kGroups = {
    {"H1", "dim0=2,dim1=2", {"dim0"}, {{0, 2}, {1, 3}}},
    {"H1", "dim0=2,dim1=2", {"dim1"}, {{0, 1}, {2, 3}}},
    {"H2", "Replicate=2,Shard=2,TP=2", {"TP"}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
    {"H2", "Replicate=2,Shard=2,TP=2", {"Shard"}, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
    {"H2", "Replicate=2,Shard=2,TP=2", {"Replicate"}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
    {"H5", "dp=2,cp=2,tp=2", {"dp", "cp"}, {{0, 2, 4, 6}, {1, 3, 5, 7}}},
    {"H6", "dp=2,cp=2,tp=2", {"dp", "tp"}, {{0, 1, 4, 5}, {2, 3, 6, 7}}},
    {"H13", "a=2,b=2@0/2/1/3", {"a"}, {{0, 1}, {2, 3}}},
    {"H13", "a=2,b=2@0/2/1/3", {"b"}, {{0, 2}, {1, 3}}},
    // Megatron's orders name the fastest axis first.
    {"H14",
     "pp=4,dp=3,tp=2",
     {"dp"},
     {{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}, {12, 14, 16}, {13, 15, 17}, {18, 20, 22}, {19, 21, 23}}},
    {"H15", "dp=2,pp=2,tp=2", {"dp"}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
};

TEST(MeshOracle, GroupsAlongAxesSplitTheWorld) {
  for (const GroupsCase& c : kGroups) {
    SCOPED_TRACE(::testing::Message() << c.row << " " << c.mesh << " " << ::testing::PrintToString(c.names));
    const Mesh mesh = Mesh::parse(c.mesh).flatten(c.names, "flat");
    EXPECT_EQ(mesh.groups("flat"), c.groups);
    for (const auto& group : c.groups) {
      for (const Rank rank : group) EXPECT_EQ(mesh.group_of(rank, mesh.axes_of("flat")), group);
    }
  }
}

struct SliceCase {
  const char* row;
  const char* mesh;
  Names names;
  std::vector<Rank> members;  // each of them gives this slice
  const char* slice;
};

const std::vector<SliceCase> kSlices = {
    {"H3", "Replicate=2,Shard=2,TP=2", {"Replicate", "Shard"}, {0, 2, 4, 6}, "Replicate=2,Shard=2@0/2/4/6"},
    {"H3", "Replicate=2,Shard=2,TP=2", {"Replicate", "Shard"}, {1, 3, 5, 7}, "Replicate=2,Shard=2@1/3/5/7"},
    {"H4", "dp=2,pp=2,cp=2", {"dp", "cp"}, {0, 1, 4, 5}, "dp=2,cp=2@0/1/4/5"},
    {"H4", "dp=2,pp=2,cp=2", {"dp", "cp"}, {2, 3, 6, 7}, "dp=2,cp=2@2/3/6/7"},
    {"H11", "dp=2,tp=4", {"dp"}, {0, 4}, "dp=2@0/4"},
    {"H11", "dp=2,tp=4", {"tp"}, {0, 1, 2, 3}, "tp=4"},
};

TEST(MeshOracle, SlicesHoldTheirMembers) {
  for (const SliceCase& c : kSlices) {
    SCOPED_TRACE(::testing::Message() << c.row << " " << c.mesh << " " << ::testing::PrintToString(c.names));
    for (const Rank member : c.members) {
      EXPECT_EQ(Mesh::parse(c.mesh).slice(c.names, member), Mesh::parse(c.slice)) << "member " << member;
    }
  }
}

TEST(MeshOracle, H4SlicesAreSubsequences) {
  EXPECT_THROW(Mesh::parse("dp=2,pp=2,cp=2").slice(Names{"cp", "dp"}, 0), InvalidInput);
}

TEST(MeshOracle, FlattenedMeshCarriesItsAlias) {
  const Mesh mesh =
      Mesh::parse("dp=2,cp=2,tp=2").flatten(Names{"dp", "cp"}, "dp_cp").flatten(Names{"dp", "tp"}, "dp_tp");
  EXPECT_EQ(mesh.slice("dp_cp", 0).to_string(), "dp_cp=4@0/2/4/6") << "H5, H12";
  EXPECT_EQ(mesh.slice("dp_cp", 7).to_string(), "dp_cp=4@1/3/5/7") << "H5";
  EXPECT_EQ(mesh.slice("dp_tp", 0).to_string(), "dp_tp=4@0/1/4/5") << "H6";
  EXPECT_EQ(mesh.slice("dp_tp", 2).to_string(), "dp_tp=4@2/3/6/7") << "H6";
  EXPECT_EQ(mesh.slice("dp_cp", 0).groups("dp_cp"), (Groups{{0, 2, 4, 6}})) << "H12";
}

TEST(MeshOracle, H7CoordinatesOfACube) {
  const Mesh mesh = Mesh::parse("dp=2,pp=2,tp=2");
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, 0), rank / 4);
    EXPECT_EQ(mesh.coordinate(rank, 1), rank % 4 / 2);
    EXPECT_EQ(mesh.coordinate(rank, 2), rank % 2);
  }
}

TEST(MeshOracle, H8SlicingIsRepeatableAndRefusesUnknownNames) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  EXPECT_EQ(mesh.slice("dp", 1), mesh.slice("dp", 3));
  EXPECT_THROW(Mesh::parse("dp=2,dp=2"), InvalidInput);
  EXPECT_THROW(Mesh::parse("dp=2,2"), InvalidInput);
  EXPECT_THROW(mesh.slice("", 0), InvalidInput);
  EXPECT_THROW(mesh.slice("cp", 0), InvalidInput);
}

TEST(MeshOracle, H9NamesAndShapesCountInEquality) {
  const Mesh tp = Mesh::parse("DP=2,TP=2").slice("TP", 0);
  EXPECT_EQ(tp.ranks(), Mesh::parse("dp=2").ranks());
  EXPECT_NE(tp, Mesh::parse("dp=2"));
  EXPECT_EQ(tp, Mesh::parse("TP=2"));
  EXPECT_EQ(digest_of(tp), digest_of(Mesh::parse("TP=2")));
  EXPECT_NE(digest_of(Mesh::parse("a=4,b=2")), digest_of(Mesh::parse("a=2,b=2,c=2")));
}

TEST(MeshOracle, H13KeepsTheRanksAsGiven) {
  const Mesh mesh({{"a", 2}, {"b", 2}}, {0, 2, 1, 3});
  EXPECT_EQ(mesh.ranks(), (std::vector<Rank>{0, 2, 1, 3}));
  EXPECT_EQ(mesh.axis_size(0), 2);
  EXPECT_EQ(mesh.axis_size(1), 2);
}

TEST(MeshOracle, A38AxisOrderDecidesWhoHoldsWhichShard) {
  const Mesh mesh = Mesh::parse("dp=2,cp=2");
  for (const Rank rank : mesh.ranks()) {
    const auto dp = static_cast<std::size_t>(mesh.coordinate(rank, 0));
    const auto cp = static_cast<std::size_t>(mesh.coordinate(rank, 1));
    EXPECT_EQ(mesh.group_of(rank, std::vector{0, 1})[dp * 2 + cp], rank) << "(dp, cp)";
    EXPECT_EQ(mesh.group_of(rank, std::vector{1, 0})[cp * 2 + dp], rank) << "(cp, dp)";
    const Mesh swapped[] = {mesh.slice("cp", rank), mesh.slice("dp", rank)};
    EXPECT_EQ(Mesh::concatenate(swapped, rank).index_of(rank), static_cast<int>(cp * 2 + dp));
  }
}

}  // namespace
}  // namespace cp
