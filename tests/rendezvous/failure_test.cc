// What the ranks of a job learn when one of them fails or does not come.
#include <atomic>
#include <future>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::Failure;
using runtime::RankState;
using runtime::RendezvousServer;
using ::testing::AllOf;
using ::testing::Each;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::run_ranks;
using testing::server_options;
using testing::soon;

// ---- deadlines

TEST(RendezvousTimeout, OfABarrierNamesWhoHasNotComeAndTheJobGoesOn) {
  RendezvousServer server(server_options(4));
  const auto clients = testing::join_all(server, 4);
  std::thread other([&] { EXPECT_EQ(error_of([&] { clients[2]->barrier("start"); }), ""); });
  // The other is in it, however slow the machine: rank 0 tries until it is named.
  std::string error;
  EXPECT_TRUE(soon([&] {
    error = error_of([&] { clients[0]->barrier("start", 100ms); });
    return error.find("wait") != error.rfind("waits");
  }));
  EXPECT_EQ(error,
            "timeout: barrier 'start' after 100 ms: ranks 1, 3 of 4 have not arrived; ranks 0, 2 wait");
  EXPECT_THAT(run_ranks(4,
                        [&](Rank rank) {
                          if (rank != 2) clients[static_cast<std::size_t>(rank)]->barrier("start");
                        }),
              Each(IsEmpty()));
  other.join();
}

TEST(RendezvousTimeout, OfAKeyTellsWhoIsNotConnected) {
  RendezvousServer server(server_options(4));
  const auto clients = {testing::join(server, 0, 4), testing::join(server, 2, 4)};
  clients.begin()[1]->goodbye();
  EXPECT_EQ(
      error_of([&] { clients.begin()[0]->get("k", 50ms); }),
      "timeout: key 'k' is not set after 50 ms; rank 0 waits (never connected: ranks 1, 3; left: rank 2)");
  EXPECT_EQ(
      error_of([&] {
        clients.begin()[0]->wait({"a", "b"}, 0ms);
      }),
      "timeout: key 'a' is not set after 0 ms; rank 0 waits (never connected: ranks 1, 3; left: rank 2)");
  EXPECT_THAT(
      error_of([&] { clients.begin()[0]->all_gather("g", "x", 50ms); }),
      HasSubstr("timeout: all_gather 'g' after 50 ms: ranks 1, 2, 3 of 4 have not arrived; rank 0 waits"));
  EXPECT_FALSE(server.first_failure());
}

// ---- the first failure

// A job of which one rank fails while all others wait in a barrier.
class FailingJob : public ::testing::Test {
 protected:
  void start(int world_size, std::chrono::milliseconds heartbeat_timeout = 30s) {
    auto options = server_options(world_size);
    options.heartbeat_timeout = heartbeat_timeout;
    options.on_failure = [this](const Failure& failure) { told_.set_value(failure); };
    server_ = std::make_unique<RendezvousServer>(options);
    for (Rank rank = 0; rank < world_size; ++rank)
      clients_.push_back(testing::join(*server_, rank, world_size));
  }
  // Runs fail() while the others wait; their errors.
  std::vector<std::string> errors_while_waiting(Rank failing, const std::function<void()>& fail) {
    std::atomic<int> handled = 0;
    auto errors = run_ranks(static_cast<int>(clients_.size()), [&](Rank rank) {
      if (rank == failing) return fail();
      auto& client = clients_[static_cast<std::size_t>(rank)];
      client->on_failure([&](const Failure&) { ++handled; });
      client->barrier("never");
    });
    EXPECT_TRUE(soon([&] { return handled == static_cast<int>(clients_.size()) - 1; }));
    errors.erase(errors.begin() + failing);
    return errors;
  }
  Failure told() { return told_.get_future().get(); }

  std::promise<Failure> told_;
  std::unique_ptr<RendezvousServer> server_;
  std::vector<std::unique_ptr<runtime::RendezvousClient>> clients_;
};

