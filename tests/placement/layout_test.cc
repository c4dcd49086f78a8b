#include "shared/placement/layout.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/placement/huge.h"
#include "tests/placement/layout_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kHuge;
using testing::message_of;

Layout layout_of(const char* mesh, const char* placements, Shape shape, DType dtype = DType::f32) {
  return parse_layout(placements, Mesh::parse(mesh), std::move(shape), dtype);
}

TEST(Layout, DerivesShapesAndOffsetsFromIndices) {
  const Layout layout = layout_of("dp=2,tp=2", "S(0),S(1)", {5, 3, 7});
  EXPECT_EQ(local_shape(layout, 3), (Shape{2, 1, 7}));
  EXPECT_EQ(global_offset(layout, 3), (Shape{3, 2, 0}));
  EXPECT_EQ(local_numel(layout, 3), 14);
  EXPECT_EQ(local_bytes(layout, 3), 56);
  EXPECT_EQ(max_local_bytes(layout), 3 * 2 * 7 * 4);
  EXPECT_EQ(box(layout, 1), (std::vector<IndexSet>{index_range(0, 3), index_range(2, 3), index_range(0, 7)}));
}

TEST(Layout, ScalarsAndEmptyTensors) {
  const Layout scalar = layout_of("dp=2", "P(sum)", {});
  EXPECT_EQ(local_numel(scalar, 1), 1);
  EXPECT_EQ(max_local_bytes(scalar), 4);
  EXPECT_TRUE(box(scalar, 0).empty());
  const Layout empty = layout_of("dp=2", "S(0)", {0, 4});
  EXPECT_EQ(local_shape(empty, 1), (Shape{0, 4}));
  EXPECT_EQ(global_offset(empty, 1), (Shape{0, 0}));
  EXPECT_EQ(max_local_bytes(empty), 0);
}

TEST(Layout, HoldsMoreElementsThan32BitsCount) {
  constexpr std::int64_t kRows = 1 << 16;
  const Layout layout = layout_of("cp=8,dp=3", "S(1,striped:512),S(0)", {kRows, kHuge}, DType::bf16);
  EXPECT_EQ(local_shape(layout, 23), (Shape{kRows - 2 * 21846, kHuge / 8}));
  EXPECT_EQ(local_bytes(layout, 0), 2 * std::int64_t{21846} * kHuge / 8);
  EXPECT_EQ(indices(layout, 1, 23), (IndexSet{{3584, 512, 4096, kHuge / 4096}}));
}

TEST(Layout, AxesOrderSaysWhoSplitsFirst) {
  const Layout outer_first = layout_of("dp=2,tp=2", "S(0)[0],S(0)[1]", {8});
  const Layout inner_first = layout_of("dp=2,tp=2", "S(0)[1],S(0)[0]", {8});
  EXPECT_EQ(indices(outer_first, 0, 1), index_range(2, 4));
  EXPECT_EQ(indices(inner_first, 0, 1), index_range(4, 6));
  EXPECT_EQ(indices_at(inner_first, 0, std::vector<int>{0, 1}), index_range(4, 6));
  EXPECT_FALSE(equivalent(outer_first, inner_first));
}

TEST(Layout, PartialAxes) {
  const Layout layout = layout_of("a=2,b=2,c=2", "P(sum),S(0),P(avg)", {8});
  EXPECT_TRUE(is_partial(layout));
  EXPECT_EQ(partial_axes(layout), (std::vector<int>{0, 2}));
  EXPECT_EQ(reduction(layout), ReduceOp::avg);
  EXPECT_EQ(reduction(layout_of("a=2,b=2", "P(avg),P(sum)", {8})), ReduceOp::avg);
  EXPECT_EQ(reduction(layout_of("a=2,b=2", "R,P(max)", {8})), ReduceOp::max);
  EXPECT_EQ(reduction(layout_of("a=2", "R", {8})), std::nullopt);
  EXPECT_FALSE(is_partial(layout_of("a=2", "R", {8})));
}

