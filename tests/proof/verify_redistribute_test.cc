#include "sim/proof/exhaustive/verify_redistribute.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/exhaustive/audit.h"
#include "sim/proof/exhaustive/layouts.h"
#include "sim/proof/exhaustive/pair_check.h"
#include "sim/proof/exhaustive/pair_run.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

VerifyRedistributeOptions options_for(int num_ranks, int tensor_dims) {
  VerifyRedistributeOptions options;
  options.num_ranks = num_ranks;
  options.tensor_dims = tensor_dims;
  return options;
}

void expect_all_well(const VerifyRedistributeResult& result) {
  EXPECT_TRUE(result.ok());
  EXPECT_THAT(result.faulty, Each(0));
  EXPECT_THAT(result.failures, IsEmpty());
}

// ---- the whole run

TEST(VerifyRedistribute, TwoRanksAndTwoDimensions) {
  VerifyRedistributeOptions options = options_for(2, 2);
  options.reductions = {ReduceOp::sum};
  const VerifyRedistributeResult result = verify_redistribute(options);
  expect_all_well(result);
  EXPECT_EQ(result.pairs, 122);
}

constexpr ReduceOp kReductions[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::product};

// The first reduction has all pairs; of the others those count that reduce, or stay partial.
TEST(VerifyRedistribute, EveryReductionHasItsPairs) {
  const auto pairs = [](std::vector<ReduceOp> reductions) {
    VerifyRedistributeOptions options = options_for(4, 2);
    options.cross_mesh = false;
    options.reductions = std::move(reductions);
    const VerifyRedistributeResult result = verify_redistribute(options);
    expect_all_well(result);
    EXPECT_EQ(result.infeasible, 0);
    return result.pairs;
  };
  const std::int64_t of_sums = pairs({ReduceOp::sum}),
                     further = pairs({ReduceOp::sum, ReduceOp::max}) - of_sums;
  EXPECT_GT(further, 0);
  EXPECT_LT(further, of_sums);
  // Pairs without anything partial are sums' alone, which may be made on their way.
  for (const ReduceOp op : kReductions)
    EXPECT_EQ(pairs({op}), op == ReduceOp::sum ? of_sums : further) << name(op);
  EXPECT_EQ(pairs({std::begin(kReductions), std::end(kReductions)}), of_sums + 4 * further);
}

TEST(VerifyRedistribute, SmallOnesTryEveryReductionAndLargeOnesSums) {
  const auto reductions = [](int ranks, int dims) {
    std::vector<ReduceOp> found;
    for (const RedistributionCase& one : redistribution_cases(options_for(ranks, dims))) {
      if (std::find(found.begin(), found.end(), one.reduction) == found.end()) found.push_back(one.reduction);
      EXPECT_EQ(one.partial_sources_alone, one.reduction != ReduceOp::sum);
    }
    return found;
  };
  EXPECT_THAT(reductions(4, 2), ::testing::ElementsAreArray(kReductions));
  EXPECT_THAT(reductions(2, 4), ::testing::Not(::testing::Contains(ReduceOp::avg)));
  EXPECT_THAT(reductions(2, 4), SizeIs(4));
  EXPECT_THAT(reductions(6, 2), ElementsAre(ReduceOp::sum));
}

// Sizes that are no powers of two, whose means are exact only where they are divided as they should be, and
// little memory, where reductions go in rounds.
TEST(VerifyRedistribute, ReductionsOnSixRanks) {
  VerifyRedistributeOptions options = options_for(6, 1);
  options.reductions = {std::begin(kReductions), std::end(kReductions)};
  expect_all_well(verify_redistribute(options));
  options.tensor_dims = 2;
  options.max_memory_factor = 0.4;
  options.reductions = {ReduceOp::avg, ReduceOp::max};
  const VerifyRedistributeResult result = verify_redistribute(options);
  expect_all_well(result);
  EXPECT_GT(result.infeasible, 0);
}