TEST_F(FailingJob, AClosedConnectionIsNamedToAllWhoWait) {
  start(4);
  clients_[2]->set_progress("cp[0,1,2,3]", 17, "all_gather", {1, 2}, 40);
  clients_[2]->ranks();  // sends it
  const auto errors = errors_while_waiting(2, [&] { clients_[2].reset(); });
  EXPECT_THAT(
      errors,
      Each(AllOf(HasSubstr("peer_lost: the job has failed: rank 2 (host "), HasSubstr(str("pid ", getpid())),
                 HasSubstr("at all_gather #17 of cp[0,1,2,3], step 40: its connection was closed by the "
                           "other side without a goodbye"))));
  EXPECT_EQ(told().rank, 2);
  EXPECT_EQ(server_->first_failure()->rank, 2);
  EXPECT_EQ(server_->ranks()[2].state, RankState::lost);
  // Whoever comes later hears the same, at once, and has it as data.
  EXPECT_THAT(error_of([&] { clients_[0]->set("k", "v"); }),
              HasSubstr("peer_lost: the job has failed: rank 2"));
  try {
    clients_[0]->set("k", "v");
    ADD_FAILURE() << "no error";
  } catch (const runtime::PeerLost& error) {
    EXPECT_EQ(
        error.facts(),
        (ErrorFacts{.culprits = {2}, .operation = "all_gather", .group = "cp[0,1,2,3]", .sequence = 17}));
  }
  bool called = false;
  clients_[0]->on_failure([&](const Failure& failure) { called = failure.rank == 2; });
  EXPECT_TRUE(called);
  EXPECT_EQ(clients_[1]->failure()->rank, 2);
}

TEST_F(FailingJob, ALateComerHearsOfIt) {
  RendezvousServer server(server_options(2));
  testing::join(server, 0, 2).reset();
  ASSERT_TRUE(soon([&] { return server.first_failure().has_value(); }));
  const auto late = testing::join(server, 1, 2);
  EXPECT_THAT(error_of([&] { late->barrier("b"); }), HasSubstr("peer_lost: the job has failed: rank 0"));
}

TEST_F(FailingJob, AnErrorThatARankReportsIsTheCauseAndWhatFollowsIsNot) {
  start(3);
  const auto errors = errors_while_waiting(1, [&] {
    clients_[1]->report_failure(ErrorKind::check_failed, "wrong result\x01 of step 3");
    clients_[1].reset();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("peer_lost: "), HasSubstr("wrong result? of step 3"))));
  clients_[0]->report_failure(ErrorKind::peer_lost, "connection to rank 1 broke");
  clients_[0].reset();
  ASSERT_TRUE(soon([&] { return !server_->consequences().empty(); }));
  EXPECT_EQ(server_->first_failure()->kind, ErrorKind::check_failed);
  EXPECT_EQ(server_->first_failure()->rank, 1);
  EXPECT_EQ(server_->consequences()[0].rank, 0);
}

TEST_F(FailingJob, WhatTheLauncherSeesIsToldToTheRanks) {
  start(2);
  const auto errors = errors_while_waiting(1, [&] {
    server_->report_failure({ErrorKind::peer_lost, 1, "", 0, "killed by signal 9", {}});
  });
  EXPECT_THAT(errors, Each(HasSubstr("killed by signal 9")));
  EXPECT_EQ(told().pid, getpid());
}

// A rank that is there and silent, as one that SIGSTOP has stopped.
TEST_F(FailingJob, MissingHeartbeatsAreNamed) {
  auto options = server_options(2);
  options.heartbeat_timeout = 2s;
  RendezvousServer server(options);
  const auto client = testing::join(server, 0, 2);
  RawPeer stopped(server.port());
  stopped.join(testing::handshake_of(1, 2), testing::kToken);
  EXPECT_THAT(error_of([&] { client->barrier("b"); }),
              HasSubstr("peer_lost: the job has failed: rank 1 (host elsewhere, pid 7): no heartbeat for 2 "
                        "s: host elsewhere "
                        "with rank 1 is down or cut off"));
}

