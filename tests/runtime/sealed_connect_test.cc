// Ranks that connect while others connect too: strangers who are silent, talk rubbish, guess, repeat what
// they have heard or listen in a rank's place, and ranks that do not come.
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <netinet/in.h>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/errors.h"
#include "runtime/gloo/sealed_connect.h"
#include "runtime/gloo/sealed_context.h"
#include "runtime/gloo/sealed_proof.h"
#include "shared/base/error.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::connect_sealed;
using runtime::Descriptor;
using runtime::SealedEnd;
using runtime::SealedLink;
using runtime::SealedOptions;
using runtime::SealedSockets;

const std::string kToken(64, 't');

class MemoryStore : public gloo::rendezvous::Store {
 public:
  void set(const std::string& key, const std::vector<char>& data) override {
    const std::lock_guard lock(mutex_);
    values_[key] = data;
    changed_.notify_all();
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    const std::lock_guard lock(mutex_);
    return values_.at(key);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, 60s); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    std::unique_lock lock(mutex_);
    for (const std::string& key : keys) {
      if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); }))
        throw gloo::IoException("no " + key);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> values_;
};

// Of processes.
class DirectoryStore : public gloo::rendezvous::Store {
 public:
  explicit DirectoryStore(const std::string& path) : path_(path + "/") {}
  void set(const std::string& key, const std::vector<char>& data) override {
    std::ofstream(file(key) + ".new").write(data.data(), static_cast<std::streamsize>(data.size()));
    std::filesystem::rename(file(key) + ".new", file(key));
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    std::ifstream in(file(key));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      while (!std::filesystem::exists(file(key))) std::this_thread::sleep_for(1ms);
    }
  }

 private:
  std::string file(std::string key) const {
    std::ranges::replace(key, '/', '-');
    return path_ + key;
  }
  const std::string path_;
};