// Each mesh onto itself, onto the other, and onto ranks in another order, partly others, all others, and
// fewer.
TEST(VerifyRedistribute, FourRanksTwoDimensionsWithinAndAcrossMeshes) {
  const VerifyRedistributeResult result = verify_redistribute(options_for(4, 2));
  expect_all_well(result);
  EXPECT_EQ(result.infeasible, 0);
  EXPECT_GT(result.pairs, 3000);
}

TEST(VerifyRedistribute, ThreeDimensionsOnThreeRanks) {
  expect_all_well(verify_redistribute(options_for(3, 3)));
}

TEST(VerifyRedistribute, AxesOfUnequalSizesAndSpeeds) {
  VerifyRedistributeOptions options = options_for(6, 2);
  // Bytes count as much as latencies, and each axis has its own bandwidth.
  options.cost.step_latency_us = 0.01;
  options.cost.peer_latency_us = 0.001;
  options.cost.local_latency_us = 0.003;
  options.cost.axis_gbps = {{"a", 20.0}, {"b", 5.0}};
  expect_all_well(verify_redistribute(options));
}

TEST(VerifyRedistribute, LittleMemory) {
  VerifyRedistributeOptions options = options_for(4, 3);
  options.cross_mesh = false;
  options.max_memory_factor = 0.4;
  const VerifyRedistributeResult result = verify_redistribute(options);
  expect_all_well(result);
  EXPECT_GT(result.infeasible, 0);
}

TEST(VerifyRedistribute, OneRankNeedsNothing) { expect_all_well(verify_redistribute(options_for(1, 2))); }

TEST(VerifyRedistribute, TheCasesAreAllPairsOfMeshes) {
  const std::vector<RedistributionCase> eight = redistribution_cases(options_for(8, 3));
  ASSERT_THAT(eight, SizeIs(8));
  EXPECT_EQ(eight[0].shape, (Shape{8, 8, 8}));
  EXPECT_EQ(eight[4].shape, (Shape{9, 7, 5}));
  EXPECT_TRUE(
      std::all_of(eight.begin(), eight.end(), [](const auto& one) { return one.source == one.target; }));

  const auto has = [](const char* source, const char* target) {
    const std::vector<RedistributionCase> cases = redistribution_cases(options_for(4, 2));
    return std::any_of(cases.begin(), cases.end(), [&](const RedistributionCase& one) {
      return one.source == Mesh::parse(source) && one.target == Mesh::parse(target);
    });
  };
  EXPECT_TRUE(has("a=2,b=2", "a=2,b=2"));
  EXPECT_TRUE(has("a=4", "a=2,b=2"));
  EXPECT_TRUE(has("a=2,b=2", "a=4"));
  EXPECT_TRUE(has("a=2,b=2", "a=2,b=2@0/2/1/3"));
  EXPECT_TRUE(has("a=2,b=2", "a=2,b=2@2/3/4/5"));
  EXPECT_TRUE(has("a=2,b=2", "a=4@4/5/6/7"));
  EXPECT_TRUE(has("a=4", "a=2"));
}

// The comparison with the search can fail: a planner that believes something else misses cheaper chains.
TEST(VerifyRedistribute, APlannerWithAnotherModelIsCostlier) {
  VerifyRedistributeOptions options = options_for(4, 1);
  options.planner_cost = options.cost;
  options.planner_cost->exchange_efficiency = 1e-6;
  const VerifyRedistributeResult result = verify_redistribute(options);
  EXPECT_FALSE(result.ok());
  EXPECT_GT(result.count(Fault::costlier), 0);
  EXPECT_GT(result.count(Fault::misdeclared), 0);
  EXPECT_EQ(result.count(Fault::wrong), 0);
  EXPECT_EQ(result.count(Fault::cheaper), 0);
  EXPECT_THAT(result.failures,
              ::testing::Contains(
                  AllOf(HasSubstr("costlier: "), HasSubstr("the search, which found "),
                        HasSubstr("cpsim redistribute --mesh a=2,b=2 --shape 4 --dtype i64 --from '"))));
  EXPECT_LE(result.failures.size(), 10U);  // five of each kind
}