TEST_F(FailingJob, RanksThatComputeForLongAreNotLost) {
  start(2, 2s);
  // Longer than the timeout: the clients' threads beat meanwhile.
  EXPECT_THAT(error_of([&] { clients_[0]->get("never", 2500ms); }), HasSubstr("timeout: key 'never'"));
  EXPECT_FALSE(server_->first_failure());
}

TEST_F(FailingJob, ALostServerIsNamed) {
  start(2);
  const std::string endpoint = server_->endpoint();
  const auto errors = run_ranks(3, [&](Rank rank) {
    if (rank < 2) return clients_[static_cast<std::size_t>(rank)]->wait({"never"});
    server_.reset();
  });
  for (Rank rank = 0; rank < 2; ++rank)
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                HasSubstr(str("peer_lost: the job has failed: the rendezvous at ", endpoint, " is gone")));
}

TEST_F(FailingJob, AfterAGoodbyeNothingIsAFailure) {
  start(2);
  for (auto& client : clients_) client->goodbye();
  EXPECT_THAT(error_of([&] { clients_[0]->barrier("b"); }),
              HasSubstr("rendezvous: rank 0 has left the rendezvous"));
  clients_[0]->report_failure(ErrorKind::check_failed, "too late");
  clients_.clear();
  EXPECT_FALSE(server_->first_failure());
}

TEST_F(FailingJob, RanksThatNeverJoinAreNamed) {
  auto options = server_options(3);
  options.join_timeout = 200ms;
  RendezvousServer server(options);
  const auto client = testing::join(server, 1, 3);
  EXPECT_THAT(error_of([&] { client->barrier("b"); }),
              HasSubstr("ranks 0, 2 of 3 have not joined within 200 ms of the first"));
  EXPECT_EQ(server.first_failure()->kind, ErrorKind::rendezvous);
}

TEST_F(FailingJob, AHandlerThatWasRemovedIsNotCalled) {
  start(2);
  bool called = false;
  clients_[0]->on_failure([&](const Failure&) { called = true; });
  clients_[0]->on_failure({});
  clients_[1].reset();
  EXPECT_THAT(error_of([&] { clients_[0]->barrier("b"); }), HasSubstr("rank 1"));
  EXPECT_FALSE(called);
}

// ---- progress

TEST_F(FailingJob, ADivergentRankIsNamedWithItsOperation) {
  start(3, 2s);
  for (Rank rank = 0; rank < 3; ++rank) {
    for (std::int64_t i = 0; i < 100; ++i) {
      const bool wrong = rank == 1 && i >= 90;
      clients_[static_cast<std::size_t>(rank)]->set_progress(
          "cp[0,1,2]", i, wrong ? "all_reduce" : "all_gather",
          {0, static_cast<std::uint64_t>(i) + (wrong ? 1000U : 0U)}, i);
    }
  }
  const auto errors = errors_while_waiting(1, [] {});
  EXPECT_THAT(
      errors,
      Each(HasSubstr(
          "began all_reduce #90 of cp[0,1,2], but ranks 0, 2 began all_gather; all agreed up to #89")));
  EXPECT_EQ(server_->first_failure()->kind, ErrorKind::collective_mismatch);
  EXPECT_EQ(server_->first_failure()->rank, 1);
}

