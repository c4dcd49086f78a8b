// Peers that do not keep the rules: the job goes on, or fails with its kind of error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/errors.h"
#include "tests/rendezvous/test_job.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::RendezvousServer;
using ::testing::Each;
using testing::handshake_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kToken;
using testing::RawPeer;
using testing::server_options;

proto::RendezvousMessage heartbeat() {
  proto::RendezvousMessage message;
  message.mutable_heartbeat();
  return message;
}

class Hostile : public ::testing::Test {
 protected:
  // All ranks join, meet and leave.
  void expect_job_works() { expect_job_works(server_); }
  static void expect_job_works(RendezvousServer& server) {
    EXPECT_THAT(testing::run_ranks(2,
                                   [&](Rank rank) {
                                     const auto client = testing::join(server, rank, 2);
                                     client->barrier("b");
                                     client->goodbye();
                                   }),
                Each(IsEmpty()));
    EXPECT_FALSE(server.first_failure());
  }
  RendezvousServer server_{server_options(2)};
};

TEST_F(Hostile, GarbageIsRefused) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'),
        std::string("\x04\0\0\0\xff\xff\xff\xff", 8), std::string(100'000, 'x')}) {
    RawPeer peer(server_.port());
    peer.send(garbage);
    EXPECT_TRUE(peer.is_closed());
  }
  expect_job_works();
}

TEST_F(Hostile, ALengthOfFourGigabytesIsRefusedAtOnce) {
  RawPeer peer(server_.port());
  peer.send("\xff\xff\xff\xff");
  const auto frame = peer.receive();
  ASSERT_TRUE(frame);
  const auto refusal = runtime::parse_message(frame->message()).refusal();
  EXPECT_EQ(refusal.kind(), proto::RENDEZVOUS);
  EXPECT_THAT(refusal.reason(), HasSubstr("the frame has 4294967295 bytes, more than the limit of 4096"));
  expect_job_works();
}

TEST_F(Hostile, HalfAFrameAndSilenceEndAtTheDeadline) {
  auto options = server_options(2);
  options.handshake_timeout = 300ms;
  RendezvousServer server(options);
  RawPeer half(server.port()), silent(server.port()), hello(server.port());
  const auto message = testing::hello_of(handshake_of(0, 2));
  half.send(message.SerializeAsString().substr(0, 7));
  hello.send(message);
  expect_job_works(server);
  EXPECT_TRUE(half.is_closed());
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(hello.is_closed());
}

TEST_F(Hostile, TheFirstExchangeCannotBeSkipped) {
  RawPeer join(server_.port()), request(server_.port()), twice(server_.port());
  proto::RendezvousMessage message;
  message.mutable_join();
  join.send(message);
  EXPECT_TRUE(join.is_closed());
  message.mutable_request()->mutable_set()->set_key("k");
  request.send(message);
  EXPECT_TRUE(request.is_closed());
  twice.send(testing::hello_of(handshake_of(0, 2)));
  ASSERT_TRUE(twice.receive());
  twice.send(testing::hello_of(handshake_of(0, 2)));
  const auto frame = twice.receive();
  ASSERT_TRUE(frame);
  EXPECT_EQ(runtime::parse_message(frame->message()).refusal().kind(), proto::AUTHENTICATION);
  expect_job_works();
}

TEST_F(Hostile, ARecordedJoinIsOfNoUseOnAnotherConnection) {
  auto handshake = handshake_of(0, 2);
  std::string recorded;
  {
    RendezvousServer server(server_options(2));
    RawPeer rank(server.port());
    rank.join(handshake, kToken);
    ASSERT_TRUE(rank.receive());
    recorded = rank.sent;
  }
  RawPeer replay(server_.port());
  replay.send(recorded);
  ASSERT_TRUE(replay.receive());  // the challenge
  const auto frame = replay.receive();
  ASSERT_TRUE(frame);
  const auto refusal = runtime::parse_message(frame->message()).refusal();
  EXPECT_EQ(refusal.kind(), proto::AUTHENTICATION);
  EXPECT_THAT(refusal.reason(), HasSubstr("wrong token"));
  EXPECT_TRUE(replay.is_closed());
  expect_job_works();
}

