// A rank's device as part of a job, and what the server is told of it.
#include "runtime/joined_device.h"

#include <array>
#include <map>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/job_environment.h"
#include "runtime/rendezvous/compare_plans.h"
#include "shared/plan/execute.h"
#include "tests/rendezvous/test_job.h"
#include "tests/support/hand_plans.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

#ifdef CP_HAVE_GLOO

using runtime::RendezvousClient;
using runtime::RendezvousServer;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int kRanks = 2;

// How many collectives each device of a job runs, one device after the other; what the server has heard of
// rank 0: the number of the last collective of each group.
std::map<std::string, std::int64_t> heard_of_devices(const std::vector<int>& collectives_of) {
  RendezvousServer server(testing::server_options(kRanks));
  const auto errors = testing::run_ranks(kRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kRanks);
    runtime::JobEnvironment job;
    job.rank = rank, job.world_size = kRanks;
    const Plan plan = testing::all_reduce_plan(rank, {0, 1});
    int number = 0;
    for (const int collectives : collectives_of) {
      runtime::JoinedDeviceOptions options;
      options.name = str("device ", number++, "/");
      runtime::JoinedDevice device(job, client, std::move(options));
      std::array<float, 4> x{};
      for (int i = 0; i < collectives; ++i) execute(plan, device, {{0, x.data(), sizeof x}});
      client->ranks();  // tells the server where this rank is
      client->barrier("done");
    }
    client->goodbye();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  std::map<std::string, std::int64_t> last;
  const std::vector<runtime::RankStatus> ranks = server.ranks();
  for (const auto& [group, progress] : ranks.front().groups) last[group] = progress.sequence;
  return last;
}

// Each device counts from 0. In one group, a late rank's collective of the first device would be compared
// with an early one's of the second.
TEST(JoinedDevice, DevicesOneAfterTheOtherHaveGroupsOfTheirOwn) {
  EXPECT_THAT(heard_of_devices({5, 2}),
              UnorderedElementsAre(Pair("device 0/all[0,1]", 4), Pair("device 1/all[0,1]", 1)));
}

TEST(JoinedDevice, IsOfTheJobsBackend) {
  RendezvousServer server(testing::server_options(kRanks));
  const auto errors = testing::run_ranks(kRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kRanks);
    runtime::JobEnvironment job;
    job.rank = rank, job.world_size = kRanks, job.backend = "mpi";
    EXPECT_THAT(testing::message_of([&] { const runtime::JoinedDevice device(job, client); }),
                HasSubstr("'mpi' is not a backend; use gloo or nccl"));
    job.backend = "gloo";
    const runtime::JoinedDevice device(job, client);
    EXPECT_EQ(device.rank(), rank);
    EXPECT_EQ(device.target(), host_target());
    EXPECT_TRUE(device.host_memory());
    client->goodbye();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

// A job whose plans are each another makes the server no larger: what ranks told each other of them is
// forgotten when all have read it.
TEST(JoinedDevice, ManyPlansLeaveNoKeysOnTheServer) {
  constexpr int kPlans = 20;
  RendezvousServer server(testing::server_options(kRanks));
  std::array<std::size_t, kPlans> keys{};
  const auto errors = testing::run_ranks(kRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kRanks);
    runtime::JobEnvironment job;
    job.rank = rank, job.world_size = kRanks;
    runtime::JoinedDevice device(job, client);
    runtime::GroupPlanComparison comparison(*client);
    for (int i = 0; i < kPlans; ++i) {
      Plan plan = testing::all_reduce_plan(rank, {0, 1});
      plan.inputs.low = static_cast<std::uint64_t>(i);
      comparison.compare(plan);
      std::array<float, 4> x{};
      execute(plan, device, {{0, x.data(), sizeof x}});
      client->barrier("done");
      if (rank == 0) keys[static_cast<std::size_t>(i)] = server.num_keys();
      client->barrier("counted");
    }
    client->goodbye();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_THAT(keys, ::testing::Each(0U));
}

#else

TEST(JoinedDevice, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#endif

}  // namespace
}  // namespace cp