TEST_F(FailingJob, AStuckRankIsNamedWithTheOperation) {
  start(4);
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto& client = clients_[static_cast<std::size_t>(rank)];
    for (std::int64_t i = 0; i <= (rank == 3 ? 16 : 17); ++i)
      client->set_progress("cp[0,1,2,3]", i, "all_gather", {0, static_cast<std::uint64_t>(i)});
    client->ranks();
  }
  const auto ranks = clients_[0]->ranks();
  EXPECT_EQ(describe_wait({"cp[0,1,2,3]", 17, "all_gather", {}, -1}, 30s, ranks),
            "rank 3 has not joined all_gather #17 of group cp[0,1,2,3] after 30 s; ranks 0, 1, 2 wait");
  EXPECT_EQ(ranks[3].latest.sequence, 16);
  EXPECT_EQ(ranks[3].state, RankState::joined);
}

// ---- goodbyes

TEST_F(FailingJob, AGoodbyeWaitsForTheOtherMembersOfTheGroup) {
  start(3);
  for (const Rank rank : {0, 1})
    clients_[static_cast<std::size_t>(rank)]->set_progress("pair[0,1]", 0, "all_gather", {1, 2});
  clients_[2]->goodbye();  // it has no group
  std::atomic<bool> gone = false;
  std::thread first([&] {
    EXPECT_EQ(error_of([&] { clients_[0]->goodbye(); }), "");
    gone = true;
  });
  // The server has taken the goodbye when it has answered what was asked later.
  EXPECT_TRUE(soon([&] { return clients_[1]->ranks()[0].latest.sequence == 0; }));
  EXPECT_EQ(server_->ranks()[0].state, RankState::joined);  // which ends with the answer
  EXPECT_FALSE(gone);
  EXPECT_EQ(error_of([&] { clients_[1]->goodbye(); }), "");
  first.join();
  EXPECT_FALSE(server_->first_failure());
  EXPECT_TRUE(soon([&] { return server_->ranks()[0].state == RankState::left; }));
}

TEST_F(FailingJob, NobodysSuccessIsToldWhenTheLastCollectiveDiffers) {
  start(4);
  const auto errors = run_ranks(4, [&](Rank rank) {
    auto& client = clients_[static_cast<std::size_t>(rank)];
    client->set_progress("cp[0,1,2,3]", 0, "all_gather", {0, 1});
    client->set_progress("cp[0,1,2,3]", 1, "all_reduce", {0, rank == 2 ? 9U : 2U});
    client->goodbye();
  });
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr(rank == 2 ? "collective_mismatch: this rank has failed: began all_reduce #1"
                                          : "peer_lost: the job has failed: rank 2 "),
                      HasSubstr("began all_reduce #1 of cp[0,1,2,3] differently from ")));
  }
}

// ---- launchers

class LaunchedRanks : public FailingJob {
 protected:
  // A server whose owner has ranks 0 and 1, and another launcher that has 2 and 3.
  void start_two_machines() {
    auto options = server_options(4);
    options.launches = 2;
    options.on_failure = [this](const Failure& failure) { told_.set_value(failure); };
    server_ = std::make_unique<RendezvousServer>(options);
    launcher_ = join_launcher(2, 2);
    for (Rank rank = 0; rank < 4; ++rank) clients_.push_back(testing::join(*server_, rank, 4));
  }
  std::unique_ptr<runtime::RendezvousClient> join_launcher(Rank first, std::int32_t count,
                                                           std::int32_t world = 4) {
    runtime::ClientOptions options = testing::client_options(*server_, first, world);
    options.launches = count;
    return std::make_unique<runtime::RendezvousClient>(options);
  }
  std::unique_ptr<runtime::RendezvousClient> launcher_;
};

TEST_F(LaunchedRanks, ALostRankWaitsForItsLaunchersWord) {
  start_two_machines();
  const auto errors = errors_while_waiting(3, [&] {
    clients_[3].reset();
    launcher_->report_found({ErrorKind::peer_lost, 3, "", 4711, "was killed by SIGKILL", {}});
  });
  EXPECT_THAT(errors, Each(HasSubstr(", pid 4711): was killed by SIGKILL")));
  EXPECT_TRUE(soon([&] { return launcher_->failure().has_value(); }));  // the other launchers hear it as well
}

