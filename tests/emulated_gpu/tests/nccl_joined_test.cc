// Ranks of a job that prepare different plans, or none, are found while others wait for them: a meeting of
// ranks is a collective to the server. Ranks are threads, each with an emulated GPU.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "tests/rendezvous/test_job.h"

namespace cp {
namespace {

using runtime::RendezvousClient;
using runtime::RendezvousServer;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kTwoRanks = 2;

runtime::JobEnvironment environment(Rank rank) {
  runtime::JobEnvironment job;
  job.rank = job.local_rank = rank, job.world_size = kTwoRanks, job.backend = "nccl";
  return job;
}

Plan one_sum(Rank self, const std::string& group) {
  PlanBuilder b(self, host_target());
  const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
  b.add(b.stream("main"), AllReduce{b.group(group, {0, 1}), ReduceOp::sum, x, x});
  return std::move(b).build({});
}

// A server whose patience is short.
runtime::ServerOptions impatient() {
  runtime::ServerOptions options = testing::server_options(kTwoRanks);
  options.heartbeat_timeout = std::chrono::seconds(2);
  return options;
}

TEST(NcclJoined, RanksThatPrepareInOtherOrdersAreADeadlock) {
  const RendezvousServer server(impatient());
  const auto errors = testing::run_ranks(kTwoRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kTwoRanks);
    runtime::JoinedDevice device(environment(rank), client);
    device.prepare(one_sum(rank, rank == 0 ? "a" : "b"), {});
  });
  EXPECT_THAT(errors,
              ::testing::Each(AllOf(HasSubstr("deadlock: rank 0 waits in prepare #0 of plans of a[0,1] "
                                              "for rank 1, rank 1 waits in prepare #0 of plans of b[0,1] "
                                              "for rank 0"),
                                    HasSubstr("in the same order on all ranks"))));
}

TEST(NcclJoined, ARankThatEndsWithoutAPlanThatOthersPrepareIsAMismatch) {
  const RendezvousServer server(impatient());
  const auto errors = testing::run_ranks(kTwoRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kTwoRanks);
    runtime::JoinedDevice device(environment(rank), client);
    const Plan plan = one_sum(rank, "a");
    execute(plan, device);
    if (rank == 0) device.prepare(plan, {});
    client->goodbye();
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("plans of a[0,1]")));
}

// It computes before it prepares, for longer than the timeout and than the server's patience: it lives.
TEST(NcclJoined, ARankThatComesLateToPrepareIsWaitedFor) {
  const RendezvousServer server(impatient());
  const auto errors = testing::run_ranks(kTwoRanks, [&](Rank rank) {
    const std::shared_ptr<RendezvousClient> client = testing::join(server, rank, kTwoRanks);
    runtime::JobEnvironment job = environment(rank);
    job.timeout = std::chrono::seconds(1);
    runtime::JoinedDevice device(job, client);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
    execute(one_sum(rank, "a"), device);
    client->goodbye();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

}  // namespace
}  // namespace cp