TEST(VerifyRedistribute, ProgressEndsWithAllPairs) {
  VerifyRedistributeOptions options = options_for(4, 1);
  std::mutex mutex;
  std::vector<std::pair<std::int64_t, std::int64_t>> calls;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    const std::lock_guard lock(mutex);
    calls.emplace_back(done, total);
  };
  const VerifyRedistributeResult result = verify_redistribute(options);
  ASSERT_FALSE(calls.empty());
  EXPECT_TRUE(std::is_sorted(calls.begin(), calls.end()));
  EXPECT_EQ(calls.back(), std::pair(result.pairs, result.pairs));
}

TEST(VerifyRedistribute, StopsBetweenPairs) {
  VerifyRedistributeOptions options = options_for(6, 3);
  std::atomic<bool> stop = false;
  options.stop = &stop;
  options.progress = [&](std::int64_t, std::int64_t) { stop = true; };
  const VerifyRedistributeResult result = verify_redistribute(options);
  EXPECT_TRUE(result.stopped);
  EXPECT_FALSE(result.ok());
  EXPECT_GT(result.pairs, 0);
  EXPECT_LT(result.pairs, 1000);
}

TEST(VerifyRedistribute, NamesWhatIsOutOfRange) {
  const auto run = [](int ranks, int dims) { return [=] { verify_redistribute(options_for(ranks, dims)); }; };
  EXPECT_THAT(run(0, 2), ThrowsMessage<InvalidInput>(HasSubstr("ranks=0")));
  EXPECT_THAT(run(17, 2), ThrowsMessage<InvalidInput>(HasSubstr("ranks=17")));
  EXPECT_THAT(run(4, 0), ThrowsMessage<InvalidInput>(HasSubstr("tensor_dims=0")));
  EXPECT_THAT(run(4, 5), ThrowsMessage<InvalidInput>(HasSubstr("tensor_dims=5")));
  const auto with = [](int ranks, std::vector<ReduceOp> reductions) {
    VerifyRedistributeOptions options = options_for(ranks, 2);
    options.reductions = std::move(reductions);
    return [=] { verify_redistribute(options); };
  };
  EXPECT_THAT(with(4, {}), ThrowsMessage<InvalidInput>(HasSubstr("no reductions to check")));
  EXPECT_THAT(with(4, {ReduceOp::max, ReduceOp::sum, ReduceOp::max}),
              ThrowsMessage<InvalidInput>(HasSubstr("the reduction max comes twice")));
  EXPECT_THAT(with(9, {ReduceOp::avg}), ThrowsMessage<InvalidInput>(AllOf(HasSubstr("means over 9 ranks"),
                                                                          HasSubstr("use at most 8 ranks"))));
}

// ---- one pair, damaged

struct Pair {
  ExhaustiveSearch search;
  std::size_t source = 0, target = 0;
  std::optional<ExhaustiveSearch::Chain> cheapest;
};

Pair pair_of(const std::string& mesh, const Shape& shape, const std::string& from, const std::string& to,
             double max_memory_factor = 1, ReduceOp reduction = ReduceOp::sum) {
  const Mesh on = Mesh::parse(mesh);
  const DType dtype = reduction == ReduceOp::avg ? DType::f32 : DType::i64;
  Pair pair{ExhaustiveSearch(on, on, shape, dtype, CostModel(), max_memory_factor, reduction), 0, 0,
            std::nullopt};
  for (std::size_t i = 0; i < pair.search.layouts().size(); ++i) {
    const std::string text = placements_to_string(pair.search.layouts()[i].layout);
    if (text == from) pair.source = i;
    if (text == to) pair.target = i;
  }
  pair.cheapest = pair.search.cheapest(pair.source)[pair.target];
  return pair;
}

CheckedPair check(const Pair& pair, const VerifyRedistributeOptions& options = {}) {
  VerifyRedistributeResult::Times times;
  return check_pair(pair.search, pair.source, pair.target, pair.cheapest, options, times);
}

