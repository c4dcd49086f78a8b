// Many mutants: every operator is caught, what survives is kept as a case, and none of it depends on the
// threads.
#include "sim/fuzz/mutate/campaign.h"

#include <algorithm>
#include <atomic>
#include <set>

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "sim/fuzz/mutate/base_cases.h"
#include "traces/fuzz_case.h"

namespace cp::testing {
namespace {

using sim::MutateOptions;
using sim::MutateResult;
using sim::MutationKind;
using sim::Outcome;
using sim::run_mutants;
using sim::Tally;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

MutateOptions options(std::int64_t cases, std::uint64_t seed, int jobs) {
  MutateOptions made;
  made.cases = cases, made.seed = seed, made.jobs = jobs, made.per_subject = 20;
  return made;
}

TEST(MutateCampaign, OperatorsAreCaughtAndFewSurvive) {
  const MutateResult result = run_mutants(options(3000, 5, 2));
  EXPECT_THAT(result.broken, IsEmpty());
  EXPECT_FALSE(result.fails());
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.total().tried(), 3000);
  std::map<MutationKind, Tally> by_kind;
  std::set<std::pair<MutationKind, std::string>> combinations;
  std::set<std::string> targets;
  for (const auto& [key, tally] : result.tallies) {
    const auto& [kind, strategy, target] = key;
    by_kind[kind].add(tally);
    combinations.insert({kind, strategy});
    targets.insert(target);
  }
  EXPECT_GE(combinations.size(), 60U);
  EXPECT_GE(targets.size(), 4U);
  for (const auto& [kind, tally] : by_kind) {
    const std::int64_t caught = tally.count(Outcome::check) + tally.count(Outcome::fabric) +
                                tally.count(Outcome::ledger) + tally.count(Outcome::result);
    EXPECT_GT(caught, 0) << name(kind);
  }
}

TEST(MutateCampaign, DoesNotDependOnTheThreads) {
  MutateOptions alone = options(400, 11, 1), together = options(400, 11, 3);
  for (MutateOptions* each : {&alone, &together})
    each->listed = {sim::kOutcomes.begin(), sim::kOutcomes.end()};
  const MutateResult one = run_mutants(alone), three = run_mutants(together);
  EXPECT_EQ(one.listed, three.listed);
  EXPECT_THAT(one.listed, SizeIs(400));
  // Each set of plans is another one.
  EXPECT_FALSE(std::equal(one.listed.begin(), one.listed.begin() + 20, one.listed.begin() + 20));
  EXPECT_NE(one.listed, run_mutants([&] {
                          MutateOptions other = alone;
                          other.seed = 12;
                          return other;
                        }())
                            .listed);
}

// A detector that is away is a hole, which the campaign finds: its mutants survive, as cases that show it
// again.
TEST(MutateCampaign, SurvivorsAreCasesThatSurviveAgain) {
  MutateOptions blind = options(400, 3, 2);
  blind.trial.absent = {Outcome::ledger, Outcome::result};
  const MutateResult result = run_mutants(blind);
  ASSERT_THAT(result.survivors, Not(IsEmpty()));
  EXPECT_EQ(static_cast<std::int64_t>(result.survivors.size()), result.total().count(Outcome::survivor));
  EXPECT_TRUE(result.fails());
  std::size_t caught = 0;
  for (const sim::Survivor& survivor : result.survivors) {
    const proto::FuzzCase job = read_case_text(write_case_text(survivor.job), "case.txtpb");
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(job, survivor.job));
    EXPECT_EQ(job.finding().property(), "mutant survives");
    const auto subject = sim::make_subject(job);
    const auto again = attempt(*subject, job.mutation(), blind.trial);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->judgement.outcome, Outcome::survivor);
    EXPECT_EQ(again->mutation.text, job.finding().message());
    const Outcome seeing = attempt(*subject, job.mutation())->judgement.outcome;
    caught += seeing == Outcome::ledger || seeing == Outcome::result ? 1 : 0;
  }
  EXPECT_GE(2 * caught, result.survivors.size());
}

TEST(MutateCampaign, StopsWhenTold) {
  std::atomic<bool> stop{false};
  MutateOptions stopped = options(1'000'000, 1, 2);
  stopped.stop = &stop;
  stopped.progress = [&](std::int64_t done, std::int64_t) {
    if (done >= 30) stop = true;
  };
  const MutateResult result = run_mutants(stopped);
  EXPECT_TRUE(result.stopped);
  EXPECT_GE(result.total().tried(), 30);
  EXPECT_LT(result.total().tried(), 1'000'000);
}

// Compilers differ in the order in which they evaluate arguments: what is drawn must not.
TEST(MutateCampaign, BaseCasesAreTheSameOnEveryMachine) {
  sim::Numbers draws(42);
  proto::FuzzCase attention, redistribution;
  *attention.mutable_attention() = sim::draw_base_attention(draws, "ring");
  *redistribution.mutable_redistribute() = sim::draw_base_redistribution(draws);
  EXPECT_EQ(write_case_text(attention), R"text(# proto-file: traces/fuzz_case.proto
# proto-message: cp.proto.FuzzCase

attention {
  mesh: "cp=3"
  strategy: "ring"
  rotation: "exchange"
  balance: "cost:2"
  dkv_dtype: "input"
  merge_dtype: "input"
  seq_len: 13
  kv_len: 13
  batch: 1
  q_heads: 4
  kv_heads: 2
  head_dim: 3
  v_head_dim: 3
  dtype: f16
  format: "bnsd"
  causal: true
  backward: true
  seed: 3186776853
  target: "host"
  gradients: "dk,dv"
  lse: "computed"
}
)text");
  EXPECT_EQ(write_case_text(redistribution), R"text(# proto-file: traces/fuzz_case.proto
# proto-message: cp.proto.FuzzCase

redistribute {
  mesh: "a=4"
  shape: "2x8"
  dtype: i64
  from: "R"
  to: "S(1)"
  objective: bytes
  seed: 2168405139
  target: "host"
  gradient: replicated
}
)text");
}

}  // namespace
}  // namespace cp::testing
