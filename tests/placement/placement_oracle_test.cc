// Index maps of PyTorch, veScale, MindSpeed, HyperParallel and others as tables; each row is named as in the
// lists of expected results that the project was built against. SS(d, f), PyTorch's strided shard, cuts a
// dimension into f chunks and shards each: here an order of mesh axes, or per_sequence over the chunks.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/placement/layout.h"
#include "tests/placement/index_set_generator.h"

namespace cp {
namespace {

using Indices = std::vector<std::int64_t>;

Layout layout_of(const std::string& mesh, const std::string& placements, Shape shape) {
  return parse_layout(placements, Mesh::parse(mesh), std::move(shape), DType::f32);
}

// Of dimension `dim`, for all ranks in rank order.
Indices sizes_of(const Layout& layout, std::size_t dim) {
  Indices sizes;
  for (Rank rank = 0; rank < layout.mesh.size(); ++rank) sizes.push_back(local_shape(layout, rank)[dim]);
  return sizes;
}
Indices offsets_of(const Layout& layout, std::size_t dim) {
  Indices offsets;
  for (Rank rank = 0; rank < layout.mesh.size(); ++rank) offsets.push_back(global_offset(layout, rank)[dim]);
  return offsets;
}
std::vector<Indices> members_of(const Layout& layout, int dim) {
  std::vector<Indices> members;
  for (Rank rank = 0; rank < layout.mesh.size(); ++rank)
    members.push_back(expand(indices(layout, dim, rank)));
  return members;
}

// SS(0, f) on the first axis that shards a dimension of `size` elements.
std::string strided_shard(std::int64_t size, std::int64_t factor, int dim = 0) {
  Indices cuts = {0};
  while (cuts.back() < size) cuts.push_back(std::min(size, cuts.back() + ceil_div(size, factor)));
  return str("S(", dim, ",per_sequence:", join(cuts, "/"), ")");
}

struct SizesRow {
  std::string row, mesh, placements;
  Shape shape;
  std::size_t dim;
  Indices sizes, offsets;  // no offsets: not stated
};

TEST(PlacementOracle, SizesAndOffsets) {
  const std::vector<SizesRow> rows = {
      {"A1", "a=2", "S(0)", {0}, 0, {0, 0}, {0, 0}},
      {"A1", "a=2", "S(0)", {1}, 0, {1, 0}, {0, 1}},
      {"A1", "a=2", "S(0)", {2}, 0, {1, 1}, {0, 1}},
      {"A1", "a=2", "S(0)", {3}, 0, {2, 1}, {0, 2}},
      {"A1", "a=2", "S(0)", {4}, 0, {2, 2}, {0, 2}},
      {"A2", "a=4", "S(0)", {5}, 0, {2, 2, 1, 0}, {0, 2, 4, 5}},
      {"A2 balanced", "a=4", "S(0,balanced)", {5}, 0, {2, 1, 1, 1}, {0, 2, 3, 4}},
      {"A3", "a=4", "S(0)", {6}, 0, {2, 2, 2, 0}, {}},
      {"A3 balanced", "a=4", "S(0,balanced)", {6}, 0, {2, 2, 1, 1}, {}},
      {"A4", "a=4", "S(0)", {13, 3}, 0, {4, 4, 4, 1}, {}},
      {"A5", "a=4", "S(0)", {14, 3}, 0, {4, 4, 4, 2}, {}},
      {"A6", "a=4", "S(1)", {3, 13}, 1, {4, 4, 4, 1}, {}},
      {"A7", "a=8", "S(0)", {11, 9}, 0, {2, 2, 2, 2, 2, 1, 0, 0}, {}},
      {"A7", "a=8", "S(1)", {11, 9}, 1, {2, 2, 2, 2, 1, 0, 0, 0}, {}},
      {"A8", "a=8", "S(0)", {2}, 0, {1, 1, 0, 0, 0, 0, 0, 0}, {}},
      {"A9", "a=2,b=4", "S(0),S(0)", {2}, 0, {1, 0, 0, 0, 1, 0, 0, 0}, {0, 2, 2, 2, 1, 2, 2, 2}},
      {"A10", "a=4,b=2", "S(0),S(0)", {18, 2}, 0, {3, 2, 3, 2, 3, 2, 2, 1}, {0, 3, 5, 8, 10, 13, 15, 17}},
      {"A11", "a=4,b=2", "S(0),S(0)", {13, 2}, 0, {2, 2, 2, 2, 2, 2, 1, 0}, {0, 2, 4, 6, 8, 10, 12, 13}},
      {"A12",
       "a=4,b=2",
       "S(0)[1],S(0)[0]",
       {18, 2},
       0,
       {3, 3, 3, 3, 3, 3, 0, 0},
       {0, 9, 3, 12, 6, 15, 18, 18}},
      {"A13",
       "a=4,b=2",
       "S(0)[1],S(0)[0]",
       {15, 5},
       0,
       {2, 2, 2, 2, 2, 2, 2, 1},
       {0, 8, 2, 10, 4, 12, 6, 14}},
      {"A15",
       "a=4,b=2",
       "S(0),S(0,per_sequence:0/3/5/8/10/13/15/17/18)",  // each chunk of a in two
       {18, 2},
       0,
       {3, 2, 3, 2, 3, 2, 2, 1},
       {0, 2, 5, 7, 10, 12, 15, 16}},
      {"A17",
       "a=4,b=2",
       "S(0)[1],S(0)[0]",
       {16, 2},
       0,
       {2, 2, 2, 2, 2, 2, 2, 2},
       {0, 8, 2, 10, 4, 12, 6, 14}},
      {"A18",
       "r=2,a=2,b=2",
       "R,S(0)[1],S(0)[0]",
       {8, 2},
       0,
       {2, 2, 2, 2, 2, 2, 2, 2},
       {0, 4, 2, 6, 0, 4, 2, 6}},
      {"A26", "a=2,b=2", "S(1)[1],S(1)[0]", {4, 2}, 1, {1, 1, 0, 0}, {}},
      {"A26", "a=2,b=2", "S(1)[1],S(1)[0]", {4, 3}, 1, {1, 1, 1, 0}, {}},
      {"A26", "a=2,b=2", "S(1)[1],S(1)[0]", {4, 5}, 1, {2, 1, 1, 1}, {}},
      {"A26", "a=2,b=2", "S(1)[1],S(1)[0]", {4, 11}, 1, {3, 3, 3, 2}, {}},
      {"A27", "a=2,b=2", "S(0),S(0)", {10}, 0, {3, 2, 3, 2}, {}},
      {"A27", "a=2,b=2", "S(0),S(0)", {9}, 0, {3, 2, 2, 2}, {}},
      {"A27", "a=2,b=2", "S(0),S(0)", {3}, 0, {1, 1, 1, 0}, {}},
      {"A27", "a=2,b=2", "S(0),S(0)", {1}, 0, {1, 0, 0, 0}, {}},
      {"A38 dp,cp", "dp=2,cp=2", "S(0),S(0)", {8}, 0, {2, 2, 2, 2}, {0, 2, 4, 6}},
      {"A38 cp,dp", "dp=2,cp=2", "S(0)[1],S(0)[0]", {8}, 0, {2, 2, 2, 2}, {0, 4, 2, 6}},
      {"H25", "a=4", "S(0)", {5, 2}, 0, {2, 2, 1, 0}, {}},
      {"H25 dim 1", "a=4", "S(1)", {5, 7}, 1, {2, 2, 2, 1}, {}},
      {"J13", "a=4", "S(0,balanced)", {5}, 0, {2, 1, 1, 1}, {}},
      {"J13", "a=4", "S(0,balanced)", {6}, 0, {2, 2, 1, 1}, {}},
  };
  for (const SizesRow& row : rows) {
    const Layout layout = layout_of(row.mesh, row.placements, row.shape);
    EXPECT_EQ(sizes_of(layout, row.dim), row.sizes) << row.row;
    if (!row.offsets.empty()) {
      EXPECT_EQ(offsets_of(layout, row.dim), row.offsets) << row.row;
    }
  }
}

struct MembersRow {
  std::string row, mesh, placements;
  Shape shape;
  int dim;
  std::vector<Indices> members;
};

TEST(PlacementOracle, Members) {
  const std::vector<MembersRow> rows = {
      {"A19", "a=2,b=2", "S(0),S(0)", {8}, 0, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {"A20", "a=2,b=2", "S(0)[1],S(0)[0]", {8}, 0, {{0, 1}, {4, 5}, {2, 3}, {6, 7}}},
      {"A21", "a=2,b=2", "S(0),S(0,per_sequence:0/2/4/6/8)", {8}, 0, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {"A22", "a=4", strided_shard(8, 2), {8}, 0, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
      {"A23", "a=4", strided_shard(9, 2), {9}, 0, {{0, 1, 5}, {2, 3, 6}, {4, 7}, {8}}},
      {"A24", "a=2", strided_shard(5, 2), {5}, 0, {{0, 1, 3}, {2, 4}}},
      {"A25", "a=2,b=2", "S(1)[1],S(1)[0]", {2, 4}, 1, {{0}, {2}, {1}, {3}}},
      {"I1 sections of 16",
       "a=8",
       "S(0,per_sequence:0/16/32/48/64)",
       {64, 3},
       0,
       {{0, 1, 16, 17, 32, 33, 48, 49},
        {2, 3, 18, 19, 34, 35, 50, 51},
        {4, 5, 20, 21, 36, 37, 52, 53},
        {6, 7, 22, 23, 38, 39, 54, 55},
        {8, 9, 24, 25, 40, 41, 56, 57},
        {10, 11, 26, 27, 42, 43, 58, 59},
        {12, 13, 28, 29, 44, 45, 60, 61},
        {14, 15, 30, 31, 46, 47, 62, 63}}},
      {"J1",
       "cp=2",
       "S(0,head_tail)",
       {32},
       0,
       {{0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31},
        {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}}},
  };
  for (const MembersRow& row : rows) {
    EXPECT_EQ(members_of(layout_of(row.mesh, row.placements, row.shape), row.dim), row.members) << row.row;
  }
}

// A12, A13, A17, A18, A20, A25, A26, A34: SS(0, f) and then S(0) on an axis of size f is the order that
// splits by that axis first.
TEST(PlacementOracle, StridedShardThenShardIsAnAxisOrder) {
  for (const auto& [row, size] : std::vector<std::pair<std::string, std::int64_t>>{{"A12", 18},
                                                                                   {"A13", 15},
                                                                                   {"A17", 16},
                                                                                   {"A34", 8},
                                                                                   {"A26", 2},
                                                                                   {"A26", 3},
                                                                                   {"A26", 5},
                                                                                   {"A26", 11}}) {
    for (const std::string mesh : {"a=4,b=2", "a=2,b=2"}) {
      const Layout ordered = layout_of(mesh, "S(0)[1],S(0)[0]", {size});
      const Layout strided = layout_of(mesh, strided_shard(size, 2) + ",S(0)", {size});
      EXPECT_EQ(members_of(ordered, 0), members_of(strided, 0)) << row << " " << mesh << " " << size;
    }
  }
}

// But not for every uneven size: of 9 = 5 + 4 rank 3 of a gets {} of the first chunk and {8} of the second,
// which the further split hands to its first rank, and the order to its second.
TEST(PlacementOracle, StridedShardIsNoAxisOrderForEveryUnevenSize) {
  const Layout ordered = layout_of("a=4,b=2", "S(0)[1],S(0)[0]", {9});
  const Layout strided = layout_of("a=4,b=2", strided_shard(9, 2) + ",S(0)", {9});
  EXPECT_EQ(members_of(ordered, 0), (std::vector<Indices>{{0, 1}, {5}, {2, 3}, {6}, {4}, {7}, {}, {8}}));
  EXPECT_EQ(members_of(strided, 0), (std::vector<Indices>{{0, 1}, {5}, {2, 3}, {6}, {4}, {7}, {8}, {}}));
}

// A16: 30 x 8 ranks, as large as a checkpoint sees it.
TEST(PlacementOracle, A16UnevenFsdpWithTensorParallelism) {
  const Layout layout = layout_of("dp=30,tp=8", "S(0)[1],S(0)[0]", {4096, 4096});
  for (int dp = 0; dp < 30; ++dp) {
    for (int tp = 0; tp < 8; ++tp) {
      const Rank rank = dp * 8 + tp;
      EXPECT_EQ(local_shape(layout, rank)[0], dp <= 27 ? 18 : dp == 28 ? 8 : 0);
      EXPECT_EQ(global_offset(layout, rank)[0], dp == 29 ? 4096 : tp * 512 + 18 * dp);
    }
  }
}

// A28: uneven shards of both dimensions cover the tensor once.
TEST(PlacementOracle, A28ShardsOfTwoDimensionsCoverTheTensor) {
  for (const std::int64_t rows : {10, 9, 3, 1}) {
    const Layout layout = layout_of("a=2,b=2", "S(0),S(1)", {rows, 5});
    std::multiset<std::pair<std::int64_t, std::int64_t>> cells;
    for (Rank rank = 0; rank < 4; ++rank) {
      for (const std::int64_t i : expand(indices(layout, 0, rank))) {
        for (const std::int64_t j : expand(indices(layout, 1, rank))) cells.emplace(i, j);
      }
    }
    EXPECT_EQ(cells.size(), static_cast<std::size_t>(rows * 5));
    EXPECT_EQ(std::set(cells.begin(), cells.end()).size(), cells.size());
  }
}

// A29: on an 8x8x4 mesh, every tensor whose dimensions are 4 times the axes that shard them has shards of
// 4x4x4.
TEST(PlacementOracle, A29LocalShapesOfEvenTensors) {
  const Mesh mesh = Mesh::parse("a=8,b=8,c=4");
  for (int code = 0; code < 64; ++code) {
    std::vector<Placement> placements;
    Shape shape = {4, 4, 4};
    for (int axis = 0, rest = code; axis < 3; ++axis, rest /= 4) {
      if (rest % 4 == 3) {
        placements.emplace_back(Replicate{});
      } else {
        placements.emplace_back(Shard{rest % 4, Chunked{}});
        shape[static_cast<std::size_t>(rest % 4)] *= mesh.axis_size(axis);
      }
    }
    const Layout layout = make_layout(mesh, placements, shape, DType::f32);
    for (const Rank rank : {0, 1, 100, 255})
      EXPECT_EQ(local_shape(layout, rank), (Shape{4, 4, 4})) << to_string(layout);
  }
}

// A30: one dimension on each of three 1-D meshes.
TEST(PlacementOracle, A30GlobalShapesOnMeshesOfOneAxis) {
  EXPECT_EQ(local_shape(layout_of("a=2", "S(0)", {4, 3, 1}), 1), (Shape{2, 3, 1}));
  EXPECT_EQ(local_shape(layout_of("a=3", "S(1)", {2, 9, 1}), 2), (Shape{2, 3, 1}));
  EXPECT_EQ(local_shape(layout_of("a=4", "S(2)", {2, 3, 4}), 3), (Shape{2, 3, 1}));
  EXPECT_EQ(local_shape(layout_of("a=2,b=3,c=4", "S(0),S(1),S(2)", {4, 9, 4}), 23), (Shape{2, 3, 1}));
}

// A33: SS(0,2), SS(0,2), S(0) is the order c, a, b.
TEST(PlacementOracle, A33OrderOfThreeAxes) {
  for (const std::int64_t size : {24, 47, 48, 50}) {
    const std::string strided = strided_shard(size, 2);
    const Layout ordered = layout_of("a=4,b=3,c=2", "S(0)[1],S(0)[2],S(0)[0]", {size});
    const Layout nested = layout_of("a=4,b=3,c=2", strided + "," + strided + ",S(0)", {size});
    EXPECT_EQ(members_of(ordered, 0), members_of(nested, 0)) << size;
  }
}

// All layouts of a 2-D tensor on a mesh of two axes by torch.chunk's rule, in all orders of axes.
std::vector<Layout> chunked_layouts_of_two_axes(const std::string& mesh, const Shape& shape) {
  std::vector<Layout> layouts;
  for (const std::string a : {"R", "S(0)", "S(1)"}) {
    for (const std::string b : {"R", "S(0)", "S(1)"}) layouts.push_back(layout_of(mesh, a + "," + b, shape));
    if (a != "R") layouts.push_back(layout_of(mesh, a + "[1]," + a + "[0]", shape));
  }
  return layouts;
}

// A36: these have index maps that no order of axes has.
TEST(PlacementOracle, A36StridedShardsThatNoAxisOrderExpresses) {
  const Shape shape = {64, 1024};
  const std::string ss02 = strided_shard(64, 2), ss12 = strided_shard(1024, 2, 1),
                    ss116 = strided_shard(1024, 16, 1);
  for (const std::string& placements : {ss02 + "," + ss12, ss02 + ",S(1)", ss116 + ",S(1)"}) {
    const Layout strided = layout_of("a=4,b=8", placements, shape);
    for (const Layout& ordered : chunked_layouts_of_two_axes("a=4,b=8", shape)) {
      EXPECT_FALSE(equivalent(strided, ordered)) << placements << " is " << placements_to_string(ordered);
    }
  }
  // The comparison can succeed: with the axis' own size as factor, it is an order.
  const Layout strided = layout_of("a=4,b=8", strided_shard(1024, 8, 1) + ",S(1)", shape);
  EXPECT_TRUE(equivalent(strided, layout_of("a=4,b=8", "S(1)[1],S(1)[0]", shape)));
}

// Calls f(order) for each way to arrange all axes, taken from `axis` on, in ordered lists for the dimensions.
template <class F>
void for_each_order(std::vector<std::vector<int>>& order, int axis, int num_axes, const F& f) {
  if (axis == num_axes) return f();
  for (std::vector<int>& axes : order) {
    for (std::size_t at = 0; at <= axes.size(); ++at) {
      axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(at), axis);
      for_each_order(order, axis + 1, num_axes, f);
      axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

// A37: every order of axes is an index map of its own, and a text of its own.
TEST(PlacementOracle, A37NumberOfDistinctShardOrders) {
  struct Row {
    int num_axes;
    std::size_t num_dims, expected;
  };
  for (const Row& row : std::vector<Row>{{3, 2, 24}, {3, 3, 60}, {3, 4, 120}, {5, 3, 2520}}) {
    std::vector<MeshAxis> axes;
    for (int i = 0; i < row.num_axes; ++i) axes.push_back({str("x", i), 2});
    const Mesh mesh(axes);
    const Shape shape(row.num_dims, 32);
    std::vector<std::vector<int>> order(row.num_dims);
    std::set<std::string> texts, maps;
    for_each_order(order, 0, row.num_axes, [&] {
      std::vector<Placement> placements(static_cast<std::size_t>(row.num_axes));
      for (std::size_t dim = 0; dim < row.num_dims; ++dim) {
        for (const int axis : order[dim]) {
          placements[static_cast<std::size_t>(axis)] = Shard{static_cast<int>(dim), {}};
        }
      }
      const Layout layout = make_layout(mesh, placements, shape, DType::f32, order);
      texts.insert(placements_to_string(layout));
      std::string map;
      for (const Rank rank : mesh.ranks()) {
        for (const IndexSet& set : box(layout, rank)) map += to_string(set) + ";";
      }
      maps.insert(map);
    });
    EXPECT_EQ(maps.size(), row.expected);
    EXPECT_EQ(texts.size(), row.expected);
  }
}

// C28: when nested shards along a and b are one shard along the flattened axis.
TEST(PlacementOracle, C28NestedShardsAreFlatOnlyByTheseRules) {
  int flat = 0, not_flat = 0;
  for (std::int64_t a = 2; a <= 6; ++a) {
    for (std::int64_t b = 2; b <= 6; ++b) {
      const std::string nested_mesh = str("a=", a, ",b=", b), flat_mesh = str("ab=", a * b);
      for (std::int64_t size = 0; size <= 6 * a * b; ++size) {
        const std::int64_t outer = ceil_div(size, a), inner = ceil_div(size, a * b);
        const std::int64_t last = size == 0 ? 0 : size % outer;
        const bool chunked = size <= 1 || (outer == b * inner && (last <= 1 || ceil_div(last, b) == inner));
        const std::int64_t rest = size % (a * b);
        const bool balanced = rest <= 1 || rest == a * b - 1;
        EXPECT_EQ(
            equivalent(layout_of(nested_mesh, "S(0),S(0)", {size}), layout_of(flat_mesh, "S(0)", {size})),
            chunked)
            << nested_mesh << " " << size;
        EXPECT_EQ(equivalent(layout_of(nested_mesh, "S(0,balanced),S(0,balanced)", {size}),
                             layout_of(flat_mesh, "S(0,balanced)", {size})),
                  balanced)
            << nested_mesh << " " << size;
        ++(chunked ? flat : not_flat);
      }
    }
  }
  EXPECT_GT(flat, 100);
  EXPECT_GT(not_flat, 100);
}

// C27: nested sizes 2, 1, 1, 1 against flat 2, 2, 1, 0.
TEST(PlacementOracle, C27UnevenNestedShardsAreNotFlat) {
  EXPECT_EQ(sizes_of(layout_of("a=2,b=2", "S(0),S(0)", {5, 3}), 0), (Indices{2, 1, 1, 1}));
  EXPECT_EQ(sizes_of(layout_of("ab=4", "S(0)", {5, 3}), 0), (Indices{2, 2, 1, 0}));
}

// H26: FSDP, HSDP and DDP, alone and with tensor parallelism on the same dimension.
TEST(PlacementOracle, H26DataParallelParameters) {
  EXPECT_EQ(sizes_of(layout_of("dp=4", "S(0)", {8, 3}), 0), (Indices{2, 2, 2, 2}));
  EXPECT_EQ(sizes_of(layout_of("dp=4", "R", {8, 3}), 0), (Indices{8, 8, 8, 8}));
  EXPECT_EQ(members_of(layout_of("rep=2,dp=2", "R,S(0)", {4, 3}), 0),
            (std::vector<Indices>{{0, 1}, {2, 3}, {0, 1}, {2, 3}}));
  const Layout fsdp_tp = layout_of("dp=2,tp=2", "S(0)[1],S(0)[0]", {8, 3});
  EXPECT_TRUE(equivalent(fsdp_tp, layout_of("dp=2,tp=2", strided_shard(8, 2) + ",S(0)", {8, 3})));
  // The parameter that FSDP gathers is the tensor-parallel shard.
  for (Rank rank = 0; rank < 4; ++rank) {
    const IndexSet gathered = indices(layout_of("dp=2,tp=2", "R,S(0)", {8, 3}), 0, rank);
    EXPECT_EQ(intersection_size(indices(fsdp_tp, 0, rank), gathered), size(indices(fsdp_tp, 0, rank)));
  }
  const Layout hsdp_tp = layout_of("rep=2,dp=2,tp=2", "R,S(0)[1],S(0)[0]", {8, 3});
  for (Rank rank = 0; rank < 8; ++rank) EXPECT_EQ(box(hsdp_tp, rank), box(fsdp_tp, rank % 4));
}

// H25: the first chunk is the longest, so that it sets the padding.
TEST(PlacementOracle, H25FirstChunkDefinesThePadding) {
  for (std::int64_t size = 0; size <= 33; ++size) {
    const Layout layout = layout_of("dp=8", "S(0)", {size, 3});
    EXPECT_EQ(max_local_bytes(layout), local_bytes(layout, 0));
  }
}

// I1: veScale's InterleavedShard(0, 4) is also a stripe.
TEST(PlacementOracle, I1InterleavedShardIsAStripe) {
  const Layout sections = layout_of("a=8", "S(0,per_sequence:0/16/32/48/64)", {64, 3});
  EXPECT_TRUE(equivalent(sections, layout_of("a=8", "S(0,striped:2)", {64, 3})));
  EXPECT_EQ(local_shape(sections, 5), (Shape{8, 3}));
}

// J11: HyperParallel gives rank r the chunks 2r and 2(P-1-r)+1 of 2P: head-tail shards, of other ranks.
TEST(PlacementOracle, J11HyperParallelChunksAreHeadTailShardsOfOtherRanks) {
  for (int p = 1; p <= 9; ++p) {
    const std::int64_t chunk = 3, parts = 2 * std::int64_t{p};
    std::vector<Rank> ranks(static_cast<std::size_t>(p));
    for (int r = 0; r < p; ++r) ranks[static_cast<std::size_t>(std::min(2 * r, 2 * (p - 1 - r) + 1))] = r;
    const Layout layout =
        make_layout(Mesh({{"cp", p}}, ranks), {Shard{0, HeadTail{}}}, {parts * chunk}, DType::f32);
    for (Rank r = 0; r < p; ++r) {
      const std::int64_t first = std::int64_t{2} * r, second = parts - 1 - first;  // 2(P-1-r)+1
      const IndexSet chunks = {{first * chunk, chunk, chunk, 1}, {second * chunk, chunk, chunk, 1}};
      EXPECT_TRUE(same_members(indices(layout, 0, r), chunks)) << r << " of " << p;
      EXPECT_EQ((first + 1) + (second + 1), parts + 1);  // work under a causal mask, the same for every rank
    }
  }
}

// J12: MindSpeed's ring gives rank r the chunks r and 2P-1-r, in this order.
TEST(PlacementOracle, J12MindSpeedRingIsHeadTail) {
  for (int p = 1; p <= 9; ++p) {
    const std::int64_t chunk = 5, parts = 2 * std::int64_t{p};
    const Layout layout = layout_of(str("cp=", p), "S(0,head_tail)", {parts * chunk});
    for (Rank r = 0; r < p; ++r) {
      Indices expected(static_cast<std::size_t>(2 * chunk));
      std::iota(expected.begin(), expected.begin() + chunk, r * chunk);
      std::iota(expected.begin() + chunk, expected.end(), (parts - 1 - r) * chunk);
      EXPECT_EQ(expand(indices(layout, 0, r)), expected);
    }
  }
}

// Not expressible: A14, SS(0,3) then SS(0,4), whose second split cuts the list that is left at positions that
// are no global boundaries; I3 and I4, veScale's ragged shards, which split the flattened tensor.

}  // namespace
}  // namespace cp
