// Ranks that find one another, and those that are refused.
#include "runtime/rendezvous/server.h"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <fcntl.h>
#include <functional>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::RankState;
using runtime::RendezvousClient;
using runtime::RendezvousServer;
using ::testing::AllOf;
using testing::client_options;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::run_ranks;
using testing::server_options;

TEST(Rendezvous, RanksShareKeysCountersAndBarriers) {
  RendezvousServer server(server_options(4));
  EXPECT_EQ(server.address(), "127.0.0.1");
  EXPECT_EQ(server.endpoint(), str("127.0.0.1:", server.port()));
  std::atomic<int> entered = 0;
  std::vector<std::int64_t> counts(4);
  const auto errors = run_ranks(4, [&](Rank rank) {
    const auto client = testing::join(server, rank, 4);
    client->set(str("key/", rank), str("value ", rank));
    client->wait({"key/0", "key/3"});
    for (Rank other = 0; other < 4; ++other) EXPECT_EQ(client->get(str("key/", other)), str("value ", other));
    counts[static_cast<std::size_t>(rank)] = client->add("counter", 10);
    for (int round = 1; round <= 3; ++round) {
      ++entered;
      client->barrier("round");
      EXPECT_GE(entered, 4 * round);
      client->barrier("round ends");
    }
    const std::string mine(static_cast<std::size_t>(rank) * 1000, static_cast<char>('a' + rank));
    const auto all = client->all_gather("data", mine);
    ASSERT_EQ(all.size(), 4U);
    for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(all[r], std::string(r * 1000, static_cast<char>('a' + r)));
    client->goodbye();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  std::ranges::sort(counts);
  EXPECT_THAT(counts, ElementsAre(10, 20, 30, 40));
  EXPECT_FALSE(server.first_failure());
  for (const auto& status : server.ranks()) EXPECT_EQ(status.state, RankState::left);
}

TEST(Rendezvous, KeysAreSetLaterReadByOthersAndHoldAnyBytes) {
  RendezvousServer server(server_options(2));
  const auto clients = testing::join_all(server, 2);
  std::thread reader([&] { EXPECT_EQ(clients[0]->get("late"), std::string("\0\xff\n", 3)); });
  clients[1]->set("late", std::string("\0\xff\n", 3));
  reader.join();
  clients[1]->set("late", "");
  EXPECT_EQ(clients[0]->get("late"), "");
  const std::string large(runtime::kMaxValueBytes, 'x');
  clients[0]->set("large", large);
  EXPECT_EQ(clients[1]->get("large"), large);
  EXPECT_THAT(error_of([&] { clients[0]->set("large", large + "x"); }),
              HasSubstr("invalid_input: key 'large': the value has 1032193 bytes, but the rendezvous takes "
                        "at most 1032192"));
  EXPECT_THAT(error_of([&] { clients[0]->add("large", 1); }), HasSubstr("its value is not a number"));
  EXPECT_EQ(clients[0]->add("number", -3), -3);
  EXPECT_EQ(clients[1]->get("number"), "-3");
}

TEST(Rendezvous, SomeRanksGatherWhileOthersDoOtherThings) {
  RendezvousServer server(server_options(4));
  const auto clients = testing::join_all(server, 4);
  for (int round = 0; round < 2; ++round) {
    const auto errors = run_ranks(4, [&](Rank rank) {
      const std::vector<Rank> ranks = rank % 2 == 0 ? std::vector<Rank>{0, 2} : std::vector<Rank>{1, 3};
      const auto all = clients[static_cast<std::size_t>(rank)]->all_gather(ranks, str("of ", rank % 2),
                                                                           str("from ", rank));
      EXPECT_THAT(all, ElementsAre(str("from ", ranks[0]), str("from ", ranks[1])));
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
  EXPECT_EQ(error_of([&] {
              clients[3]->all_gather({1, 3}, "g", "x", 50ms);
            }),
            "timeout: all_gather 'g' after 50 ms: rank 1 of 2 has not arrived; rank 3 waits");
  for (const std::vector<Rank>& ranks : {std::vector<Rank>{0, 1}, {3, 1}, {3, 3}, {3, 4}, {-1, 3}}) {
    EXPECT_THAT(error_of([&] { clients[3]->all_gather(ranks, "g", "x"); }),
                HasSubstr("name ranks of the job in ascending order, and this rank among them"));
  }
}

TEST(Rendezvous, KeysAreForgottenWhenAllHaveFreedThem) {
  RendezvousServer server(server_options(3));
  const auto clients = testing::join_all(server, 3);
  for (const char* key : {"a", "a/1", "a/2", "b"}) clients[0]->set(key, "value");
  clients[1]->free_keys("a/", 3);
  clients[2]->free_keys("a/", 3);
  EXPECT_EQ(server.num_keys(), 4U);
  EXPECT_EQ(clients[0]->get("a/2"), "value");
  clients[0]->free_keys("a/", 3);
  EXPECT_EQ(server.num_keys(), 2U);
  EXPECT_EQ(clients[1]->get("a"), "value");
  EXPECT_EQ(clients[1]->get("b"), "value");
  EXPECT_THAT(error_of([&] { clients[1]->get("a/1", 10ms); }), HasSubstr("key 'a/1' is not set"));
  clients[0]->set("a/1", "anew");  // and counts anew
  clients[0]->free_keys("a/", 2);
  EXPECT_EQ(clients[1]->get("a/1"), "anew");
}

TEST(Rendezvous, RanksMayComeBeforeTheServer) {
  std::uint16_t port = 0;
  {
    RendezvousServer free_port(server_options(1));
    port = free_port.port();
  }
  std::string error = "never joined";
  std::thread early([&] {
    error = error_of([&] {
      RendezvousClient client(
          {.port = port, .job_id = "job", .token = testing::kToken, .timeout = testing::kPatience});
      client.barrier("b");
    });
  });
  auto options = server_options(1);
  options.port = port;
  RendezvousServer server(options);
  early.join();
  EXPECT_EQ(error, "");
}

TEST(Rendezvous, NobodyThereIsAnErrorThatNamesTheEndpoint) {
  std::uint16_t port = 0;
  {
    RendezvousServer free_port(server_options(1));
    port = free_port.port();
  }
  const auto error = error_of([&] {
    RendezvousClient client(
        {.port = port, .job_id = "job", .rank = 0, .token = testing::kToken, .timeout = 100ms});
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr(str("rendezvous: rank 0 cannot join at 127.0.0.1:", port, " within 100 ms")),
                    HasSubstr("refused")));
}

TEST(Rendezvous, AnAddressInUseHasItsOwnError) {
  RendezvousServer server(server_options(1));
  auto options = server_options(1);
  options.port = server.port();
  EXPECT_THAT(error_of([&] { RendezvousServer second(options); }),
              AllOf(HasSubstr(str("address_in_use: 127.0.0.1:", server.port(), " is in use")),
                    HasSubstr("use another port")));
  testing::join(server, 0, 1)->goodbye();
}

TEST(Rendezvous, ThePortIsFreeAfterwards) {
  std::uint16_t port = 0;
  for (int i = 0; i < 3; ++i) {
    auto options = server_options(1);
    options.port = port;
    RendezvousServer server(options);
    port = server.port();
    testing::join(server, 0, 1)->barrier("b");
  }
}

TEST(Rendezvous, ListensOnTheNamedInterfaceAlone) {
  auto options = server_options(1);
  options.interface = "lo";
  RendezvousServer server(options);
  EXPECT_EQ(server.address(), "127.0.0.1");
  options.interface = "127.0.0.2";
  options.port = server.port();
  RendezvousServer other(options);  // the same port of another address
  EXPECT_EQ(other.endpoint(), str("127.0.0.2:", server.port()));
  options.interface = "no such interface";
  EXPECT_THAT(error_of([&] { RendezvousServer third(options); }),
              AllOf(HasSubstr("rendezvous: 'no such interface' is not an address"),
                    HasSubstr("it has lo 127.0.0.1")));
  options.interface = "192.0.2.1";  // for documentation: nobody's
  EXPECT_THAT(error_of([&] { RendezvousServer third(options); }),
              AllOf(HasSubstr("rendezvous: cannot listen on 192.0.2.1"), HasSubstr("lo 127.0.0.1")));
}

// Programs that the launcher starts must not hold its port or its connections.
TEST(Rendezvous, NoSocketIsInheritedByPrograms) {
  RendezvousServer server(server_options(1));
  const auto client = testing::join(server, 0, 1);
  for (int descriptor = 3; descriptor < 64; ++descriptor) {
    const int flags = fcntl(descriptor, F_GETFD);
    char path[64], target[256] = {};
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (flags < 0 || readlink(path, target, sizeof target - 1) < 0 ||
        std::string(target).rfind("socket:", 0) != 0)
      continue;
    EXPECT_TRUE(flags & FD_CLOEXEC) << descriptor;
  }
}

// ---- refusals

class Refusal : public ::testing::Test {
 protected:
  std::string refusal(const runtime::ClientOptions& options) {
    return error_of([&] { RendezvousClient client(options); });
  }
  RendezvousServer server_{server_options(2)};
  runtime::ClientOptions options_ = client_options(server_, 0, 2);
};

TEST_F(Refusal, AnotherToken) {
  options_.token = runtime::make_token();
  EXPECT_THAT(refusal(options_),
              AllOf(HasSubstr("authentication: "), HasSubstr("refuses rank 0: wrong token for job 'job'")));
}

TEST_F(Refusal, AnotherJob) {
  options_.job_id = "other";
  EXPECT_THAT(refusal(options_),
              AllOf(HasSubstr("rendezvous: "), HasSubstr("belongs to another job than 'other'")));
}

TEST_F(Refusal, AnotherWorldSize) {
  options_.world_size = 3;
  EXPECT_THAT(refusal(options_), AllOf(HasSubstr("rendezvous: "),
                                       HasSubstr("rank 0 came with world size 3, but this job has 2")));
}

TEST_F(Refusal, RankOutOfRange) {
  for (const Rank rank : {2, -1}) {
    options_.rank = rank;
    EXPECT_THAT(refusal(options_),
                AllOf(HasSubstr("rendezvous: "), HasSubstr(str("rank ", rank, " is out of range")),
                      HasSubstr("ranks are 0 to 1")));
  }
}

TEST_F(Refusal, ADuplicateAndTheJobGoesOn) {
  const auto clients = testing::join_all(server_, 2);
  EXPECT_THAT(refusal(options_),
              AllOf(HasSubstr("rendezvous: "), HasSubstr(str("rank 0 has joined already (host ")),
                    HasSubstr(str("pid ", getpid()))));
  EXPECT_THAT(run_ranks(2, [&](Rank rank) { clients[static_cast<std::size_t>(rank)]->barrier("b"); }),
              Each(IsEmpty()));
  clients[1]->goodbye();
  EXPECT_THAT(refusal(client_options(server_, 1, 2)), HasSubstr("rank 1 has joined and left"));
  EXPECT_FALSE(server_.first_failure());
}

TEST_F(Refusal, AnotherVersion) {
  auto handshake = testing::handshake_of(0, 2);
  handshake.protocol_version = 99;
  RawPeer peer(server_.port());
  peer.send(testing::hello_of(handshake));
  const auto frame = peer.receive();
  ASSERT_TRUE(frame);
  const auto message = runtime::parse_message(frame->message());
  EXPECT_EQ(message.refusal().kind(), proto::RENDEZVOUS);
  EXPECT_THAT(message.refusal().reason(),
              HasSubstr(str("protocol version 99, but this server speaks ", runtime::kProtocolVersion)));
  EXPECT_TRUE(peer.is_closed());
}

// What listens instead of the job's server: it answers one hello with `nonce`, and then with what `welcome`
// makes of the seal that the job's server would use.
class Impostor {
 public:
  using Welcome = std::function<void(proto::RendezvousFrame& sealed)>;
  Impostor(std::string nonce, Welcome welcome) : nonce_(std::move(nonce)), welcome_(std::move(welcome)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CP_INVARIANT(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     listen(listener_, 1) == 0 &&
                     getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                 "no port on the loopback interface");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { answer(); });
  }
  ~Impostor() {
    thread_.join();
    close(listener_);
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  std::uint16_t port() const { return port_; }

 private:
  void answer() {
    const int connection = accept(listener_, nullptr, nullptr);
    runtime::FrameParser parser;
    std::optional<proto::RendezvousFrame> first;
    char bytes[4096];
    for (ssize_t count = 1; !first && count > 0;) {
      count = recv(connection, bytes, sizeof bytes, 0);
      if (count > 0) parser.feed({bytes, static_cast<std::size_t>(count)}), first = parser.next();
    }
    if (first) {
      const auto hello = runtime::parse_message(first->message()).hello();
      runtime::Session session(testing::kToken,
                               {.protocol_version = hello.protocol_version(),
                                .job_id = hello.job_id(),
                                .rank = hello.rank(),
                                .world_size = hello.world_size(),
                                .host = hello.host(),
                                .pid = hello.pid(),
                                .rank_nonce = hello.nonce(),
                                .server_nonce = nonce_},
                               runtime::Side::server);
      proto::RendezvousMessage challenge, message;
      challenge.mutable_challenge()->set_nonce(nonce_);
      message.mutable_welcome()->set_heartbeat_timeout_ms(1000);
      proto::RendezvousFrame plain, sealed = session.seal(message.SerializeAsString());
      plain.set_message(challenge.SerializeAsString());
      welcome_(sealed);
      const std::string out = runtime::encode_frame(plain) + runtime::encode_frame(sealed);
      EXPECT_EQ(send(connection, out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
    }
    while (recv(connection, bytes, sizeof bytes, 0) > 0) {
    }
    close(connection);
  }

  std::string nonce_;
  Welcome welcome_;
  int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// It lets everybody in, and so must guess its seal; or has seen a part of the right one.
TEST_F(Refusal, AServerThatDoesNotKnowTheToken) {
  const auto welcomed_with = [&](const Impostor::Welcome& welcome) {
    const Impostor impostor(std::string(runtime::kNonceBytes, 'n'), welcome);
    options_.port = impostor.port();
    return refusal(options_);
  };
  EXPECT_EQ(welcomed_with([](proto::RendezvousFrame&) {}), "");  // the seal itself would do
  const auto refused =
      AllOf(HasSubstr("authentication: "), HasSubstr("does not know the token of job 'job'"));
  EXPECT_THAT(welcomed_with([](proto::RendezvousFrame& sealed) {
                sealed.set_mac(std::string(runtime::kMacBytes, 'm'));
              }),
              refused);
  for (const std::size_t size : {std::size_t{1}, runtime::kMacBytes - 1}) {
    EXPECT_THAT(welcomed_with([&](proto::RendezvousFrame& sealed) { sealed.mutable_mac()->resize(size); }),
                refused)
        << size;
  }
  // Without a mac a frame is taken for the plain refusal, which an encrypted message is not.
  EXPECT_THAT(welcomed_with([](proto::RendezvousFrame& sealed) { sealed.clear_mac(); }),
              AllOf(HasSubstr("rendezvous: "), HasSubstr("is not a rendezvous")));
  EXPECT_THAT(welcomed_with([](proto::RendezvousFrame& sealed) { sealed.mutable_mac()->push_back('m'); }),
              refused);
  EXPECT_THAT(
      welcomed_with([](proto::RendezvousFrame& sealed) { sealed.mutable_message()->push_back('\0'); }),
      refused);
}

TEST_F(Refusal, AServerWhoseNonceHasTheWrongSize) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, runtime::kNonceBytes - 1, runtime::kNonceBytes + 1}) {
    const Impostor impostor(std::string(size, 'n'), [](proto::RendezvousFrame&) {});
    options_.port = impostor.port();
    EXPECT_THAT(refusal(options_), AllOf(HasSubstr("rendezvous: "), HasSubstr("is not a rendezvous"),
                                         HasSubstr("the nonce has the wrong size")))
        << size;
  }
}

TEST(RendezvousOptions, AreChecked) {
  auto options = server_options(0);
  EXPECT_THAT(error_of([&] { RendezvousServer server(options); }),
              HasSubstr("invalid_input: the world size is 0"));
  options = server_options(1);
  options.token = "short";
  EXPECT_THAT(error_of([&] { RendezvousServer server(options); }),
              HasSubstr("invalid_input: the token has 5 characters"));
}

}  // namespace
}  // namespace cp
