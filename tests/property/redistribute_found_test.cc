// What the properties of redistributions have found, once each.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/property/redistribute_cases.h"

namespace cp::testing {
namespace {

CostModel almost_free_steps() {
  CostModel cost;
  cost.step_latency_us = 0.01;
  cost.peer_latency_us = cost.local_latency_us = 0.001;
  return cost;
}

// No later chain is faster than the first.
void expect_first_is_fastest(const Layout& source, const Layout& target, const CostModel& cost = {}) {
  RedistributeOptions options;
  options.cost = cost;
  const std::vector<Redistribution> set = pareto_redistributions(source, target, options);
  for (const Redistribution& choice : set)
    EXPECT_GE(choice.time_us, set.front().time_us - rounding_us(choice, set.front()));
}

TEST(RedistributeFound, ParetoSetOfEquivalentLayoutsIsOneEmptyChain) {
  const Layout nested = parse_layout("S(0),S(0)", Mesh::parse("a=2,b=2"), {8}, DType::f32);
  const Layout flat = parse_layout("S(0)", Mesh::parse("ab=4"), {8}, DType::f32);
  const std::vector<Redistribution> set = pareto_redistributions(nested, flat);
  ASSERT_EQ(set.size(), 1U);
  EXPECT_TRUE(set.front().steps.empty());
}

// Ranks 5 and 1 are on no common mesh, but each has a fast link to rank 4.
TEST(RedistributeFound, FastLinksJoinAcrossMeshes) {
  expect_first_is_fastest(parse_layout("S(1,per_sequence:0/11:head_tail),P(min)",
                                       Mesh::parse("a=2,b=4@8/3/2/5/10/7/6/4"), {8, 11, 17}, DType::i64),
                          parse_layout("R,R", Mesh::parse("a=1,b=2@1/4"), {8, 11, 17}, DType::i64),
                          almost_free_steps());
}

// The rank that casts most is not the one that waits most.
TEST(RedistributeFound, CastsCountInTheSearch) {
  const Mesh mesh = Mesh::parse("a=4,b=1");
  expect_first_is_fastest(parse_layout("S(1,sizes:4/1/3/4),S(0)", mesh, {1, 12, 4}, DType::f16),
                          parse_layout("R,S(2)", mesh, {1, 12, 4}, DType::bf16));
}

void expect_named_factor(const Layout& source, const Layout& target, RedistributeOptions options,
                         double named) {
  options.max_memory_factor = 0.05;
  try {
    plan_redistribution(source, target, options);
    ADD_FAILURE() << "keeps 0.05";
  } catch (const Infeasible& error) {
    EXPECT_EQ(named_factor(error), named);
  }
  options.max_memory_factor = named;
  EXPECT_NO_THROW(sim::run_redistribution(plan_redistribution(source, target, options)));
}

// 58 of 100 bytes, but 0.58 * 100 is less than 58.
TEST(RedistributeFound, TheNamedFactorIsRoundedUpAsItIsRead) {
  const Mesh mesh = Mesh::parse("a=2,b=4,c=1");
  RedistributeOptions options;
  options.travel_dtype = DType::bf16;
  expect_named_factor(parse_layout("R,R,P(max)", mesh, {25}, DType::f16),
                      parse_layout("S(0)[1],S(0)[0],P(max)", mesh, {25}, DType::f16), options, 0.581);
}

// The chain of least peak is not that of least temporaries, where other ranks hold more of source and target.
TEST(RedistributeFound, TheNamedFactorIsThatOfTheLeastTemporaries) {
  RedistributeOptions options;
  options.objective = Objective::bytes;
  expect_named_factor(
      parse_layout("P(sum),S(0),R", Mesh::parse("a=3,b=3,c=1"), {7, 4}, DType::i32),
      parse_layout("S(1),S(0),S(1,sizes:2)", Mesh::parse("a=2,b=4,c=1@7/5/10/3/2/4/1/6"), {7, 4}, DType::i32),
      options, 0.334);
}

// Rank 3 sends nothing, and still has cast its shard.
TEST(RedistributeFound, ACastShardCountsThoughNobodyNeedsIt) {
  const Mesh mesh = Mesh::parse("a=1,b=3,c=4");
  expect_named_factor(parse_layout("S(0,sizes:3)[1],R,S(0)[0]", mesh, {12}, DType::f16),
                      parse_layout("S(0)[0],S(0,balanced)[2],S(0,sizes:0/1/1/10)[1]", mesh, {12}, DType::f32),
                      {}, 0.375);
}

// In the leaner chains' reduce_exchange, the packed staging lives with the old shard and the received one,
// which may take the old shard's place: largest first, the packed staging came to lie beyond it.
TEST(RedistributeFound, StagingOfRoundsLeavesNoHoleInTheArena) {
  RedistributeOptions options;
  options.max_memory_factor = 2;
  options.travel_dtype = DType::f16;
  const std::vector<Redistribution> set = pareto_redistributions(
      parse_layout("S(2),P(avg)", Mesh::parse("a=3,b=2"), {7, 5, 9}, DType::bf16),
      parse_layout("R,S(2),R", Mesh::parse("a=4,b=2,c=1"), {7, 5, 9}, DType::bf16), options);
  std::size_t in_rounds = 0;
  for (const Redistribution& choice : set) {
    for (const RedistributionStep& step : choice.steps)
      in_rounds += step.move.kind == MoveKind::reduce_exchange ? 1U : 0U;
    EXPECT_EQ(memory_of(lower_all(choice)).peak_bytes, choice.peak_bytes);
    EXPECT_NO_THROW(sim::run_redistribution(choice));
  }
  EXPECT_GT(in_rounds, 0U);
}

// A rank that holds nothing holds nothing in whichever dimension: no move is needed, and none is asked for.
TEST(RedistributeFound, ShardsThatAreEmptyInDifferentDimensionsAreEqual) {
  const Mesh mesh = Mesh::parse("a=3,b=1");
  const Layout source = parse_layout("S(0,sizes:0/0/7),P(product)", mesh, {7, 1, 2}, DType::f32);
  const Layout target = parse_layout("S(1,sizes:0/0/1)[1],S(1,sizes:1)[0]", mesh, {7, 1, 2}, DType::f32);
  EXPECT_TRUE(plan_redistribution(source, target).steps.empty());
  EXPECT_NO_THROW(follow_moves(source, target, {}));
}

// Ranks that hold the neutral value of a new product need their old shards no more, and the largest of them
// was one.
TEST(RedistributeFound, RanksThatHoldANeutralValueNeedNoOldShard) {
  const Mesh mesh = Mesh::parse("a=4,b=1,c=3@5/8/12/0/4/7/10/13/6/11/9/1");
  RedistributeOptions options;
  options.objective = Objective::bytes;
  options.max_memory_factor = 2;
  options.travel_dtype = DType::bf16;
  const Redistribution planned =
      plan_redistribution(parse_layout("P(product),S(1),S(1,head_tail)", mesh, {1, 11, 9}, DType::f32),
                          parse_layout("R,R,P(product)", mesh, {1, 11, 9}, DType::f32), options);
  EXPECT_EQ(memory_of(lower_all(planned)).peak_bytes, planned.peak_bytes);
  EXPECT_NO_THROW(sim::run_redistribution(planned));
}

// The moves carry the travelling dtype, which is neither the source's nor the target's.
TEST(RedistributeFound, MovesBetweenCastsAreFollowed) {
  RedistributeOptions options;
  options.max_memory_factor = 2;
  options.travel_dtype = DType::f16;
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Layout source = parse_layout("S(0),P(sum)", mesh, {8, 6}, DType::f32);
  const Redistribution planned =
      plan_redistribution(source, parse_layout("S(1),R", mesh, {8, 6}, DType::bf16), options);
  std::vector<Move> moves;
  for (const RedistributionStep& step : planned.steps) moves.push_back(step.move);
  ASSERT_FALSE(moves.empty());
  const Redistribution followed = follow_moves(source, planned.target, moves, options);
  EXPECT_EQ(lower_all(followed), lower_all(planned));
  EXPECT_EQ(followed.peak_bytes, planned.peak_bytes);
  moves.front().from.placements[1] = Partial{ReduceOp::max};
  EXPECT_THROW(follow_moves(source, planned.target, moves, options), InvalidInput);
}

}  // namespace
}  // namespace cp::testing
