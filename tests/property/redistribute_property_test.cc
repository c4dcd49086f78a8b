// Properties of redistributions between random layouts: planned, checked, run with data, and held against
// what is found element by element.
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "shared/redistribute/candidates.h"
#include "shared/redistribute/dtensor.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"
#include "tests/support/shard_data.h"
#include "tests/support/values.h"
#include "traces/plan_proto.h"

namespace cp::testing {
namespace {

using Partials = CaseKinds::Partials;
using sim::Mutation;
using sim::MutationKind;

Redistribution plan_of(const RedistributeCase& request) {
  return plan_redistribution(request.source, request.target, request.options);
}

std::int64_t largest_shard_bytes(const RedistributeCase& request) {
  const DType travel = request.options.travel_dtype.value_or(request.target.dtype);
  std::int64_t numel = 0, width = size_bytes(travel);
  for (const Layout* layout : {&request.source, &request.target}) {
    width = std::max(width, size_bytes(layout->dtype));
    for (const Rank rank : layout->mesh.ranks())
      numel = std::max(numel, static_cast<std::int64_t>(element_numbers(*layout, rank).size()));
  }
  return numel * width;
}

// Largest over the ranks.
struct Memory {
  std::int64_t peak_bytes = 0, arena_bytes = 0;
};

Memory memory_of(const std::vector<Plan>& plans) {
  Memory memory;
  for (const Plan& plan : plans) {
    memory.peak_bytes = std::max(memory.peak_bytes, peak_bytes(plan));
    memory.arena_bytes = std::max(memory.arena_bytes, plan.arena_bytes);
  }
  return memory;
}

std::int64_t most_temporary_bytes(const Redistribution& planned) {
  std::int64_t most = 0;
  for (const RedistributionStep& step : planned.steps) most = std::max(most, step.temporary_bytes_max);
  return most;
}

// ---- plans ----

RC_GTEST_PROP(RedistributeProperty, RunIsRightAndWithinTheBound, ()) {
  const RedistributeCase request = *any_case({.tight = false});
  const Redistribution planned = plan_of(request);
  const std::vector<Plan> plans = lower_all(planned);
  const double limit =
      request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
  for (const Plan& plan : plans) {
    RC_ASSERT(static_cast<double>(plan.arena_bytes) <= limit);
    RC_ASSERT(peak_bytes(plan) <= planned.bound_bytes);
  }
  const Memory memory = memory_of(plans);
  RC_ASSERT(memory.peak_bytes == planned.peak_bytes);
  RC_ASSERT(memory.arena_bytes == most_temporary_bytes(planned));
  // Throws for plans that the checker refuses, for other bytes than the planner counted, and for wrong data.
  const sim::RedistributeRun run = sim::run_redistribution(planned, plans);
  RC_ASSERT(run.peak_bytes == memory.peak_bytes);
}

// The smallest factor that works, as the message says.
double named_factor(const Infeasible& error) {
  const std::string message = error.what();
  constexpr std::string_view kName = "max_memory_factor=";
  const std::size_t at = message.rfind(kName);
  return at == std::string::npos ? 0 : std::stod(message.substr(at + kName.size()));
}

// A factor below 1 is kept too, or refused with the smallest factor that works.
RC_GTEST_PROP(RedistributeProperty, TightMemoryIsKeptOrRefusedWithTheFactorThatWorks, ()) {
  RedistributeCase request = *any_case();
  request.options.max_memory_factor =
      pick("request.options.max_memory_factor", rc::gen::element(0.05, 0.25, 0.5, 0.75));
  try {
    const Redistribution planned = plan_of(request);
    const double limit =
        request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
    for (const Plan& plan : lower_all(planned)) RC_ASSERT(static_cast<double>(plan.arena_bytes) <= limit);
    sim::run_redistribution(planned);
    return;
  } catch (const Infeasible& error) {
    RC_LOG() << error.what() << "\n";
    request.options.max_memory_factor = named_factor(error);
  }
  sim::run_redistribution(plan_of(request));
  request.options.max_memory_factor -= 0.002;  // the message rounds up to thousandths
  if (request.options.max_memory_factor > 0) RC_ASSERT_THROWS_AS(plan_of(request), Infeasible);
}

// How much faster than `first` a chain may be that the search found no faster. The search counts whole
// picoseconds: in either chain each rank's part of each step, and its casts together, are rounded by half a
// one at most.
double rounding_us(const Redistribution& first, const Redistribution& second) {
  constexpr double kHalfPicosecondUs = 0.5e-6;
  const std::size_t rounded = first.steps.size() + 1 + second.steps.size() + 1;
  return kHalfPicosecondUs * static_cast<double>(rounded);
}

RC_GTEST_PROP(RedistributeProperty, ParetoSetTradesTimeForMemory, ()) {
  RedistributeCase request = *any_case({.tight = false, .max_ranks = 8});
  request.options.objective = Objective::time;
  const std::vector<Redistribution> set =
      pareto_redistributions(request.source, request.target, request.options);
  RC_ASSERT(!set.empty());
  RC_ASSERT(lower_all(set.front()) == lower_all(plan_of(request)));
  RC_ASSERT(set.front().time_us == plan_of(request).time_us);
  for (std::size_t i = 1; i < set.size(); ++i) {
    RC_ASSERT(set[i].peak_bytes < set[i - 1].peak_bytes);
    RC_ASSERT(set[i].time_us >= set[i - 1].time_us - rounding_us(set[i], set[i - 1]));
    const std::vector<Plan> plans = lower_all(set[i]);
    RC_ASSERT(memory_of(plans).peak_bytes == set[i].peak_bytes);
    sim::run_redistribution(set[i], plans);
  }
}

// Some chain of candidate moves to the target, good or bad; nothing where it does not get there.
std::optional<std::vector<Move>> random_chain(const RedistributeCase& request) {
  detail::StateSpace space(request.source, request.target,
                           request.options.travel_dtype.value_or(request.target.dtype));
  std::vector<Move> moves;
  detail::State at = space.source();
  for (int left = *any_int(1, 4); !space.equivalent(at, space.target()); --left) {
    std::vector<detail::StateMove> all, candidates;
    const bool towards_target = pick("towards_target", rc::gen::element(false, true));
    detail::list_candidates(space, at,
                            towards_target ? detail::Breadth::towards_target : detail::Breadth::all, all);
    const auto kind = static_cast<MoveKind>(*any_int(0, static_cast<int>(MoveKind::to_partial)));
    for (const detail::StateMove& move : all) {
      if (left <= 1 ? move.to == space.target() : move.kind == kind) candidates.push_back(move);
    }
    if (candidates.empty() && left <= 1) return std::nullopt;
    if (candidates.empty()) continue;
    const int chosen = *any_int(0, static_cast<int>(candidates.size()) - 1);
    const detail::StateMove& move = candidates[static_cast<std::size_t>(chosen)];
    moves.push_back({move.kind, space.mesh_axes(move.from.side, move.axes), space.layout_of(move.from),
                     space.layout_of(move.to)});
    at = move.to;
  }
  return moves;
}

// Not the cheapest chains alone need just what they declare.
RC_GTEST_PROP(RedistributeProperty, AnyChainIsRightAndNeedsWhatItDeclares, ()) {
  const RedistributeCase request = *any_case({.tight = false, .max_ranks = 8});
  const std::optional<std::vector<Move>> moves = random_chain(request);
  RC_PRE(moves.has_value());
  const Redistribution chain = follow_moves(request.source, request.target, *moves, request.options);
  const std::vector<Plan> plans = lower_all(chain);
  const Memory memory = memory_of(plans);
  RC_ASSERT(memory.peak_bytes == chain.peak_bytes);
  RC_ASSERT(memory.arena_bytes == most_temporary_bytes(chain));
  sim::run_redistribution(chain, plans);
  const double limit =
      request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
  if (static_cast<double>(memory.arena_bytes) > limit) return;
  // Nothing that keeps the bound is better than the plan says is possible, nor than a plan that says it is
  // the best.
  const bool by_time = request.options.objective == Objective::time;
  const double cost = by_time ? chain.time_us : static_cast<double>(chain.wire_bytes_received_max);
  const Redistribution planned = plan_of(request);
  RC_ASSERT(planned.least_possible <= cost + rounding_us(chain, planned));
}

// What the properties above have found, once each.

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

RC_GTEST_PROP(RedistributeProperty, PlansComeBackFromTextAndBytes, ()) {
  const Redistribution planned = plan_of(*any_case({.tight = false}));
  for (const Plan& plan : lower_all(planned)) {
    RC_ASSERT(parse_plan(to_text(plan)) == plan);
    RC_ASSERT(from_proto(to_proto(plan)) == plan);
    RC_ASSERT(parse_plan_bytes(serialize_plan(plan)) == plan);
    RC_ASSERT(digest(parse_plan(to_text(plan))) == digest(plan));
  }
}

// ---- data ----

// The value of the element once all contributions are reduced.
double reduced(const Layout& layout, const ElementValue& value, std::int64_t element) {
  const ReduceOp op = reduction(layout).value_or(ReduceOp::sum);
  double result = value(element, 0), averaged = 1;
  for (std::int64_t c = 1; c < num_contributions(layout); ++c) {
    const double next = value(element, c);
    if (op == ReduceOp::min) result = std::min(result, next);
    if (op == ReduceOp::max) result = std::max(result, next);
    if (op == ReduceOp::product) result *= next;
    if (op == ReduceOp::sum || op == ReduceOp::avg) result += next;
  }
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
    const auto* partial = std::get_if<Partial>(&layout.placements[static_cast<std::size_t>(axis)]);
    if (partial != nullptr && partial->op == ReduceOp::avg) averaged *= layout.mesh.axis_size(axis);
  }
  return result / averaged;
}

// Contribution c adds 16^c, so that the digits of the sum count how often each one arrived; the element's
// number above them comes from one contribution alone.
RC_GTEST_PROP(RedistributeProperty, EachContributionArrivesExactlyOnce, ()) {
  RedistributeCase request = *any_case({.partials = Partials::linear, .casts = false, .max_ranks = 8});
  for (Layout* layout : {&request.source, &request.target}) {
    layout->dtype = DType::i64;
    for (Placement& placement : layout->placements) {
      if (std::holds_alternative<Partial>(placement)) placement = Partial{ReduceOp::sum};
    }
  }
  request.options.max_memory_factor = 1;
  const std::int64_t contributions = num_contributions(request.source);
  const ElementValue value = [&](std::int64_t element, std::int64_t c) {
    const double number = element % contributions == c ? static_cast<double>(element) * 0x1p32 : 0;
    return number + std::ldexp(1.0, static_cast<int>(4 * c));
  };
  const Shards target = run_plans(lower_all(plan_of(request)), make_shards(request.source, value));
  // Where the target is partial, its contributions add up.
  std::map<std::pair<std::vector<int>, std::int64_t>, double> sums;
  for (const Rank rank : request.target.mesh.ranks()) {
    std::vector<int> others = request.target.mesh.coordinates(rank);
    for (const int axis : partial_axes(request.target)) others[static_cast<std::size_t>(axis)] = 0;
    const std::vector<std::int64_t> elements = element_numbers(request.target, rank);
    RC_ASSERT(target.at(rank).size() == elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) sums[{others, elements[i]}] += target.at(rank)[i];
  }
  for (const auto& [key, sum] : sums) RC_ASSERT(sum == reduced(request.source, value, key.second));
}

RC_GTEST_PROP(RedistributeProperty, FullTensorOfARedistributedTensorIsTheTensor, ()) {
  const RedistributeCase request = *any_case({.casts = false, .tight = false, .max_ranks = 8});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const bool product = reduction(request.source) == ReduceOp::product;
  // Multiples of all numbers of ranks that a mean may be over, so small that f32 holds their products.
  const ElementValue value = [&](std::int64_t element, std::int64_t c) {
    const double number = small_integer(seed, element, c, product ? 3 : 20);
    return product ? number : 144 * number;
  };
  const Shards source = make_shards(request.source, value);
  Rank last = 0;
  for (const Mesh* mesh : {&request.source.mesh, &request.target.mesh}) {
    for (const Rank rank : mesh->ranks()) last = std::max(last, rank);
  }
  std::vector<std::vector<float>> full(static_cast<std::size_t>(last) + 1);
  sim::Fabric fabric(last + 1);
  fabric.run([&](Rank rank, Device& device) {
    const bool sends = request.source.mesh.contains(rank), receives = request.target.mesh.contains(rank);
    if (!sends && !receives) return;
    const std::vector<double> held = sends ? source.at(rank) : std::vector<double>{};
    std::vector<float> in(held.begin(), held.end());
    std::vector<float> out(receives ? static_cast<std::size_t>(local_numel(request.target, rank)) : 0);
    const auto tensor = [&](const Layout& layout, std::vector<float>& data) {
      return from_local(layout, rank, data.data(), static_cast<std::int64_t>(data.size() * sizeof(float)));
    };
    redistribute(device, tensor(request.source, in), tensor(request.target, out), request.options);
    if (!receives) return;
    std::vector<float>& whole = full[static_cast<std::size_t>(rank)];
    whole.resize(static_cast<std::size_t>(numel(request.target.shape)));
    full_tensor(device, tensor(request.target, out), whole.data());
  });
  for (const Rank rank : request.target.mesh.ranks()) {
    const std::vector<float>& whole = full[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const double expected = reduced(request.source, value, static_cast<std::int64_t>(i));
      // Means over 3 ranks round 1/3; the wrong multiple of 144/12 would be 12 away.
      RC_ASSERT(std::abs(static_cast<double>(whole[i]) - expected) <= 1e-3);
    }
  }
}

RC_GTEST_PROP(RedistributeProperty, ThereAndBackIsTheIdentity, ()) {
  RedistributeCase request = *any_case({.partials = Partials::none, .tight = false});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const Shards source =
      make_shards(request.source, [&](std::int64_t element) { return small_integer(seed, element, 0, 120); });
  const Shards there = run_plans(lower_all(plan_of(request)), source);
  std::swap(request.source, request.target);
  const Shards back = run_plans(lower_all(plan_of(request)), there);
  for (const auto& [rank, shard] : source) RC_ASSERT(back.at(rank) == shard);
}

// Contract 10: <R x, y> == <x, R^T y> over all ranks' storage, x being any tensor in the source's layout and
// y any in the dual of the target's.
RC_GTEST_PROP(RedistributeProperty, GradientIsTheTranspose, ()) {
  const RedistributeCase request =
      *any_case({.partials = Partials::linear, .casts = false, .tight = false, .max_ranks = 8});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const auto values = [&](std::uint64_t salt) -> ElementValue {
    return [=](std::int64_t element, std::int64_t c) { return small_integer(seed + salt, element, c, 5); };
  };
  GradientOptions options;
  options.redistribute = request.options;
  options.redistribute.max_memory_factor = 2;  // to_partial is a step of its own, with both shards alive
  options.scale = pick("options.scale", rc::gen::element(1.0, 0.25, 2.0, 3.0));
  const Gradient gradient = plan_gradient(request.source, request.target, options);
  const Shards x = make_shards(request.source, values(0));
  const Shards rx = run_plans(lower_all(plan_of(request)), x);
  const Shards y = make_shards(dual(request.target), values(1));
  const Shards ry = run_plans(lower_all_scaled(gradient.redistribution, gradient.scale), y);
  RC_ASSERT(options.scale * inner_product(rx, y) == inner_product(x, ry));
  sim::RedistributeRunOptions run;
  run.scale = gradient.scale;
  sim::run_redistribution(gradient.redistribution, run);
}

// ---- determinism ----

// Of everything that a plan is, of the planner's figures, and of the smaller half of the Pareto set's.
std::string digests_of_seed(std::uint64_t seed) {
  const RedistributeCase request = case_of_seed(seed, {.tight = false, .max_ranks = 8});
  Hasher hasher;
  const Redistribution planned = plan_of(request);
  hasher.add(planned.inputs).add(planned.time_us).add(planned.peak_bytes);
  for (const Plan& plan : lower_all(planned)) hasher.add(digest(plan));
  for (const Redistribution& choice :
       pareto_redistributions(request.source, request.target, request.options)) {
    hasher.add(choice.time_us).add(choice.peak_bytes);
  }
  return to_string(hasher.digest());
}

constexpr std::uint64_t kDigestSeeds = 60;

// Run by the test below in a process of its own, in another order: nothing may depend on what was planned
// before.
TEST(RedistributeDigests, DISABLED_PrintInReverseOrder) {
  for (std::uint64_t seed = kDigestSeeds; seed-- > 0;)
    std::printf("digest %d %s\n", static_cast<int>(seed), digests_of_seed(seed).c_str());
}

TEST(RedistributeDigests, AreEqualInAnotherProcess) {
  std::array<char, 4096> self{};
  ASSERT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = str("'", self.data(),
                                  "' --gtest_also_run_disabled_tests "
                                  "--gtest_filter=RedistributeDigests.DISABLED_PrintInReverseOrder");
  const std::unique_ptr<FILE, int (*)(FILE*)> other(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(other, nullptr);
  std::map<int, std::string> theirs;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), other.get()) != nullptr) {
    int seed = 0;
    std::array<char, 256> text{};
    if (std::sscanf(line.data(), "digest %d %255s", &seed, text.data()) == 2) theirs[seed] = text.data();
  }
  ASSERT_EQ(theirs.size(), kDigestSeeds);
  std::map<std::string, int> distinct;
  for (std::uint64_t seed = 0; seed < kDigestSeeds; ++seed) {
    const std::string ours = digests_of_seed(seed);
    EXPECT_EQ(ours, theirs[static_cast<int>(seed)]) << "seed " << seed;
    ++distinct[ours];
  }
  EXPECT_EQ(distinct.size(), kDigestSeeds);
}

