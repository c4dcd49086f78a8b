// The two worlds do the same: generated scenarios on real processes over Gloo and on the simulated fabric
// leave identical traces, issued, observed and digests, and every rank's results are one device's.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "sim/scenario/rank_job.h"
#include "tests/identity/identity_case.h"
#include "tests/identity/scenario_generator.h"
#include "tests/runtime/processes.h"
#include "traces/scenario.h"
#ifdef CP_HAVE_GLOO
#include "runtime/gloo/gloo_device.h"
#endif

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IdentityCase;

TEST(IdentityCase, IsExplainedByAScenarioThatPlansForItsTarget) {
  for (const proto::Scenario& scenario :
       {testing::attention_scenario(0, 2), testing::redistribute_scenario(0, 2)}) {
    const IdentityCase made = testing::make_identity_case("explained", scenario, gpu_target("sm90"));
    EXPECT_THAT(testing::explain(made, "cprun --backend nccl", "a finding"),
                AllOf(HasSubstr("a finding\n"), HasSubstr("target: \"sm90\"\n"),
                      HasSubstr("again: cprun --backend nccl --nproc-per-node 2 --verify ")));
    const proto::Scenario again = read_scenario_file(::testing::TempDir() + "explained.txtpb");
    const auto job = sim::make_rank_job(again, 0);
    EXPECT_FALSE(job->plans().empty());
    for (const Plan& plan : job->plans()) EXPECT_EQ(plan.target.name, "sm90");
  }
}

#ifndef CP_HAVE_GLOO

TEST(Identity, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

// On each number of processes; 34 x 8 scenarios in all.
constexpr int kRedistributions = 10, kAttentions = 16, kRecurrences = 8;

std::vector<IdentityCase> cases_for(int ranks) {
  std::vector<IdentityCase> cases;
  for (std::uint64_t seed = 0; seed < kRedistributions; ++seed)
    cases.push_back(testing::make_identity_case(str("redistribute_", ranks, "_", seed),
                                                testing::redistribute_scenario(seed, ranks), host_target()));
  for (std::uint64_t seed = 0; seed < kAttentions; ++seed)
    cases.push_back(testing::make_identity_case(str("attention_", ranks, "_", seed),
                                                testing::attention_scenario(seed, ranks), host_target()));
  for (std::uint64_t seed = 0; seed < kRecurrences; ++seed)
    cases.push_back(testing::make_identity_case(str("recurrence_", ranks, "_", seed),
                                                testing::recurrence_scenario(seed, ranks), host_target()));
  return cases;
}

class Identity : public ::testing::TestWithParam<int> {};

TEST_P(Identity, GeneratedScenariosLeaveTheTracesOfTheSimulatedFabric) {
  const int ranks = GetParam();
  const std::vector<IdentityCase> cases = cases_for(ranks);
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(ranks, [&](Rank rank) {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
    return testing::run_cases(cases, device, "cprun");
  });
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    EXPECT_TRUE(said[rank].empty()) << "rank " << rank << said[rank];
}

INSTANTIATE_TEST_SUITE_P(Processes, Identity, ::testing::Range(1, 9), ::testing::PrintToStringParamName());

// What the seeds happen to draw: every strategy, and every kind of mask, forward and backward.
TEST(IdentityScenarios, HoldEveryKindOfAttention) {
  std::set<std::string> strategies;
  std::map<std::string, int> kinds;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < kAttentions; ++seed) {
      const proto::Attention job = testing::attention_scenario(seed, ranks).run();
      strategies.insert(job.strategy());
      kinds["backward"] += job.backward(), kinds["forward alone"] += !job.backward();
      kinds["window"] += job.has_window(), kinds["documents"] += !job.documents().empty();
      kinds["grouped heads"] += job.q_heads() > job.kv_heads();
      kinds["uneven"] += job.seq_len() % ranks != 0;
      kinds["some gradients"] += !job.gradients().empty();
      kinds["lse where it was computed"] += job.lse() == "computed";
      kinds["documents of each entry"] += job.documents().find(';') != std::string::npos;
      kinds["format " + job.format()] += 1;
      kinds["merges beside"] += job.merges() == "beside";
      kinds["chunks"] += job.has_chunk(), kinds["softcap"] += job.softcap() != 0;
      kinds["sinks"] += job.sinks(), kinds["dropout"] += job.dropout() != 0;
      kinds["latent rows"] += job.latent() != 0, kinds["latent rows that travel"] += job.keys() == "latent";
    }
  }
  EXPECT_EQ(strategies, std::set<std::string>(strategy_names().begin(), strategy_names().end()));
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 10) << kind;
}

TEST(IdentityScenarios, HoldEveryKindOfRecurrence) {
  std::map<std::string, int> kinds;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < kRecurrences; ++seed) {
      const proto::Recurrence job = testing::recurrence_scenario(seed, ranks).recurrence();
      ++kinds[job.rule()], ++kinds[job.strategy()];
      kinds["backward"] += job.backward(), kinds["documents"] += !job.documents().empty();
      kinds["shared key heads"] += job.has_value_heads();
      kinds["uneven"] += job.seq_len() % ranks != 0;
    }
  }
  for (const char* kind : {"decay", "delta", "sequential", "recursive_doubling", "all_gather", "heads",
                           "backward", "documents", "shared key heads", "uneven"})
    EXPECT_GE(kinds[kind], 5) << kind;
}

// Gradients by both rules, with each scale, and the plain ones that they are drawn among.
TEST(IdentityScenarios, HoldEveryKindOfGradient) {
  std::map<std::string, int> kinds;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < kRedistributions; ++seed) {
      const proto::Redistribute job = testing::redistribute_scenario(seed, ranks).redistribute();
      ++kinds[proto::Redistribute::Gradient_Name(job.gradient())];
      ++kinds[proto::Redistribute::GradientScale_Name(job.gradient_scale())];
    }
  }
  for (const char* kind : {"forward", "adjoint", "replicated", "none", "up", "down"})
    EXPECT_GE(kinds[kind], 3) << kind;
}

#endif

}  // namespace
}  // namespace cp