TEST_F(LaunchedRanks, ALostRankIsNamedWithoutAWordToo) {
  start_two_machines();
  const auto errors = errors_while_waiting(3, [&] { clients_[3].reset(); });
  EXPECT_THAT(errors, Each(HasSubstr("rank 3 ")));
  EXPECT_THAT(errors, Each(HasSubstr("its connection was closed by the other side without a goodbye")));
}

TEST_F(LaunchedRanks, ALostLauncherIsNamedWithItsRanks) {
  start_two_machines();
  const auto errors = errors_while_waiting(3, [&] { launcher_.reset(); });
  EXPECT_THAT(errors, Each(HasSubstr("the launcher of ranks 2, 3 is gone: its connection was closed")));
}

TEST_F(LaunchedRanks, ALauncherSpeaksOnlyOfItsOwnRanks) {
  start_two_machines();
  const auto errors = errors_while_waiting(1, [&] {
    launcher_->report_found({ErrorKind::peer_lost, 1, "", 4711, "was killed by SIGKILL", {}});
  });
  EXPECT_THAT(errors, Each(HasSubstr("a launcher reported rank 1, which is not one of its own")));
}

TEST_F(LaunchedRanks, ALauncherThatDoesNotFitIsRefusedWithTheReason) {
  start_two_machines();
  EXPECT_THAT(error_of([&] { join_launcher(2, 2, 6); }),
              HasSubstr("came with world size 6, but this job has 4"));
  EXPECT_THAT(error_of([&] { join_launcher(3, 2); }),
              HasSubstr("came with 2 ranks from 3 on: the world size is 4"));
  EXPECT_THAT(error_of([&] { join_launcher(3, 1); }),
              HasSubstr("has ranks 2 to 3; give each machine a --node-rank of its own"));
  EXPECT_THAT(error_of([&] { join_launcher(0, 1); }),
              HasSubstr("has ranks 0 to 1; give each machine a --node-rank of its own"));
  EXPECT_FALSE(server_->first_failure());
}

TEST_F(LaunchedRanks, TheEndIsThatOfAllRanksAndLaunchers) {
  start_two_machines();
  std::future<std::optional<Failure>> end =
      std::async(std::launch::async, [&] { return server_->await_end(); });
  for (auto& client : clients_) client->goodbye();
  EXPECT_EQ(end.wait_for(50ms), std::future_status::timeout);  // the launcher is still there
  launcher_->goodbye();
  launcher_.reset();
  EXPECT_FALSE(end.get());
}

TEST_F(LaunchedRanks, ALauncherThatIsDoneHearsOfALaterFailure) {
  start_two_machines();
  for (const Rank rank : {2, 3}) clients_[static_cast<std::size_t>(rank)]->goodbye();
  auto end = std::async(std::launch::async, [&] { return error_of([&] { launcher_->goodbye(); }); });
  EXPECT_EQ(end.wait_for(50ms), std::future_status::timeout);
  server_->report_failure({ErrorKind::peer_lost, 1, "a", 7, "was killed by SIGKILL", {}});
  EXPECT_THAT(end.get(),
              HasSubstr("peer_lost: the job has failed: rank 1 (host a, pid 7): was killed by SIGKILL"));
}

TEST_F(LaunchedRanks, ALauncherThatNeverComesIsNamedAtTheEnd) {
  auto options = server_options(4);
  options.launches = 2;
  options.join_timeout = 100ms;
  server_ = std::make_unique<RendezvousServer>(options);
  EXPECT_NE(error_of([&] { join_launcher(2, 2, 6); }), "");
  const auto failure = server_->await_end();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message,
              AllOf(HasSubstr("no launcher has joined for ranks 2, 3 of 4 within 100 ms; start cprun on each "
                              "machine, with a --node-rank of its own; these were refused: "),
                    HasSubstr("came with world size 6, but this job has 4")));
}

}  // namespace
}  // namespace cp