RC_GTEST_PROP(RedistributeProperty, EqualInputsGiveEqualPlans, ()) {
  const RedistributeCase request = *any_case({.tight = false});
  const Redistribution first = plan_of(request), second = plan_of(request);
  RC_ASSERT(first.inputs == second.inputs);
  RC_ASSERT(lower_all(first) == lower_all(second));
  // And other inputs other digests.
  RedistributeCase changed = request;
  changed.options.cost.network_gbps += 1;
  RC_ASSERT(!(plan_of(changed).inputs == first.inputs));
}

// ---- mutations ----

enum class DamageVerdict : std::uint8_t { refused, wrong_data, harmless };

struct DamageTrial {
  DamageVerdict verdict = DamageVerdict::harmless;
  Mutation mutation;
};

// What becomes of damaged plans. Throws what the fabric throws while plans run that the checker let pass, and
// CheckFailure when interleavings differ: both would be the checker's fault. That a device refuses to prepare
// a plan is not.
DamageTrial judge(const Redistribution& planned, const Mutation& mutation, const std::vector<Plan>& damaged,
                  const Shards& source, const Shards& expected) {
  CheckLimits limits;
  limits.peak_bytes = planned.peak_bytes;
  try {
    check(damaged, limits);
  } catch (const Error&) {
    return {DamageVerdict::refused, mutation};
  }
  std::optional<Shards> result;
  try {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const Shards now = run_plans(damaged, source, {.schedule = sim::Schedule::baton, .seed = seed});
      if (result && *result != now)
        throw CheckFailure("two interleavings of plans that check() passed give different results");
      result = now;
    }
  } catch (const InvalidInput&) {
    return {DamageVerdict::refused, mutation};
  }
  return {*result == expected ? DamageVerdict::harmless : DamageVerdict::wrong_data, mutation};
}

