// Every kind of fault x redistributions and strategies: never silent, never the wrong culprit, and no alarm
// for what may happen.
#include "sim/proof/faults/fault_verdict.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/redistribute/lower.h"
#include "tests/context_parallel/run_findings.h"
#include "tests/faults/fault_table.h"

namespace cp::sim {
namespace {

std::vector<FaultKind> all_kinds() {
  std::vector<FaultKind> kinds;
  for (int kind = 1; kind < kNumFaultKinds; ++kind) kinds.push_back(static_cast<FaultKind>(kind));
  return kinds;
}

struct Move {
  const char* mesh;
  const char* shape;
  const char* from;
  const char* to;
};

const std::vector<Move> kMoves = {
    {"a=3", "7", "S(0)", "R"},                     // an exchange, or a padded all_gather
    {"a=4", "8,4", "S(0)", "R"},                   // all_gather
    {"a=4", "8,4", "S(0)", "S(1)"},                // all_to_all
    {"a=4", "8,4", "P(sum)", "R"},                 // all_reduce
    {"a=4", "8,4", "P(sum)", "S(0)"},              // reduce_scatter
    {"a=3", "10,3", "P(sum)", "S(0)"},             // uneven
    {"a=2", "8,4", "S(0)", "S(1)"},                // nobody has a majority
    {"a=2,b=2", "8,8", "S(0),S(1)", "R,R"},        // two groups for each rank
    {"a=2,b=3", "12,6", "P(sum),S(0)", "S(0),R"},  //
    {"a=4", "9", "S(0)", "S(0,head_tail)"},        //
};

Shape shape_of(const char* text) {
  Shape shape;
  for (const std::string_view size : split(text, ',')) shape.push_back(parse_int(size, "size"));
  return shape;
}

Redistribution plan_of(const Move& move, int longer = 0) {
  const Mesh mesh = Mesh::parse(move.mesh);
  Shape shape = shape_of(move.shape);
  shape.back() += longer;
  return plan_redistribution(parse_layout(move.from, mesh, shape, DType::f32),
                             parse_layout(move.to, mesh, shape, DType::f32));
}

class RedistributionFaults : public ::testing::TestWithParam<FaultKind> {};

TEST_P(RedistributionFaults, AreToleratedOrBlamedOnWhoeverDidThem) {
  int took_place = 0;
  for (const Move& move : kMoves) {
    const Redistribution right = plan_of(move), other = plan_of(move, 12);
    const std::vector<Plan> plans = lower_all(right), others = lower_all(other);
    for (const InjectedFault& fault : ::cp::testing::faults_of(GetParam(), plans, 3, 1)) {
      for (const bool compare_digests : {false, true}) {
        for (const Schedule schedule : {Schedule::baton, Schedule::parallel}) {
          const FaultRunOptions options{.schedule = schedule, .seed = 5, .compare_digests = compare_digests};
          const FaultVerdict verdict = judge_redistribution(right, plans, {{fault}}, options, others);
          EXPECT_TRUE(verdict.holds()) << move.mesh << " " << move.shape << " " << move.from << " -> "
                                       << move.to << ", " << to_string(fault) << ": " << name(verdict.kind)
                                       << ", " << verdict.error_name() << ": " << verdict.message;
          took_place += verdict.kind != FaultVerdict::Kind::no_fault;
        }
      }
    }
  }
  const bool has_places = GetParam() != FaultKind::other_root && GetParam() != FaultKind::swap_collectives;
  EXPECT_TRUE(took_place > 0 || !has_places);
}

class AttentionFaults : public ::testing::TestWithParam<FaultKind> {};

TEST_P(AttentionFaults, AreToleratedOrBlamedOnWhoeverDidThem) {
  int took_place = 0;
  for (const int cp : {2, 4}) {
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 12;
    problem.q_heads = 4, problem.kv_heads = 4;
    problem.head_dim = 4, problem.v_head_dim = 4;
    problem.causal = true;
    const AttentionTestData data(problem, 1);
    AttentionProblem other_problem = problem;
    other_problem.causal = false;
    for (const std::string& strategy_name : strategy_names()) {
      const Strategy strategy = named_strategy({strategy_name, {}, {}}, problem, cp);
      const AttentionRequest request{problem, ::cp::testing::first_ranks(cp), strategy, true, {}};
      const AttentionRequest other{other_problem, ::cp::testing::first_ranks(cp), strategy, true, {}};
      const std::vector<Plan> forward = attention_plans(request, AttentionPass::forward),
                              backward = attention_plans(request, AttentionPass::backward),
                              others = attention_plans(other, AttentionPass::forward);
      const std::int64_t first = num_collectives(forward.front());
      for (InjectedFault fault : ::cp::testing::faults_of(GetParam(), forward, 2, 1)) {
        for (const bool in_backward : {false, true}) {
          if (in_backward) fault.collective += first;
          for (const bool compare_digests : {false, true}) {
            const FaultRunOptions options{.seed = 3, .compare_digests = compare_digests};
            const FaultVerdict verdict =
                judge_attention(data, request, forward, backward, {{fault}}, options, others);
            EXPECT_TRUE(verdict.holds())
                << to_string(strategy) << " on " << cp << ", " << to_string(fault) << ": "
                << name(verdict.kind) << ", " << verdict.error_name() << ": " << verdict.message;
            took_place += verdict.kind != FaultVerdict::Kind::no_fault;
          }
        }
      }
    }
  }
  const bool has_places = GetParam() != FaultKind::other_root && GetParam() != FaultKind::other_reduction;
  EXPECT_TRUE(took_place > 0 || !has_places);
}

std::string kind_name(const ::testing::TestParamInfo<FaultKind>& info) {
  return std::string(name(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kinds, RedistributionFaults, ::testing::ValuesIn(all_kinds()), kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, AttentionFaults, ::testing::ValuesIn(all_kinds()), kind_name);

// ---- what the verdicts mean -----------------------------------------------------------------------------------------

FaultVerdict verdict_of(const InjectedFault& fault, bool took_place, const std::function<void()>& run) {
  return judge_faults({{fault}}, [&](std::vector<bool>& places) {
    places = {took_place};
    run();
  });
}

TEST(FaultVerdict, SaysHowARunEnded) {
  using Kind = FaultVerdict::Kind;
  const InjectedFault drop{.kind = FaultKind::drop, .rank = 1, .peer = 2}, slow{.kind = FaultKind::slow_rank},
      skip{.kind = FaultKind::skip_collective, .rank = 1}, dead{.kind = FaultKind::dead_rank, .rank = 1};
  const auto nothing = [] {};
  const auto wrong_data = [] { throw CheckFailure("3 elements are wrong"); };
  const auto lost = [](Rank from, Rank to) {
    return [=] { throw CheckFailure("", {.culprits = {from, to}, .sender = from, .receiver = to}); };
  };
  const auto mismatch = [](std::vector<Rank> ranks, bool is_tie) {
    return [=] { throw CollectiveMismatch("", {.culprits = ranks, .is_tie = is_tie}); };
  };
  EXPECT_EQ(verdict_of(drop, false, nothing).kind, Kind::no_fault);
  EXPECT_EQ(verdict_of(drop, false, wrong_data).kind, Kind::false_alarm);
  EXPECT_EQ(verdict_of(drop, true, nothing).kind, Kind::silent);
  EXPECT_EQ(verdict_of(drop, true, wrong_data).kind, Kind::unnamed);
  EXPECT_EQ(verdict_of(drop, true, lost(1, 2)).kind, Kind::reported);
  EXPECT_EQ(verdict_of(drop, true, lost(2, 1)).kind, Kind::wrong_culprit);
  EXPECT_EQ(verdict_of(drop, true, mismatch({1}, false)).kind, Kind::wrong_culprit);
  EXPECT_EQ(verdict_of(slow, true, nothing).kind, Kind::tolerated);
  EXPECT_EQ(verdict_of(slow, true, lost(1, 2)).kind, Kind::false_alarm);
  EXPECT_EQ(verdict_of(skip, true, mismatch({1}, false)).kind, Kind::reported);
  EXPECT_EQ(verdict_of(skip, true, mismatch({0, 1}, true)).kind, Kind::reported);
  EXPECT_EQ(verdict_of(skip, true, mismatch({0, 1}, false)).kind, Kind::wrong_culprit);
  EXPECT_EQ(verdict_of(skip, true, mismatch({0, 1, 2}, true)).kind, Kind::wrong_culprit);
  EXPECT_EQ(verdict_of(skip, true, mismatch({2}, false)).kind, Kind::wrong_culprit);
  EXPECT_EQ(verdict_of(dead, true, mismatch({1}, false)).kind, Kind::wrong_culprit);  // of another kind
  EXPECT_EQ(verdict_of(dead, true, [] { throw PeerLost("", {.culprits = {1}}); }).kind, Kind::reported);
  EXPECT_FALSE(FaultVerdict{.kind = Kind::unnamed}.holds());
  EXPECT_TRUE(FaultVerdict{.kind = Kind::reported}.holds());
}

TEST(FaultVerdict, WithoutChecksumsAFlippedBitIsFoundByTheDataAlone) {
  const Redistribution right = plan_of(kMoves[1]);
  const std::vector<Plan> plans = lower_all(right);
  const InjectedFault flip{.kind = FaultKind::corrupt, .rank = 1, .peer = 2, .collective = 0, .amount = 3};
  const FaultVerdict blind = judge_redistribution(right, plans, {{flip}}, {.checksums = Checksums::off});
  EXPECT_EQ(blind.kind, FaultVerdict::Kind::unnamed) << blind.message;
  EXPECT_EQ(judge_redistribution(right, plans, {{flip}}, {}).kind, FaultVerdict::Kind::reported);
}

}  // namespace
}  // namespace cp::sim