std::vector<Fault> faults(const CheckedPair& pair) {
  std::vector<Fault> all;
  for (const Finding& finding : pair.findings) all.push_back(finding.fault);
  return all;
}

FabricOptions quiet() {
  FabricOptions options;
  options.record_traces = false;
  return options;
}

TEST(VerifyPair, AGoodOneHasNothingToSay) {
  const Pair pair = pair_of("a=2,b=2", {5, 3}, "S(0),P(sum)", "S(1),S(0)");
  std::vector<CheckedPair> pairs = {check(pair)};
  EXPECT_THAT(pairs[0].plans, SizeIs(4));
  Fabric fabric(4, quiet());
  run_pairs(pair.search, pairs, fabric);
  EXPECT_THAT(faults(pairs[0]), IsEmpty());
}

// Shifts the first view that the first step of some kind reads by one element.
template <class Op>
bool read_elsewhere(Plan& plan) {
  for (Segment& segment : plan.segments) {
    Step* step = std::get_if<Step>(&segment);
    Kernel* kernel = step != nullptr ? std::get_if<Kernel>(&step->work) : nullptr;
    Op* op = kernel != nullptr ? std::get_if<Op>(kernel) : nullptr;
    if (op == nullptr) continue;
    op->in.offset += 1;
    return true;
  }
  return false;
}

TEST(VerifyPair, WrongDataAreFoundAndSaidWhere) {
  const Pair pair = pair_of("a=2", {4}, "R", "S(0)");
  std::vector<CheckedPair> pairs = {check(pair), check(pair), check(pair)};
  ASSERT_TRUE(read_elsewhere<Copy>(pairs[1].plans[0]));
  Fabric fabric(2, quiet());
  run_pairs(pair.search, pairs, fabric);
  EXPECT_THAT(faults(pairs[0]), IsEmpty());
  ASSERT_THAT(faults(pairs[1]), ElementsAre(Fault::wrong));
  EXPECT_EQ(pairs[1].findings[0].what,
            "rank 0 holds 2 at position 0 of its shard, not 1 (element 0 of the tensor)");
  EXPECT_THAT(faults(pairs[2]), IsEmpty());
}

TEST(VerifyPair, AContributionInPlaceOfAnotherIsFound) {
  const Pair pair = pair_of("a=2", {4}, "P(sum)", "R");
  std::vector<CheckedPair> pairs = {check(pair)};
  const View input = flat_view(kRedistributeInput, 0, 4), output = flat_view(kRedistributeOutput, 0, 4);
  std::vector<Segment>& segments = pairs[0].plans[1].segments;
  segments.push_back(Step{0, Kernel(Copy{input, output}), {}, "its own"});
  segments.push_back(Step{0, Kernel(Accumulate{ReduceOp::sum, input, output}), {}, "its own, again"});
  Fabric fabric(2, quiet());
  run_pairs(pair.search, pairs, fabric);
  EXPECT_THAT(faults(pairs[0]), ElementsAre(Fault::wrong));
}

// Changes the reduction of all steps of the pair's plans that have another; false where none has.
bool reduce_with(CheckedPair& pair, ReduceOp op) {
  bool changed = false;
  for (Plan& plan : pair.plans) {
    for (Segment& segment : plan.segments) {
      Step* step = std::get_if<Step>(&segment);
      if (step == nullptr) continue;
      visit_operation(step->work, [&](auto& operation) {
        if constexpr (requires { operation.op; }) changed = std::exchange(operation.op, op) != op || changed;
      });
    }
  }
  return changed;
}

