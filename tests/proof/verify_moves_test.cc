// The moves of the exhaustive search, and what they cost, against figures worked out by hand.
#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/proof/exhaustive/move_costs.h"
#include "sim/proof/exhaustive/moves.h"

namespace cp::sim {

void PrintTo(const MoveForm& form, std::ostream* out) {
  *out << name(form.kind) << "[" << join(form.axes) << "]";
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Layout layout(const std::string& mesh, const std::string& placements, const Shape& shape = {8, 8, 8}) {
  return parse_layout(placements, Mesh::parse(mesh), shape, DType::f32);
}

struct MoveRow {
  const char *mesh, *from, *to;
  std::vector<MoveForm> expected;
};

const MoveRow kMoveRows[] = {
    {"a=2,b=2", "R,S(0)", "R,S(0)", {}},
    {"a=2,b=2", "R,R", "S(0),S(1)", {{MoveKind::slice, {}}}},  // oracle F4: one slice over several axes
    {"a=2,b=2", "S(0),R", "S(0),S(0)", {{MoveKind::slice, {}}}},
    {"a=2,b=2", "S(0),R", "S(0)[1],S(0)[0]", {}},  // not innermost: other elements than the rank holds
    {"a=2,b=2", "S(0),S(0)", "S(0),R", {{MoveKind::all_gather, {1}}}},
    {"a=2,b=2", "S(0),S(0)", "R,S(0)", {}},  // the outer axis alone cannot be gathered
    // Oracles C21, C22: merged, over one dimension or two; the group in either order.
    {"a=2,b=2", "S(0),S(0)", "R,R", {{MoveKind::all_gather, {0, 1}}, {MoveKind::all_gather, {1, 0}}}},
    {"a=2,b=2", "S(0),S(1)", "R,R", {{MoveKind::all_gather, {0, 1}}, {MoveKind::all_gather, {1, 0}}}},
    // Oracles F5, F7; S(0) has as many parts as S(1) only where both keep theirs.
    {"a=2,b=2", "S(0),S(1)", "S(0),S(0)", {{MoveKind::all_to_all, {1}}}},
    {"a=2,b=3", "S(0),S(1)", "S(0)[1],S(0)[0]", {}},
    {"a=2,b=2,c=2",
     "S(0),S(1),S(1)",
     "S(0),S(2),S(2)",
     {{MoveKind::all_to_all, {1, 2}}, {MoveKind::all_to_all, {2, 1}}}},
    {"a=2,b=2", "S(0),S(1)", "S(1),S(0)", {{MoveKind::exchange, {}}}},
    {"a=2,b=2", "S(0),R", "R,S(0)", {{MoveKind::exchange, {}}}},
    {"a=2,b=3", "S(0),R", "R,S(0)", {}},  // other numbers of parts
    {"a=4,b=2,c=2", "S(0),R,R", "R,S(0),S(0)", {{MoveKind::exchange, {}}}},
    {"a=2,b=2", "P(sum),S(0)", "P(sum),S(1)", {{MoveKind::all_to_all, {1}}}},
    {"a=2,b=2", "P(sum),P(sum)", "R,R", {{MoveKind::all_reduce, {0, 1}}}},
    {"a=2,b=2", "P(sum),P(sum)", "P(sum),R", {{MoveKind::all_reduce, {1}}}},
    {"a=2,b=2",
     "P(sum),S(0)",
     "S(0)[1],S(0)[0]",
     {{MoveKind::reduce_scatter, {0}}, {MoveKind::reduce_exchange, {0}}}},
    {"a=2,b=2", "P(sum),S(0)", "S(0),S(0)", {}},  // not innermost
    {"a=2,b=2",
     "P(sum),P(sum)",
     "S(0),S(1)",
     {{MoveKind::reduce_scatter, {0, 1}},
      {MoveKind::reduce_scatter, {1, 0}},
      {MoveKind::reduce_exchange, {0, 1}}}},
    {"a=2,b=2", "P(sum),P(sum)", "S(0),R", {}},  // one reduction to a shard, one to a replica
    {"a=2,b=2", "R,R", "P(sum),R", {{MoveKind::to_partial, {}}}},
    {"a=2,b=2", "S(0),S(0)", "S(0),P(sum)", {{MoveKind::to_partial, {}}}},
    {"a=2,b=2", "S(0),S(0)", "P(sum),S(0)", {}},  // the outer axis: other elements than the rank holds
    {"a=2,b=2", "S(0),R", "R,P(sum)", {}},
    {"a=1,b=2", "S(0),R", "R,R", {}},  // an axis of one rank changes nothing
    {"a=1,b=2", "P(sum),P(sum)", "S(0),R", {{MoveKind::all_reduce, {1}}}},
};

TEST(VerifyMoves, MovesFollowFromTheAxisLists) {
  for (const MoveRow& row : kMoveRows) {
    std::vector<MoveForm> moves = moves_between(layout(row.mesh, row.from), layout(row.mesh, row.to));
    EXPECT_THAT(moves, ::testing::UnorderedElementsAreArray(row.expected))
        << row.mesh << ": " << row.from << " -> " << row.to;
  }
}

TEST(VerifyMoves, StraightToTheTargetReducesWhatIsLeftToReduce) {
  const auto straight = [](const char* from, const char* to, const char* to_mesh = "a=2,b=2") {
    return straight_move(layout("a=2,b=2", from), layout(to_mesh, to));
  };
  EXPECT_EQ(straight("S(0),S(0)", "R,S(1)"), (MoveForm{MoveKind::exchange, {}}));
  EXPECT_EQ(straight("P(sum),S(0)", "P(sum),S(1)"), (MoveForm{MoveKind::exchange, {}}));
  EXPECT_EQ(straight("P(sum),S(0)", "R,S(1)"), (MoveForm{MoveKind::reduce_exchange, {}}));
  EXPECT_EQ(straight("S(0),R", "P(sum),R"), std::nullopt);
  EXPECT_EQ(straight("S(0),R", "S(0)", "a=4"), (MoveForm{MoveKind::exchange, {}}));
  EXPECT_EQ(straight("R,P(sum)", "S(0)", "a=4@4/5/6/7"), (MoveForm{MoveKind::reduce_exchange, {}}));
}

TEST(VerifyMoves, ACrossingMayArriveWhereTheTargetIsSplitFurther) {
  const Layout target = layout("a=2,b=2,c=2", "S(0),R,R");
  EXPECT_TRUE(splits_further(layout("a=2,b=2,c=2", "S(0),S(0),S(1)"), target));
  EXPECT_TRUE(splits_further(layout("a=2,b=2,c=2", "S(0),R,S(2)"), target));
  EXPECT_FALSE(splits_further(target, target));
  EXPECT_FALSE(splits_further(layout("a=2,b=2,c=2", "S(0)[1],S(0)[0],R"), target));
  EXPECT_FALSE(splits_further(layout("a=2,b=2,c=2", "R,S(1),S(1)"), target));
}

// A byte takes a nanosecond to arrive, and one to be read and written; nothing else but latencies.
CostModel nanosecond_model() {
  CostModel cost;
  cost.node_gbps = cost.network_gbps = 1;
  cost.memory_gbps = 2;
  cost.all_gather_efficiency = cost.reduce_scatter_efficiency = cost.all_reduce_efficiency = 1;
  cost.all_to_all_efficiency = cost.exchange_efficiency = 1;
  return cost;
}

struct CostRow {
  const char* mesh;
  Shape shape;
  const char *from, *to;
  MoveKind kind;
  std::vector<int> axes;
  std::vector<std::int64_t> time_ns;
  std::array<std::int64_t, 4>
      temporary_bytes;  // between the caller's buffers, into a temporary, out of one, between two
  std::vector<std::int64_t> payload, wire;
};

std::vector<CostRow> cost_rows() {
  return {
      // Copies its part: 3 and 2 elements.
      {"a=2", {5}, "R", "S(0)", MoveKind::slice, {}, {3012, 3008}, {0, 12, 20, 32}, {0, 0}, {0, 0}},
      // Blocks of 3 elements: 12 bytes arrive; rank 1 packs its 2; both unpack 5.
      {"a=2",
       {5},
       "S(0)",
       "R",
       MoveKind::all_gather,
       {0},
       {11032, 11040},
       {36, 44, 36, 44},
       {8, 12},
       {12, 12}},
      // Even: neither packed nor unpacked.
      {"a=2", {4}, "S(0)", "R", MoveKind::all_gather, {0}, {11008, 11008}, {0, 16, 8, 24}, {8, 8}, {8, 8}},
      // Half of the columns of two rows is not contiguous: 8 elements are packed, 4 arrive where they belong.
      {"a=2",
       {4, 4},
       "S(0)",
       "S(1)",
       MoveKind::all_to_all,
       {0},
       {11048, 11048},
       {32, 64, 64, 64},
       {16, 16},
       {16, 16}},
      // The order of the group decides who packs: in the target's order (b, a) nobody does.
      {"a=2,b=2",
       {4},
       "P(sum),P(sum)",
       "S(0)[1],S(0)[0]",
       MoveKind::reduce_scatter,
       {1, 0},
       {13012, 13012, 13012, 13012},
       {0, 4, 16, 20},
       {12, 12, 12, 12},
       {12, 12, 12, 12}},
      {"a=2,b=2",
       {4},
       "P(sum),P(sum)",
       "S(0)[1],S(0)[0]",
       MoveKind::reduce_scatter,
       {0, 1},
       {13028, 13028, 13028, 13028},
       {16, 20, 32, 32},
       {12, 12, 12, 12},
       {12, 12, 12, 12}},
      // 2 x 3/4 of 16 bytes; in place between temporaries.
      {"a=4",
       {4},
       "P(sum)",
       "R",
       MoveKind::all_reduce,
       {0},
       {16024, 16024, 16024, 16024},
       {0, 16, 16, 16},
       {24, 24, 24, 24},
       {24, 24, 24, 24}},
      // Ranks 0 and 3 keep 8 bytes and send; 1 and 2 receive from the rank that agrees with them along b.
      {"a=2,b=2",
       {4},
       "S(0),R",
       "R,S(0)",
       MoveKind::exchange,
       {},
       {11008, 11008, 11008, 11008},
       {0, 8, 8, 16},
       {0, 8, 8, 0},
       {0, 8, 8, 0}},
      // 4 elements packed and sent, 4 kept, which between temporaries go through the staging, too.
      {"a=2",
       {4, 4},
       "S(0)",
       "S(1)",
       MoveKind::exchange,
       {},
       {11048, 11048},
       {16, 48, 48, 64},
       {16, 16},
       {16, 16}},
      // Two rounds; one element kept, two added: 4 + 1.5 x 8 bytes, and 8 arrive.
      {"a=3",
       {3},
       "P(sum)",
       "S(0)",
       MoveKind::reduce_exchange,
       {0},
       {22024, 22024, 22024},
       {4, 8, 16, 20},
       {8, 8, 8},
       {8, 8, 8}},
  };
}

TEST(VerifyMoves, CostsAreThoseWorkedOutByHand) {
  const CostModel cost = nanosecond_model();
  for (const CostRow& row : cost_rows()) {
    SCOPED_TRACE(str(name(row.kind), " ", row.mesh, ": ", row.from, " -> ", row.to));
    const Written from(layout(row.mesh, row.from, row.shape)), to(layout(row.mesh, row.to, row.shape));
    const MeshPair world(from.layout.mesh, to.layout.mesh);
    const MoveCost counted = cost_of({row.kind, row.axes}, from, to, world, cost);
    std::vector<std::int64_t> time_ns;
    for (const std::int64_t ps : counted.time_ps) time_ns.push_back(ps / 1000);
    EXPECT_EQ(time_ns, row.time_ns);
    EXPECT_EQ(counted.payload_bytes, row.payload);
    EXPECT_EQ(counted.wire_bytes, row.wire);
    const auto& bytes = counted.temporary_bytes;
    EXPECT_THAT(row.temporary_bytes, ElementsAre(bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1]));
  }
}

TEST(VerifyMoves, BetweenMeshesEveryRankOfBothPays) {
  // Ranks 0 and 1 hold halves; rank 2 wants all, rank 1 keeps its own half of it.
  const Written from(layout("a=2", "S(0)", {4})), to(layout("b=2@1/2", "R", {4}));
  const MeshPair world(from.layout.mesh, to.layout.mesh);
  EXPECT_THAT(world.ranks(), ElementsAre(0, 1, 2));
  EXPECT_THAT(world.places(to.layout.mesh), ElementsAre(1, 2));
  CostModel cost = nanosecond_model();
  cost.axis_gbps = {{"a", 4.0}, {"b", 2.0}};  // the network has 1
  const MoveCost counted = cost_of({MoveKind::exchange, {}}, from, to, world, cost);
  // Rank 0 sends to two. Rank 1 receives 8 bytes along a, and copies 8. Rank 2 receives 8 from rank 0 over
  // the network, and 8 from rank 1 along b.
  EXPECT_THAT(counted.time_ps, ElementsAre(12'000'000, 11'010'000, 12'012'000));
  EXPECT_THAT(counted.payload_bytes, ElementsAre(0, 8, 16));
}

}  // namespace
}  // namespace cp::sim