// On the rank's own connection nobody can be trusted any more: the job fails, with authentication.
TEST_F(Hostile, RepeatedAndAlteredFramesEndTheJob) {
  for (const bool repeated : {true, false}) {
    RendezvousServer server(server_options(2));
    RawPeer rank(server.port());
    rank.join(handshake_of(0, 2), kToken);
    ASSERT_TRUE(rank.receive());
    auto frame = rank.session->seal(heartbeat().SerializeAsString());
    if (repeated) {
      rank.send(runtime::encode_frame(frame));
      ASSERT_TRUE(rank.receive());
    } else {
      frame.set_message(frame.message() + '\0');
    }
    rank.send(runtime::encode_frame(frame));
    EXPECT_TRUE(rank.is_closed());
    ASSERT_TRUE(testing::soon([&] { return server.first_failure().has_value(); }));
    EXPECT_EQ(server.first_failure()->kind, ErrorKind::authentication);
    EXPECT_THAT(to_string(*server.first_failure()),
                HasSubstr("rank 0 (host elsewhere, pid 7): its connection was closed "
                          "here: frame"));
  }
}

// Of the seal of a join, and of a later frame, nothing may be missing, and nothing follow.
TEST_F(Hostile, PartsOfASealAreNoSeal) {
  const auto cut = [](proto::RendezvousFrame frame, std::size_t size) {
    frame.mutable_mac()->resize(size, 'm');
    return runtime::encode_frame(frame);
  };
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, runtime::kMacBytes - 1, runtime::kMacBytes + 1}) {
    RawPeer stranger(server_.port());
    auto handshake = handshake_of(0, 2);
    stranger.send(testing::hello_of(handshake));
    const auto challenge = stranger.receive();
    ASSERT_TRUE(challenge);
    handshake.server_nonce = runtime::parse_message(challenge->message()).challenge().nonce();
    runtime::Session session(kToken, handshake, runtime::Side::rank);
    proto::RendezvousMessage message;
    message.mutable_join();
    stranger.send(cut(session.seal(message.SerializeAsString()), size));
    const auto answer = stranger.receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(runtime::parse_message(answer->message()).refusal().kind(), proto::AUTHENTICATION) << size;
    EXPECT_TRUE(stranger.is_closed());

    RendezvousServer server(server_options(2));
    RawPeer rank(server.port());
    rank.join(handshake_of(0, 2), kToken);
    ASSERT_TRUE(rank.receive());
    rank.send(cut(rank.session->seal(heartbeat().SerializeAsString()), size));
    EXPECT_TRUE(rank.is_closed());
    ASSERT_TRUE(testing::soon([&] { return server.first_failure().has_value(); }));
    EXPECT_EQ(server.first_failure()->kind, ErrorKind::authentication) << size;
  }
  expect_job_works();
}

TEST_F(Hostile, NoncesHaveOneSize) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, runtime::kNonceBytes - 1,
                                 runtime::kNonceBytes + 1, std::size_t{4000}}) {
    RawPeer peer(server_.port());
    auto handshake = handshake_of(0, 2);
    handshake.rank_nonce.resize(size, 'n');
    peer.send(testing::hello_of(handshake));
    const auto frame = peer.receive();
    ASSERT_TRUE(frame);
    const auto refusal = runtime::parse_message(frame->message()).refusal();
    EXPECT_EQ(refusal.kind(), proto::RENDEZVOUS) << size;
    EXPECT_THAT(refusal.reason(), HasSubstr("the nonce has the wrong size")) << size;
    EXPECT_TRUE(peer.is_closed());
  }
  expect_job_works();
}

TEST_F(Hostile, ARankThatKnowsTheTokenCannotSendWhatIsNoMessage) {
  RawPeer rank(server_.port());
  rank.join(handshake_of(0, 2), kToken);
  ASSERT_TRUE(rank.receive());
  rank.send(runtime::encode_frame(rank.session->seal("\xff\xff garbage")));
  EXPECT_TRUE(rank.is_closed());
  ASSERT_TRUE(testing::soon([&] { return server_.first_failure().has_value(); }));
  EXPECT_EQ(server_.first_failure()->kind, ErrorKind::rendezvous);
}

TEST(HostileCrowd, TwoHundredIdleConnectionsHinderNobody) {
  auto options = server_options(2);
  options.handshake_timeout = 600s;  // it is not the deadline that makes room
  RendezvousServer server(options);
  std::vector<std::unique_ptr<RawPeer>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<RawPeer>(server.port()));
  const auto first = testing::join(server, 0, 2);
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<RawPeer>(server.port()));
  const auto second = testing::join(server, 1, 2);
  EXPECT_THAT(testing::run_ranks(2, [&](Rank rank) { (rank == 0 ? first : second)->barrier("b"); }),
              Each(IsEmpty()));
  EXPECT_FALSE(server.first_failure());
  // Of 202 connections 66 may stay, 64 of them idle; the oldest went.
  for (std::size_t i = 0; i < 200 - 64; ++i) EXPECT_TRUE(idle[i]->is_closed());
}

}  // namespace
}  // namespace cp