// On every path that reduces: all_reduce, reduce_scatter, and rounds of exchanges and accumulations.
TEST(VerifyPair, AnotherReductionIsFound) {
  struct Row {
    const char* target;
    double max_memory_factor;
  };
  for (const Row& row : {Row{"R,R", 1}, Row{"S(0),S(1)", 1}, Row{"S(0),S(1)", 0.4}, Row{"P,R", 1}}) {
    for (const ReduceOp right : kReductions) {
      const std::string partial = str("P(", name(right), ")");
      const std::string target = row.target == std::string("P,R") ? partial + ",R" : std::string(row.target);
      const Pair pair =
          pair_of("a=2,b=2", {9, 7}, partial + "," + partial, target, row.max_memory_factor, right);
      Fabric fabric(4, quiet());
      VerifyRedistributeOptions options;
      options.max_memory_factor = row.max_memory_factor;
      std::vector<CheckedPair> good = {check(pair, options)};
      run_pairs(pair.search, good, fabric);
      EXPECT_THAT(faults(good[0]), IsEmpty()) << name(right) << " to " << target;
      for (const ReduceOp wrong : kReductions) {
        if (wrong == right || (wrong == ReduceOp::avg && right != ReduceOp::avg)) continue;  // of integers
        std::vector<CheckedPair> bad = {check(pair, options)};
        // Means in rounds are sums, divided in the end.
        if (!reduce_with(bad[0], wrong)) {
          EXPECT_TRUE(right == ReduceOp::avg && wrong == ReduceOp::sum) << name(wrong) << " for " << partial;
          continue;
        }
        run_pairs(pair.search, bad, fabric);
        EXPECT_THAT(faults(bad[0]), ElementsAre(Fault::wrong)) << name(wrong) << " for " << partial;
      }
    }
  }
}

// Every contribution is decisive for some elements of each reduction.
TEST(VerifyPair, AMissingContributionIsFoundInEveryReduction) {
  for (const ReduceOp op : kReductions) {
    const std::string partial = str("P(", name(op), ")");
    const Pair pair = pair_of("a=2", {4}, partial, "R", 1, op);
    Fabric fabric(2, quiet());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      std::vector<CheckedPair> pairs = {check(pair)};
      ASSERT_THAT(faults(pairs[0]), IsEmpty());
      pairs[0].plans[rank].segments.push_back(
          Step{0,
               Kernel(Copy{flat_view(kRedistributeInput, 0, 4), flat_view(kRedistributeOutput, 0, 4)}),
               {},
               ""});
      run_pairs(pair.search, pairs, fabric);
      EXPECT_THAT(faults(pairs[0]), ElementsAre(Fault::wrong)) << name(op) << ", rank " << rank;
    }
  }
}

TEST(VerifyPair, AnOverwrittenSourceIsFound) {
  const Pair pair = pair_of("a=2", {4}, "R", "S(0)");
  std::vector<CheckedPair> pairs = {check(pair)};
  pairs[0].plans[1].buffers[kRedistributeInput].kind = BufferKind::inout;  // else no device runs it
  pairs[0].plans[1].segments.push_back(
      Step{0, Kernel(Fill{flat_view(kRedistributeInput, 3, 1), 0}), {}, "spoil"});
  Fabric fabric(2, quiet());
  run_pairs(pair.search, pairs, fabric);
  ASSERT_THAT(faults(pairs[0]), ElementsAre(Fault::wrong));
  EXPECT_EQ(pairs[0].findings[0].what, "rank 1's source is overwritten");
}

// One pair that cannot run does not take the others with it.
TEST(VerifyPair, APairThatFailsOnTheFabricIsFoundAmongOthers) {
  const Pair pair = pair_of("a=2", {4}, "S(0)", "R");
  std::vector<CheckedPair> pairs = {check(pair), check(pair), check(pair)};
  pairs[1].plans[0].segments.clear();  // its peer waits for ever
  Fabric fabric(2, quiet());
  run_pairs(pair.search, pairs, fabric);
  EXPECT_THAT(faults(pairs[0]), IsEmpty());
  EXPECT_THAT(faults(pairs[1]), ElementsAre(Fault::wrong));
  EXPECT_THAT(faults(pairs[2]), IsEmpty());
}

