// Processes that are killed or stopped: what the others are told, and when.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::RendezvousClient;
using runtime::RendezvousServer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr auto kHeartbeatTimeout = 2s;

// Three processes with the server in that of rank 0. Rank `victim` gets the signal at its third collective,
// while the others wait for it; they return what they were told and after how many milliseconds, as "ms
// text". The victim of SIGSTOP is killed at the end.
std::vector<std::string> run_with_victim(Rank victim, int signal) {
  const testing::TemporaryDirectory directory;
  const std::string port_file = directory.path() + "/port";
  return testing::run_processes(3, [&](Rank rank) {
    std::unique_ptr<RendezvousServer> server;
    if (rank == 0) {
      auto options = testing::server_options(3);
      options.heartbeat_timeout = kHeartbeatTimeout;
      server = std::make_unique<RendezvousServer>(options);
      std::ofstream(port_file + ".new") << server->port();
      std::filesystem::rename(port_file + ".new", port_file);
    }
    if (!testing::soon([&] { return std::filesystem::exists(port_file); })) return std::string("no port");
    std::uint16_t port = 0;
    std::ifstream(port_file) >> port;
    RendezvousClient client({.port = port,
                             .job_id = "job",
                             .rank = rank,
                             .world_size = 3,
                             .token = testing::kToken,
                             .timeout = testing::kPatience});
    client.set_progress("cp[0,1,2]", 2, "all_gather", {0, 7});
    client.ranks();
    client.barrier("start");
    const auto pid = static_cast<pid_t>(client.ranks()[static_cast<std::size_t>(victim)].pid);
    // By files, since the server may be about to stop.
    const auto all_others = [&](const std::string& what) {
      if (rank != victim) std::ofstream(str(directory.path(), "/", what, rank)).flush();
      return testing::soon([&] {
        for (Rank other = 0; other < 3; ++other) {
          if (other != victim && !std::filesystem::exists(str(directory.path(), "/", what, other)))
            return false;
        }
        return true;
      });
    };
    if (!all_others("knows the pid")) return std::string("some are late");
    if (rank == victim) raise(signal);
    const Clock::time_point begin = Clock::now();
    const std::string error = testing::error_of([&] { client.barrier("never"); });
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
    // The victim is killed when both have been told, and nobody ends before: that would be news to the other.
    if (!all_others("was told")) return std::string("some are late");
    kill(pid, SIGKILL);
    return str(waited, " ", error);
  });
}

std::int64_t milliseconds_of(const std::string& said) { return std::stoll(said); }

// Beyond the deadline ten times the promise, for a machine as much slower. What told them is in the words.
constexpr std::int64_t kDeadlineMs = 11 * std::chrono::milliseconds(kHeartbeatTimeout).count();

TEST(RendezvousProcesses, AKilledRankIsNamedAtOnce) {
  const auto said = run_with_victim(2, SIGKILL);
  EXPECT_THAT(said[2], HasSubstr("killed by signal 9"));
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(said[rank], AllOf(HasSubstr(" peer_lost: the job has failed: rank 2 (host "),
                                  HasSubstr("at all_gather #2 of cp[0,1,2]: its connection was ")));
    EXPECT_LT(milliseconds_of(said[rank]), kDeadlineMs);
  }
}

TEST(RendezvousProcesses, AStoppedRankIsNamedAtTheDeadline) {
  const auto said = run_with_victim(1, SIGSTOP);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(said[rank],
                AllOf(HasSubstr(" peer_lost: the job has failed: rank 1 (host "),
                      HasSubstr("no heartbeat for 2 s: the process is stopped or its machine cannot")));
    EXPECT_LT(milliseconds_of(said[rank]), kDeadlineMs);
  }
}

TEST(RendezvousProcesses, AStoppedServerIsNamedByAllRanks) {
  const auto said = run_with_victim(0, SIGSTOP);
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_THAT(said[rank], AllOf(HasSubstr(" peer_lost: the job has failed: the rendezvous at 127.0.0.1:"),
                                  HasSubstr("has not answered for 2 s")));
    EXPECT_LT(milliseconds_of(said[rank]), kDeadlineMs);
  }
}

TEST(RendezvousProcesses, AKilledServerIsNamedByAllRanks) {
  const auto said = run_with_victim(0, SIGKILL);
  for (const std::size_t rank : {1U, 2U})
    EXPECT_THAT(said[rank], HasSubstr(" peer_lost: the job has failed: the rendezvous at 127.0.0.1:"));
}

}  // namespace
}  // namespace cp