std::optional<DamageTrial> attempt(const RedistributeCase& request, MutationKind kind, std::uint64_t seed) {
  const Redistribution planned = plan_of(request);
  std::vector<Plan> plans = lower_all(planned);
  const Shards source = make_shards(request.source, [&](std::int64_t element, std::int64_t c) {
    return small_integer(seed, element, c, reduction(request.source) == ReduceOp::product ? 3 : 1000);
  });
  const Shards expected = run_plans(plans, source);
  std::mt19937_64 random(seed);
  const auto place = static_cast<std::int64_t>(random() >> 1);
  const std::optional<Mutation> mutation = sim::mutate(plans, kind, place, random());
  if (!mutation) return std::nullopt;
  return judge(planned, *mutation, plans, source, expected);
}

RedistributeCase integer_case(RedistributeCase request) {
  request.options.max_memory_factor = 1;
  request.options.travel_dtype.reset();
  for (Layout* layout : {&request.source, &request.target}) {
    layout->dtype = DType::i64;
    for (Placement& placement : layout->placements) {
      auto* partial = std::get_if<Partial>(&placement);
      if (partial != nullptr && partial->op == ReduceOp::avg) partial->op = ReduceOp::sum;
    }
  }
  return request;
}

// Damage is refused by the checker or shows in the data, and where the mutation cannot change what the plans
// mean, the checker alone must find it. A plan that it passes runs to its end on the fabric, with one result.
RC_GTEST_PROP(RedistributeMutation, IsCaughtOrHarmless, (std::uint64_t seed)) {
  const RedistributeCase request = integer_case(*any_case({.max_ranks = 8}));
  const auto kind = pick("kind", rc::gen::inRange<std::size_t>(0, sim::all_mutations().size()));
  const std::optional<DamageTrial> trial = attempt(request, sim::all_mutations()[kind].kind, seed);
  RC_PRE(trial.has_value());
  RC_LOG() << trial->mutation.text << "\n";
  RC_TAG(trial->verdict == DamageVerdict::refused      ? "refused"
         : trial->verdict == DamageVerdict::wrong_data ? "wrong data"
                                                       : "harmless");
  RC_ASSERT(trial->verdict != DamageVerdict::wrong_data || trial->mutation.may_change_meaning);
}

// That the property above is about something: each kind of damage that finds a place is refused somewhere, or
// shows in the data.
TEST(RedistributeMutation, EachKindIsCaughtSomewhere) {
  for (const sim::MutationInfo& info : sim::all_mutations()) {
    std::map<DamageVerdict, int> tally;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const RedistributeCase request = integer_case(case_of_seed(seed, {.tight = false, .max_ranks = 6}));
      const std::optional<DamageTrial> trial = attempt(request, info.kind, seed);
      if (!trial) continue;
      ++tally[trial->verdict];
      EXPECT_TRUE(trial->verdict != DamageVerdict::wrong_data || trial->mutation.may_change_meaning)
          << "seed " << seed << ": " << trial->mutation.text;
    }
    if (tally.empty()) continue;  // plans of redistributions have one stream, hence no edges to drop
    EXPECT_GT(tally[DamageVerdict::refused] + tally[DamageVerdict::wrong_data], 0) << info.name;
    std::printf("%-28s refused %2d, wrong data %2d, harmless %2d\n", std::string(info.name).c_str(),
                tally[DamageVerdict::refused], tally[DamageVerdict::wrong_data],
                tally[DamageVerdict::harmless]);
  }
}

}  // namespace
}  // namespace cp::testing