// The search keeps to a smaller bound than the planner was given.
TEST(VerifyPair, TooMuchMemoryIsFound) {
  const Pair pair = pair_of("a=2,b=2", {9, 7}, "P(sum),P(sum)", "S(0),S(1)", 0.4);
  EXPECT_THAT(faults(check(pair)), ::testing::UnorderedElementsAre(Fault::over_bound, Fault::cheaper));
  const Pair none = pair_of("a=2,b=2", {9, 7}, "P(sum),P(sum)", "S(0),S(1)", 0.01);
  EXPECT_THAT(faults(check(none)), ::testing::UnorderedElementsAre(Fault::over_bound, Fault::cheaper));
}

TEST(VerifyPair, APlannerThatFindsNothingIsCostlier) {
  const Pair pair = pair_of("a=2,b=2", {9, 7}, "P(sum),P(sum)", "S(0),S(1)");
  VerifyRedistributeOptions options;
  options.max_memory_factor = 0.01;
  const CheckedPair checked = check(pair, options);
  EXPECT_THAT(faults(checked), ElementsAre(Fault::costlier));
  EXPECT_THAT(checked.plans, IsEmpty());
}

// ---- the audit

class AuditOf : public ::testing::Test {
 protected:
  Audit audited() const { return audit(redistribution_, pair_.search, *pair_.cheapest); }

  Pair pair_ = pair_of("a=2,b=2", {9, 7}, "S(0),P(sum)", "S(1),R");
  Redistribution redistribution_ = plan_redistribution(pair_.search.layouts()[pair_.source].layout,
                                                       pair_.search.layouts()[pair_.target].layout);
};

TEST_F(AuditOf, AgreesWithTheSearch) {
  EXPECT_EQ(audited().misdeclared, "");
  EXPECT_EQ(audited().excess_ps, 0);
  EXPECT_GT(redistribution_.steps.size(), 1U);
}

TEST_F(AuditOf, FindsEachFigureThatIsMisdeclared) {
  const Redistribution good = redistribution_;
  const auto expect_found = [&](auto change) {
    redistribution_ = good;
    change(redistribution_);
    EXPECT_NE(audited().misdeclared, "");
  };
  for (std::size_t i = 0; i < good.steps.size(); ++i) {
    expect_found([&](Redistribution& r) { r.steps[i].time_us *= 1 + 1e-8; });
    expect_found([&](Redistribution& r) { r.steps[i].bytes_received_max += 1; });
    expect_found([&](Redistribution& r) { r.steps[i].bytes_received_total -= 1; });
    expect_found([&](Redistribution& r) { r.steps[i].wire_bytes_received_total += 8; });
    expect_found([&](Redistribution& r) { r.steps[i].temporary_bytes_max -= 8; });
    expect_found([&](Redistribution& r) { r.steps[i].move.kind = MoveKind::all_to_all; });
  }
  expect_found([&](Redistribution& r) { r.time_us *= 1 - 1e-8; });
  expect_found([&](Redistribution& r) { r.bytes_received_max += 1; });
  expect_found([&](Redistribution& r) { r.bytes_received_total += 1; });
}

TEST_F(AuditOf, CountsTheChainAndNotWhatItSays) {
  for (RedistributionStep& step : redistribution_.steps) step.time_us /= 2;
  redistribution_.time_us /= 2;
  EXPECT_NE(audited().misdeclared, "");
  EXPECT_EQ(audited().excess_ps, 0);
}

TEST_F(AuditOf, AnotherChainIsCostlier) {
  // Gathers all and reduces it, where a part would do.
  const Layout& source = redistribution_.source;
  const Layout gathered = parse_layout("R,P(sum)", source.mesh, source.shape, source.dtype);
  const Layout reduced = parse_layout("R,R", source.mesh, source.shape, source.dtype);
  const std::vector<Move> moves = {{MoveKind::all_gather, {0}, source, gathered},
                                   {MoveKind::all_reduce, {1}, gathered, reduced},
                                   {MoveKind::slice, {}, reduced, redistribution_.target}};
  redistribution_ = follow_moves(source, redistribution_.target, moves);
  EXPECT_EQ(audited().misdeclared, "");
  EXPECT_GT(audited().excess_ps, 0);
}

}  // namespace
}  // namespace cp::sim