Group group_of(int count) {
  Group group{"all", std::vector<Rank>(static_cast<std::size_t>(count))};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

SealedOptions options(std::chrono::milliseconds timeout = 1h) {
  return {.token = kToken, .job_id = "job", .timeout = timeout};
}

// What a rank told: "127.0.0.1 4711 <ticket>".
struct Listener {
  std::string address, ticket;
  int port = 0;
};
Listener listener_of(gloo::rendezvous::Store& store, Rank rank) {
  const std::vector<char> text = store.get("listens/" + std::to_string(rank));
  Listener listener;
  std::istringstream(std::string(text.begin(), text.end())) >> listener.address >> listener.port >>
      listener.ticket;
  return listener;
}
void tell(gloo::rendezvous::Store& store, Rank rank, const Listener& listener) {
  const std::string text = str(listener.address, ' ', listener.port, ' ', listener.ticket);
  store.set("listens/" + std::to_string(rank), {text.begin(), text.end()});
}

// Without Asio, as a stranger's program is.
class Wire {
 public:
  explicit Wire(int descriptor) : socket_(descriptor) {}
  static Wire to(int port) {
    Wire wire(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(connect(wire.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return wire;
  }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void say(const std::string& bytes) const {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Empty when the other end closed the connection.
  std::string hear(std::size_t bytes) const {
    std::string heard(bytes, '\0');
    const ssize_t got = recv(socket_.get(), heard.data(), bytes, MSG_WAITALL);
    heard.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return heard;
  }

 private:
  Descriptor socket_;
};

class WireListener {
 public:
  WireListener() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Wire::loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_.get(), 8), 0);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  Wire next() const { return Wire(accept(socket_.get(), nullptr, nullptr)); }
  int port = 0;

 private:
  Descriptor socket_;
};

// Each rank on a thread of its own; what it threw is a failure of the test.
class Ranks {
 public:
  explicit Ranks(int count) : group(group_of(count)), sockets(static_cast<std::size_t>(count)) {}
  ~Ranks() { join(); }

  void start(Rank rank, gloo::rendezvous::Store& at) {
    threads_.emplace_back([this, rank, &at] {
      try {
        sockets[static_cast<std::size_t>(rank)] = connect_sealed(group, rank, at, options());
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  void start(Rank rank) { start(rank, store); }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // Each end sends its own number to the other.
  void expect_connected() {
    const auto place = [](Rank rank) { return static_cast<std::size_t>(rank); };
    for (const SealedSockets& of_rank : sockets) ASSERT_EQ(of_rank.sockets.size(), group.ranks.size());
    for (const Rank from : group.ranks) {
      for (const Rank to : group.ranks) {
        if (from == to) continue;
        const auto byte = static_cast<char>(from);
        ASSERT_EQ(send(sockets[place(from)].sockets[place(to)].get(), &byte, 1, MSG_NOSIGNAL), 1);
      }
    }
    for (const Rank to : group.ranks) {
      EXPECT_FALSE(sockets[place(to)].sockets[place(to)].is_open());
      for (const Rank from : group.ranks) {
        if (from == to) continue;
        char byte = -1;
        const int descriptor = sockets[place(to)].sockets[place(from)].get();
        fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
        ASSERT_EQ(recv(descriptor, &byte, 1, 0), 1);
        EXPECT_EQ(byte, static_cast<char>(from)) << "at rank " << to;
      }
    }
  }

  Group group;
  MemoryStore store;
  std::vector<SealedSockets> sockets;

 private:
  std::vector<std::thread> threads_;
};

TEST(SealedProof, DependsOnAllThatItIsBoundTo) {
  const SealedLink link{1, 0, std::string(32, 'a'), std::string(32, 'b')};
  const auto proof = [](const SealedLink& of, SealedEnd by, std::array<std::string, 4> key) {
    return runtime::sealed_proof(runtime::sealed_key(key[0], key[1], key[2], key[3]), by, of);
  };
  const std::array<std::string, 4> key = {kToken, "job", "cp[0,1]", "ticket"};
  std::set<std::string> all = {proof(link, SealedEnd::connects, key), proof(link, SealedEnd::listens, key)};
  for (std::size_t part = 0; part < key.size(); ++part) {
    std::array<std::string, 4> other = key;
    other[part] += 'x';
    all.insert(proof(link, SealedEnd::connects, other));
  }
  for (SealedLink other : {SealedLink{2, 0, link.nonce_of_connecting, link.nonce_of_listening},
                           SealedLink{1, 2, link.nonce_of_connecting, link.nonce_of_listening},
                           SealedLink{0, 1, link.nonce_of_connecting, link.nonce_of_listening},
                           SealedLink{1, 0, link.nonce_of_listening, link.nonce_of_connecting},
                           SealedLink{1, 0, link.nonce_of_connecting, std::string(32, 'c')}})
    all.insert(proof(other, SealedEnd::connects, key));
  EXPECT_EQ(all.size(), 2U + 4U + 5U);
}

TEST(SealedProof, AHelloIsReadAsItWasWritten) {
  const SealedLink link{70'000, 3, std::string(32, 'a'), {}};
  const std::string hello = runtime::sealed_hello(link);
  ASSERT_EQ(hello.size(), runtime::kHelloBytes);
  const auto read = runtime::parse_sealed_hello(hello);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->connects, 70'000);
  EXPECT_EQ(read->listens, 3);
  EXPECT_EQ(read->nonce_of_connecting, link.nonce_of_connecting);
  EXPECT_FALSE(runtime::parse_sealed_hello(std::string(runtime::kHelloBytes, 'x')));
  EXPECT_FALSE(runtime::parse_sealed_hello(hello.substr(1)));
}

TEST(SealedConnect, ConnectsEachWithEach) {
  for (const int count : {1, 2, 5}) {
    Ranks ranks(count);
    for (Rank rank = 0; rank < count; ++rank) ranks.start(rank);
    ranks.join();
    ranks.expect_connected();
    for (const SealedSockets& sockets : ranks.sockets) EXPECT_EQ(sockets.strangers.count, 0);
  }
}

TEST(SealedConnect, StrangersKeepNobodyFromConnecting) {
  Ranks ranks(3);
  ranks.start(0);
  const Listener at = listener_of(ranks.store, 0);
  std::vector<Wire> strangers;
  for (std::size_t i = 0; i < runtime::kMostUnproven + 20; ++i) strangers.push_back(Wire::to(at.port));
  strangers.push_back(Wire::to(at.port));
  strangers.back().say("GET / HTTP/1.1\r\nHost: the longest of all names that fit\r\n\r\n");
  EXPECT_EQ(strangers.back().hear(1), "");
  strangers.push_back(Wire::to(at.port));
  strangers.back().say("cpdata");
  // In the name of rank 1: from somebody who knows all but the token, and who sends back what it hears.
  const SealedLink guess{1, 0, std::string(32, 'n'), {}};
  strangers.push_back(Wire::to(at.port));
  strangers.back().say(runtime::sealed_hello(guess));
  SealedLink link = guess;
  link.nonce_of_listening = strangers.back().hear(runtime::kNonceBytes);
  strangers.back().say(runtime::sealed_proof(runtime::sealed_key("", "job", "all[0,1,2]", at.ticket),
                                             SealedEnd::connects, link));
  EXPECT_EQ(strangers.back().hear(1), "");
  strangers.push_back(Wire::to(at.port));
  strangers.back().say(runtime::sealed_hello(guess));
  strangers.back().say(strangers.back().hear(runtime::kNonceBytes));
  EXPECT_EQ(strangers.back().hear(1), "");
  // In the name of a rank that does not connect to rank 0.
  strangers.push_back(Wire::to(at.port));
  strangers.back().say(runtime::sealed_hello({7, 0, std::string(32, 'n'), {}}));
  EXPECT_EQ(strangers.back().hear(1), "");
  ranks.start(1);
  ranks.start(2);
  ranks.join();
  ranks.expect_connected();
  EXPECT_EQ(ranks.sockets[0].strangers.count, static_cast<std::int64_t>(strangers.size()));
  EXPECT_EQ(ranks.sockets[0].strangers.listener, str("127.0.0.1:", at.port));
  EXPECT_TRUE(ranks.sockets[0].strangers.first.starts_with("127.0.0.1:"));
}

// A process with room for few descriptors, of which strangers take all that they get.
TEST(SealedConnect, StrangersDoNotTakeARanksDescriptors) {
  const testing::TemporaryDirectory directory;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    DirectoryStore store(directory.path());
    std::vector<Wire> strangers;
    if (rank == 0) {
      const rlimit few = {40, 40};
      setrlimit(RLIMIT_NOFILE, &few);
    } else {
      const Listener at = listener_of(store, 0);
      for (int i = 0; i < 60; ++i) strangers.push_back(Wire::to(at.port));
    }
    const SealedSockets connected = connect_sealed(group_of(2), rank, store, options());
    const bool right = connected.sockets[static_cast<std::size_t>(1 - rank)].is_open() &&
                       connected.strangers.count == (rank == 0 ? 60 : 0);
    return right ? "" : str(connected.strangers.count, " strangers");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// A relay that breaks the first connection off before its proof arrives, uses that proof itself, and lets the
// second one pass.
TEST(SealedConnect, ARecordedProofDoesNotOpen) {
  Ranks ranks(2);
  ranks.start(0);
  const Listener at = listener_of(ranks.store, 0);
  const WireListener relay;
  MemoryStore told;
  tell(told, 0, {at.address, at.ticket, relay.port});
  ranks.start(1, told);
  std::string hello, proof;
  {
    const Wire from = relay.next(), to = Wire::to(at.port);
    to.say(hello = from.hear(runtime::kHelloBytes));
    from.say(to.hear(runtime::kNonceBytes));
    proof = from.hear(runtime::kProofBytes);
  }
  {
    const Wire replay = Wire::to(at.port);
    replay.say(hello);
    replay.hear(runtime::kNonceBytes);
    replay.say(proof);
    EXPECT_EQ(replay.hear(runtime::kProofBytes), "");
  }
  const Wire from = relay.next(), to = Wire::to(at.port);
  to.say(from.hear(runtime::kHelloBytes));
  from.say(to.hear(runtime::kNonceBytes));
  to.say(from.hear(runtime::kProofBytes));
  from.say(to.hear(runtime::kProofBytes));
  ranks.join();
  EXPECT_TRUE(ranks.sockets[0].sockets[1].is_open());
  EXPECT_TRUE(ranks.sockets[1].sockets[0].is_open());
  EXPECT_EQ(ranks.sockets[0].strangers.count, 2);
}

template <class E>
E error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
  }
  ADD_FAILURE() << "no such error";
  return E("");
}

TEST(SealedConnect, WhoListensInARanksPlaceProvesNothing) {
  MemoryStore store;
  const WireListener impostor;
  tell(store, 0, {"127.0.0.1", "ticket", impostor.port});
  std::thread listening([&] {
    const Wire wire = impostor.next();
    wire.hear(runtime::kHelloBytes);
    wire.say(std::string(runtime::kNonceBytes, 'n'));
    wire.say(wire.hear(runtime::kProofBytes));  // back
    wire.hear(1);
  });
  const auto error =
      error_of<runtime::AuthenticationError>([&] { connect_sealed(group_of(2), 1, store, options()); });
  listening.join();
  EXPECT_NE(std::string(error.what())
                .find("rank 1 cannot connect group all[0,1]: the program that listens at 127.0.0.1:"),
            std::string::npos)
      << error.what();
}

TEST(SealedConnect, ARankThatListensNoMoreIsLost) {
  MemoryStore store;
  tell(store, 0, {"127.0.0.1", "ticket", WireListener().port});
  const auto error = error_of<runtime::PeerLost>([&] { connect_sealed(group_of(2), 1, store, options()); });
  EXPECT_NE(std::string(error.what()).find("rank 0 no longer listens at 127.0.0.1:"), std::string::npos)
      << error.what();
}

TEST(SealedConnect, NamesWhoHasNotComeInTime) {
  MemoryStore store;
  ErrorFacts facts;
  try {
    connect_sealed(group_of(4), 1, store, options(300ms));
    ADD_FAILURE() << "connected with nobody";
  } catch (const runtime::Timeout& error) {
    EXPECT_STREQ(error.what(),
                 "rank 1 cannot connect group all[0,1,2,3]: ranks 0, 2, 3 have not connected within 300 ms");
    facts = error.facts();
  }
  EXPECT_EQ(facts.culprits, (std::vector<Rank>{0, 2, 3}));
  EXPECT_EQ(facts.group, "all[0,1,2,3]");
}

// Silent: it takes the connection, and says nothing.
TEST(SealedConnect, NamesWhereARankSaidThatItListens) {
  MemoryStore store;
  const WireListener silent;
  tell(store, 0, {"127.0.0.1", "ticket", silent.port});
  const auto error =
      error_of<runtime::Timeout>([&] { connect_sealed(group_of(2), 1, store, options(300ms)); });
  EXPECT_EQ(
      error.what(),
      str("rank 1 cannot connect group all[0,1]: rank 0 has not connected within 300 ms; rank 0 said that "
          "it listens at 127.0.0.1:",
          silent.port, ", which does not answer"));
}

// With another token both wait in vain, and the one that listens says that somebody came.
TEST(SealedConnect, ARankWithAnotherTokenIsAStranger) {
  MemoryStore store;
  const Group group = group_of(2);
  std::thread other([&] {
    SealedOptions wrong = options(2s);
    wrong.token = std::string(64, 'w');
    EXPECT_THROW(connect_sealed(group, 1, store, wrong), Error);
  });
  const auto error = error_of<runtime::Timeout>([&] { connect_sealed(group, 0, store, options(1s)); });
  other.join();
  EXPECT_NE(std::string(error.what()).find(" did not prove the job's token"), std::string::npos)
      << error.what();
}

// As it waits for ranks to connect, and as it waits in the store.
TEST(SealedConnect, AnAbortEndsIt) {
  for (const std::int32_t index : {0, 1}) {
    MemoryStore store;
    std::stop_source abort;
    SealedOptions aborted = options();
    aborted.abort = abort.get_token();
    std::jthread aborter([&] {
      std::this_thread::sleep_for(50ms);
      abort.request_stop();
    });
    const auto error =
        error_of<runtime::PeerLost>([&] { connect_sealed(group_of(2), index, store, aborted); });
    EXPECT_NE(std::string(error.what()).find("was aborted while rank"), std::string::npos) << error.what();
  }
}

TEST(SealedConnect, AnAbortBeforeItBeginsEndsItToo) {
  MemoryStore store;
  std::stop_source abort;
  abort.request_stop();
  SealedOptions aborted = options();
  aborted.abort = abort.get_token();
  EXPECT_THROW(connect_sealed(group_of(2), 0, store, aborted), runtime::PeerLost);
}

}  // namespace
}  // namespace cp
#endif
