#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/proof/exhaustive/holdings.h"
#include "sim/proof/exhaustive/layouts.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> texts(const std::vector<Mesh>& meshes) {
  std::vector<std::string> all;
  for (const Mesh& mesh : meshes) all.push_back(mesh.to_string());
  return all;
}

TEST(VerifyLayouts, MeshesAreTheOrderedFactorisations) {
  EXPECT_THAT(texts(all_meshes(1)), ElementsAre("a=1"));
  EXPECT_THAT(texts(all_meshes(7)), ElementsAre("a=7"));
  EXPECT_THAT(texts(all_meshes(8)), ElementsAre("a=2,b=2,c=2", "a=2,b=4", "a=4,b=2", "a=8"));
  EXPECT_THAT(texts(all_meshes({2, 0, 5, 4})), ElementsAre("a=2,b=2@2/0/5/4", "a=4@2/0/5/4"));
  EXPECT_EQ(all_meshes(12).size(), 8U);  // OEIS A074206
  EXPECT_EQ(all_meshes(48).size(), 48U);
}

// The ways to put k of n distinct axes in order into D dimensions are C(n, k) x (k + D - 1)! / (D - 1)!;
// each of the others is replicated, or partial.
std::size_t expected_layouts(std::size_t num_axes, std::size_t num_dims, std::size_t unsharded_choices) {
  std::size_t total = 0;
  for (std::size_t sharded = 0; sharded <= num_axes; ++sharded) {
    std::size_t ways = 1;
    for (std::size_t i = 0; i < sharded; ++i) ways = ways * (num_axes - i) / (i + 1);
    for (std::size_t i = 0; i < sharded; ++i) ways *= num_dims + i;
    for (std::size_t i = sharded; i < num_axes; ++i) ways *= unsharded_choices;
    total += ways;
  }
  return total;
}

TEST(VerifyLayouts, EveryPlacementAndEveryOrderComesOnce) {
  for (const char* mesh_text : {"a=3", "a=2,b=3", "a=2,b=2,c=2", "a=1,b=2"}) {
    const Mesh mesh = Mesh::parse(mesh_text);
    for (const Shape& shape : {Shape{}, Shape{4}, Shape{4, 5}, Shape{3, 3, 3}}) {
      for (const std::optional<ReduceOp> reduction :
           {std::optional<ReduceOp>(), {ReduceOp::sum}, {ReduceOp::max}}) {
        const std::vector<Layout> layouts = all_layouts(mesh, shape, DType::f32, reduction);
        std::set<std::string> distinct;
        for (const Layout& layout : layouts) distinct.insert(placements_to_string(layout));
        EXPECT_EQ(distinct.size(), layouts.size());
        EXPECT_EQ(layouts.size(), expected_layouts(mesh.axes().size(), shape.size(), reduction ? 2 : 1))
            << mesh_text << " with " << shape.size() << " dimensions";
      }
    }
  }
  EXPECT_EQ(all_layouts(Mesh::parse("a=2,b=2,c=2"), {8, 8, 8}, DType::f32, ReduceOp::sum).size(), 176U);
  for (const Layout& layout : all_layouts(Mesh::parse("a=2,b=2"), {4}, DType::f32, ReduceOp::min)) {
    for (const Placement& placement : layout.placements) {
      const Partial* partial = std::get_if<Partial>(&placement);
      if (partial != nullptr) {
        EXPECT_EQ(partial->op, ReduceOp::min);
      }
    }
  }
}

TEST(VerifyLayouts, LegalPairsReduceButNeverUnreduce) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto layout = [](const char* placements, const Mesh& on) {
    return parse_layout(placements, on, {4}, DType::f32);
  };
  EXPECT_TRUE(is_legal_pair(layout("P(sum),S(0)", mesh), layout("P(sum),R", mesh)));
  EXPECT_TRUE(is_legal_pair(layout("P(sum),P(sum)", mesh), layout("S(0),P(sum)", mesh)));
  EXPECT_FALSE(is_legal_pair(layout("P(sum),R", mesh), layout("R,P(sum)", mesh)));
  EXPECT_FALSE(is_legal_pair(layout("S(0),R", mesh), layout("P(sum),R", mesh)));
  const Mesh other = Mesh::parse("a=2,b=2@4/5/6/7");
  EXPECT_TRUE(is_legal_pair(layout("P(sum),R", mesh), layout("S(0),R", other)));
  EXPECT_FALSE(is_legal_pair(layout("P(sum),R", mesh), layout("P(sum),R", other)));
}

TEST(VerifyHoldings, BoxesListElementsInLocalMemoryOrder) {
  // Rows 0-1 and 2 of a 3x4 tensor, columns 0-1 and 2-3.
  const Holdings holdings(parse_layout("S(0),S(1)", Mesh::parse("a=2,b=2"), {3, 4}, DType::f32));
  EXPECT_THAT(holdings.boxes, ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7), ElementsAre(8, 9),
                                          ElementsAre(10, 11)));
  EXPECT_THAT(holdings.box_of_rank, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(holdings.box_of_element[6], 1);
  EXPECT_EQ(holdings.place_of_element[6], 2);
  EXPECT_EQ(holdings.max_size(), 4);
  EXPECT_EQ(holdings.num_contributions, 1);
}

TEST(VerifyHoldings, RanksThatHoldTheSameShareABoxAndContributionsAreCounted) {
  const Holdings holdings(parse_layout("P(sum),S(0),P(sum)", Mesh::parse("a=2,b=3,c=2"), {2}, DType::f32));
  // Along b: element 0, element 1, nothing.
  EXPECT_THAT(holdings.box_of_rank, ElementsAre(0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2));
  EXPECT_THAT(holdings.contribution_of_rank, ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3));
  EXPECT_EQ(holdings.num_contributions, 4);
  EXPECT_TRUE(holdings.boxes[2].empty());
}

TEST(VerifyHoldings, AnAxisOfOneRankIsNotPartial) {
  const Holdings holdings(parse_layout("P(sum),P(sum)", Mesh::parse("a=1,b=2"), {2}, DType::f32));
  EXPECT_THAT(holdings.partial_axes, ElementsAre(1));
  EXPECT_EQ(holdings.num_contributions, 2);
}

}  // namespace
}  // namespace cp::sim