TEST(Layout, EquivalenceSeesThroughTheMesh) {
  // Nested against flattened, even and not (C27).
  EXPECT_TRUE(equivalent(layout_of("a=2,b=2", "S(0),S(0)", {8}), layout_of("ab=4", "S(0)", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2,b=2", "S(0),S(0)", {5}), layout_of("ab=4", "S(0)", {5})));
  // The other order of axes is the other order of ranks.
  EXPECT_TRUE(
      equivalent(layout_of("a=2,b=2", "S(0)[1],S(0)[0]", {8}), layout_of("ba=4@0/2/1/3", "S(0)", {8})));
  EXPECT_TRUE(equivalent(layout_of("a=2,b=1", "S(0),S(1)", {8, 3}), layout_of("a=2,b=1", "S(0),R", {8, 3})));
  // Another local order is another layout.
  EXPECT_FALSE(equivalent(layout_of("a=1", "S(0,head_tail)", {8}), layout_of("b=2", "R", {8})));
  EXPECT_TRUE(equivalent(layout_of("a=1", "S(0,head_tail)", {8}), layout_of("a=1", "R", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2", "R", {8}), layout_of("a=2@0/2", "R", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2", "R", {8}), layout_of("a=2", "R", {9})));
  EXPECT_FALSE(equivalent(layout_of("a=2", "R", {8}), layout_of("a=2", "R", {8}, DType::f16)));
}

TEST(Layout, EquivalenceComparesReductionsByGroups) {
  EXPECT_TRUE(
      equivalent(layout_of("a=2,b=2", "P(sum),P(sum)", {8}), layout_of("ab=4@3/1/2/0", "P(sum)", {8})));
  EXPECT_TRUE(equivalent(layout_of("a=2,b=1", "P(sum),P(sum)", {8}), layout_of("a=2,b=1", "P(sum),R", {8})));
  EXPECT_TRUE(equivalent(layout_of("a=2,b=1", "R,P(max)", {8}), layout_of("a=2,b=1", "R,R", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2,b=2", "P(sum),R", {8}), layout_of("a=2,b=2", "R,P(sum)", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2,b=2", "P(sum),R", {8}), layout_of("a=2,b=2", "P(max),R", {8})));
  EXPECT_FALSE(
      equivalent(layout_of("a=2,b=2", "P(sum),P(avg)", {8}), layout_of("a=2,b=2", "P(avg),P(sum)", {8})));
  EXPECT_FALSE(equivalent(layout_of("a=2", "P(sum)", {8}), layout_of("a=2", "R", {8})));
}

TEST(Layout, ErrorsNameValuesAndWhatWorks) {
  const auto message = [](const char* mesh, const char* placements, Shape shape, DType dtype = DType::f32) {
    return message_of([&] { layout_of(mesh, placements, shape, dtype); });
  };
  EXPECT_THAT(message("a=2,b=2", "R", {8}),
              AllOf(HasSubstr("1 placements for the 2 axes"), HasSubstr("a=2,b=2")));
  EXPECT_THAT(message("a=2", "S(2)", {8, 8}),
              HasSubstr("dimension 2 is out of range for a tensor of 2 dimensions"));
  EXPECT_THAT(message("a=2", "S(-3)", {8, 8}), HasSubstr("use -2 .. 1"));
  EXPECT_THAT(message("a=2", "S(0)", {}), HasSubstr("scalar"));
  EXPECT_THAT(message("a=2", "R", {8, -1}), HasSubstr("8x-1 has a negative size"));
  EXPECT_THAT(message("a=2", "R", {std::int64_t{1} << 31, std::int64_t{1} << 31}), HasSubstr("2^63 bytes"));
  EXPECT_THAT(message("a=2", "R", {std::int64_t{1} << 62, 0}), HasSubstr("2^63 bytes"));
  EXPECT_THAT(message("a=2", "P(avg)", {8}, DType::i32),
              AllOf(HasSubstr("P(avg) of i32"), HasSubstr("P(sum)")));
  EXPECT_THAT(message("tp=4", "S(0,sizes:3/2/1)", {8}),
              AllOf(HasSubstr("axis tp cannot shard dimension 0 of size 8"), HasSubstr("sizes:2/2/2/2")));
  EXPECT_THAT(message("tp=4", "S(0,per_sequence:0/10)", {8}), HasSubstr("end with 10"));
}

TEST(Layout, SizesMustFitWhatEveryEarlierRankLeaves) {
  // 5 = 3 + 2: no sizes fit both.
  EXPECT_THAT(
      message_of([] { layout_of("a=2,b=2", "S(0),S(0,sizes:2/1)", {5}); }),
      AllOf(HasSubstr("axis b"), HasSubstr("earlier axes leave"), HasSubstr("sum to more than the 2")));
  EXPECT_EQ(local_shape(layout_of("a=2,b=2", "S(0),S(0,sizes:2/1)", {6}), 1), (Shape{1}));
  EXPECT_EQ(local_shape(layout_of("a=2,b=2", "S(0)[1],S(0,sizes:4/1)[0]", {5}), 0), (Shape{2}));
}

TEST(Layout, OrderMustListTheShardingAxes) {
  const auto message = [](std::vector<std::vector<int>> order) {
    return message_of([&] {
      make_layout(Mesh::parse("a=2,b=2,c=2"), {Shard{0, {}}, Shard{0, {}}, Shard{1, {}}}, {8, 8}, DType::f32,
                  order);
    });
  };
  EXPECT_EQ(message({{1, 0}, {2}}), "no error");
  EXPECT_THAT(message({{1, 0}}), HasSubstr("for 1 dimensions, but the tensor has 2"));
  EXPECT_THAT(message({{1}, {2}}), HasSubstr("dimension 0 is {1}, but the axes that shard it are {0,1}"));
  EXPECT_THAT(message({{1, 1}, {2}}), HasSubstr("{1,1}"));
  EXPECT_THAT(message({{1, 0, 2}, {}}), HasSubstr("{1,0,2}"));
}

// B13: mixed reductions are refused, but for sum with avg.
TEST(Layout, MixedReductionsAreRefused) {
  const std::vector<std::string> ops = {"sum", "avg", "min", "max", "product"};
  for (const std::string& a : ops) {
    for (const std::string& b : ops) {
      const std::string placements = str("P(", a, "),P(", b, ")");
      const bool is_legal = a == b || (a + b).find_first_not_of("sumavg") == std::string::npos;
      const std::string message = message_of([&] { layout_of("x=2,y=2", placements.c_str(), {4}); });
      if (is_legal) {
        EXPECT_EQ(message, "no error") << placements;
      } else {
        EXPECT_THAT(message, AllOf(HasSubstr(str("P(", a, ") and P(", b, ")")), HasSubstr("sum and avg")));
      }
    }
  }
}

// B16: negative dims are resolved.
TEST(Layout, NegativeDimsCountFromTheEnd) {
  const Layout layout = layout_of("a=4", "S(-1)", {12, 3});
  EXPECT_EQ(layout, layout_of("a=4", "S(1)", {12, 3}));
  EXPECT_EQ(layout, make_layout(Mesh::parse("a=4"), {Shard{-1, Chunked{}}}, {12, 3}, DType::f32));
  EXPECT_EQ(layout_of("a=4", "S(-2,head_tail)", {12, 3}), layout_of("a=4", "S(0,head_tail)", {12, 3}));
}

TEST(Layout, HashTellsLayoutsApart) {
  const auto digest = [](const Layout& layout) {
    Hasher hasher;
    return hash(hasher, layout).digest();
  };
  const std::vector<Layout> layouts = {
      layout_of("a=2,b=2", "S(0),S(0)", {8, 8}),          layout_of("a=2,b=2", "S(0)[1],S(0)[0]", {8, 8}),
      layout_of("a=2,b=2", "S(0),S(1)", {8, 8}),          layout_of("a=2,b=2", "S(0),R", {8, 8}),
      layout_of("a=2,b=2", "S(0),P(sum)", {8, 8}),        layout_of("a=2,b=2", "S(0),P(max)", {8, 8}),
      layout_of("a=2,b=2", "S(0,balanced),R", {8, 8}),    layout_of("a=2,b=2", "S(0,striped:2),R", {8, 8}),
      layout_of("a=2,b=2", "S(0,striped:4),R", {8, 8}),   layout_of("a=2,c=2", "S(0),R", {8, 8}),
      layout_of("a=2,b=2@0/2/1/3", "S(0),R", {8, 8}),     layout_of("a=2,b=2", "S(0),R", {8, 9}),
      layout_of("a=2,b=2", "S(0),R", {8, 8}, DType::bf16)};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    for (std::size_t j = 0; j < layouts.size(); ++j) {
      EXPECT_EQ(digest(layouts[i]) == digest(layouts[j]), i == j)
          << to_string(layouts[i]) << to_string(layouts[j]);
    }
  }
}

RC_GTEST_PROP(Layout, IndicesAgreeWithDealingElements, ()) {
  const Layout layout = random_layout();
  std::int64_t most = 0;
  for (const Rank rank : layout.mesh.ranks()) {
    std::int64_t bytes = 4;
    for (int dim = 0; dim < static_cast<int>(layout.shape.size()); ++dim) {
      const auto d = static_cast<std::size_t>(dim);
      const Indices expected = indices_by_elements(layout, dim, rank);
      const IndexSet held = indices(layout, dim, rank);
      RC_ASSERT(expand(held) == expected);
      RC_ASSERT(canonical(held) == held);
      RC_ASSERT(indices_at(layout, dim, layout.mesh.coordinates(rank)) == held);
      RC_ASSERT(local_shape(layout, rank)[d] == static_cast<std::int64_t>(expected.size()));
      RC_ASSERT(global_offset(layout, rank)[d] == (expected.empty() ? layout.shape[d] : expected.front()));
      bytes *= static_cast<std::int64_t>(expected.size());
    }
    RC_ASSERT(local_bytes(layout, rank) == bytes);
    most = std::max(most, bytes);
  }
  RC_ASSERT(max_local_bytes(layout) == most);
}

RC_GTEST_PROP(Layout, IndexSetsPartitionTheDimension, ()) {
  const Layout layout = random_layout();
  for (int dim = 0; dim < static_cast<int>(layout.shape.size()); ++dim) {
    const auto d = static_cast<std::size_t>(dim);
    // Ranks that differ only along the axes that shard the dimension hold it once.
    for (const std::vector<Rank>& group : layout.mesh.groups(layout.shard_axes[d])) {
      Indices held;
      for (const Rank rank : group) {
        const Indices part = expand(indices(layout, dim, rank));
        held.insert(held.end(), part.begin(), part.end());
      }
      std::sort(held.begin(), held.end());
      RC_ASSERT(held == expand(index_range(0, layout.shape[d])));
    }
  }
}

RC_GTEST_PROP(Layout, EquivalentAgreesWithExpansion, ()) {
  const Layout a = random_layout();
  const Layout b = pick("b", rc::gen::inRange(0, 2)) == 0 ? random_layout() : a;
  RC_PRE(!is_partial(a) && !is_partial(b));
  bool expected = a.shape == b.shape && a.mesh.size() == b.mesh.size();
  for (const Rank rank : a.mesh.ranks()) {
    expected = expected && b.mesh.contains(rank);
    for (int dim = 0; expected && dim < static_cast<int>(a.shape.size()); ++dim) {
      expected = indices_by_elements(a, dim, rank) == indices_by_elements(b, dim, rank);
    }
  }
  RC_ASSERT(equivalent(a, b) == expected);
  RC_ASSERT(equivalent(b, a) == expected);
}

RC_GTEST_PROP(Layout, TextRoundTrips, ()) {
  const Layout layout = random_layout();
  const std::string text = placements_to_string(layout);
  RC_ASSERT(parse_layout(text, layout.mesh, layout.shape, layout.dtype) == layout);
}

TEST(LayoutText, PrintsPositionsOnlyWhereTheOrderIsNotMeshOrder) {
  const auto round_trip = [](const char* text) {
    return placements_to_string(layout_of("a=2,b=2,c=2", text, {8, 8, 8}));
  };
  EXPECT_EQ(round_trip("S(0)[0],S(0)[1],R"), "S(0),S(0),R");
  EXPECT_EQ(round_trip("S(0)[1], S(1), S(0)[0]"), "S(0)[1],S(1),S(0)[0]");
  EXPECT_EQ(round_trip("S(1)[2],S(1)[0],S(1)[1]"), "S(1)[2],S(1)[0],S(1)[1]");
  EXPECT_EQ(round_trip("S( -1 , head_tail ),P( max ),S(1)[0]"), "S(2,head_tail),P(max),S(1)");
  EXPECT_EQ(round_trip("S(0,per_sequence:0/2/8:striped:2)[1],R,S(0,sizes:3/5)[0]"),
            "S(0,per_sequence:0/2/8:striped:2)[1],R,S(0,sizes:3/5)[0]");
}

TEST(LayoutText, ReadsWhatDTensorWrites) {
  const auto canonical = [](const char* text) {
    return placements_to_string(layout_of("a=2,b=2", text, {8, 8}));
  };
  EXPECT_EQ(canonical("Shard(0),Replicate()"), "S(0),R");
  EXPECT_EQ(canonical("[Shard(0), Replicate()]"), "S(0),R");
  EXPECT_EQ(canonical("(Shard(dim=1), Partial())"), "S(1),P(sum)");
  EXPECT_EQ(canonical("(Shard(dim = -1), Partial('avg'),)"), "S(1),P(avg)");
  EXPECT_EQ(canonical("[Partial(reduce_op=\"max\"), Replicate]"), "P(max),R");
  EXPECT_EQ(canonical("[Shard(0)[1], Shard(0)[0]]"), "S(0)[1],S(0)[0]");
  EXPECT_EQ(canonical("[R,S(0,zigzag)]"), "R,S(0,head_tail)");
  EXPECT_EQ(canonical("Replicate(), Partial(product)"), "R,P(product)");
}

TEST(LayoutText, ShowsMeshShapeAndDType) {
  EXPECT_EQ(to_string(layout_of("dp=2,tp=4", "S(0),P(sum)", {16, 8})),
            "S(0),P(sum) on dp=2,tp=4 of 16x8 f32");
  EXPECT_EQ(to_string(layout_of("dp=2", "R", {}, DType::i64)), "R on dp=2 of scalar i64");
}

TEST(LayoutText, ErrorsQuoteTheTextAndListWhatIsKnown) {
  const auto message = [](std::string_view text) { return message_of([&] { parse_placements(text, 3); }); };
  EXPECT_THAT(message("X"), AllOf(HasSubstr("'X'"), HasSubstr("S(DIM,SPLIT), R or P(OP)")));
  EXPECT_THAT(message("R,,R"), HasSubstr("the placement ''"));
  EXPECT_THAT(message("S(0"), HasSubstr("'S(0'"));
  EXPECT_THAT(message("S()"), HasSubstr("dimension is missing"));
  EXPECT_THAT(message("S(x)"), AllOf(HasSubstr("'S(x)'"), HasSubstr("'x'")));
  EXPECT_THAT(message("S(3)"), HasSubstr("use -3 .. 2"));
  EXPECT_THAT(message("S(99999999999)"), HasSubstr("dimension 99999999999 is out of range"));
  EXPECT_THAT(message("S(0,snake)"), AllOf(HasSubstr("'snake'"), HasSubstr("head_tail")));
  EXPECT_THAT(message("P"), HasSubstr("reduction is missing"));
  EXPECT_THAT(message("P(mean)"), AllOf(HasSubstr("'mean'"), HasSubstr("avg")));
  EXPECT_THAT(message("P()"), HasSubstr("unknown reduction ''"));
  EXPECT_THAT(message("R(0)"), HasSubstr("no such placement"));
  EXPECT_THAT(message("Shard()"), HasSubstr("dimension is missing"));
  EXPECT_THAT(message("Shard(size=0)"), HasSubstr("'size=0' is not a whole number"));
  EXPECT_THAT(message("_StridedShard(0, split_factor=2),Shard(0)"), HasSubstr("S(0)[1],S(0)[0]"));
  EXPECT_THAT(message("S(1.5)"), HasSubstr("in 'S(1.5)' the dimension '1.5' is not a whole number"));
  EXPECT_THAT(message("R[0]"), HasSubstr("only a shard has a position"));
  EXPECT_THAT(message("S(0)[x]"), HasSubstr("in 'S(0)[x]' the position 'x'"));
  EXPECT_THAT(message("S(0)0]"), HasSubstr("']' without '['"));
  EXPECT_THAT(message("S(0)[0],S(0)"), HasSubstr("give them the positions 0 .. 1"));
  EXPECT_THAT(message("S(0)[1],S(0)[1]"), HasSubstr("do not order the 2 axes"));
  EXPECT_THAT(message("S(0)[1]"), HasSubstr("positions 0 .. 0"));
}

}  // namespace
}  // namespace cp
