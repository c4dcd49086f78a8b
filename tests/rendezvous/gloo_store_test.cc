// Gloo's contexts on three processes that find one another through the rendezvous alone.
#ifdef CP_HAVE_GLOO
#include <filesystem>
#include <fstream>

#include "runtime/gloo/gloo_device.h"
#include "runtime/gloo/rendezvous_store.h"
#endif

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"
#include "tests/runtime/processes.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(RendezvousStore, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

using runtime::RendezvousClient;
using runtime::RendezvousServer;

// Rank 0 has the server in its process, and tells its port by a file.
std::string run_rank(Rank rank, const std::string& port_file, const testing::PlanCase& plan_case) {
  constexpr int kRanks = 3;
  std::unique_ptr<RendezvousServer> server;
  if (rank == 0) {
    server = std::make_unique<RendezvousServer>(testing::server_options(kRanks));
    std::ofstream(port_file + ".new") << server->port();
    std::filesystem::rename(port_file + ".new", port_file);
  }
  if (!testing::soon([&] { return std::filesystem::exists(port_file); })) return "no port";
  std::uint16_t port = 0;
  std::ifstream(port_file) >> port;
  const auto client = std::make_shared<RendezvousClient>(runtime::ClientOptions{
      .port = port, .job_id = "job", .rank = rank, .world_size = kRanks, .token = testing::kToken});
  std::string wrong;
  {
    runtime::GlooDevice device({.rank = rank, .store = std::make_shared<runtime::RendezvousStore>(client)});
    wrong = compare_outputs(plan_case, rank, run_plan_case(plan_case, rank, device, nullptr));
  }
  client->barrier("all are done");
  client->goodbye();
  if (rank != 0) return wrong;
  // The server stays until all have left.
  const bool left = testing::soon([&] {
    return std::ranges::all_of(server->ranks(),
                               [](const auto& status) { return status.state == runtime::RankState::left; });
  });
  return left && !server->first_failure() ? wrong : "not all have left";
}

TEST(RendezvousStore, ConnectsGlooOnThreeProcesses) {
  const testing::PlanCase plan_case =
      testing::uneven_reduce(3, 7, testing::UnevenReduce::exchange, DType::f32);
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(testing::run_processes(
                3, [&](Rank rank) { return run_rank(rank, directory.path() + "/port", plan_case); }),
            std::vector<std::string>(3));
}

TEST(RendezvousStore, KeepsPrefixesApartAndTellsWhoIsMissing) {
  RendezvousServer server(testing::server_options(1));
  const auto client = std::make_shared<RendezvousClient>(testing::client_options(server, 0, 1));
  runtime::RendezvousStore a(client, "a/"), b(client, "b/");
  a.set("key", {'1', '\0', '2'});
  EXPECT_EQ(a.get("key"), (std::vector<char>{'1', '\0', '2'}));
  a.wait({"key"});
  EXPECT_EQ(client->get("a/key").size(), 3U);
  EXPECT_THROW(b.wait({"key"}, std::chrono::milliseconds(20)), runtime::Timeout);
}

#endif

}  // namespace
}  // namespace cp
