#include "tests/rendezvous/test_job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "shared/base/error.h"

namespace cp::testing {

using namespace std::chrono_literals;
using runtime::RendezvousClient;
using runtime::RendezvousServer;

runtime::ServerOptions server_options(int world_size) {
  return {.job_id = "job", .world_size = world_size, .token = kToken};
}

runtime::ClientOptions client_options(const RendezvousServer& server, Rank rank, int world_size) {
  return {.host = server.address(),
          .port = server.port(),
          .job_id = "job",
          .rank = rank,
          .world_size = world_size,
          .token = kToken,
          .timeout = kPatience};
}

std::unique_ptr<RendezvousClient> join(const RendezvousServer& server, Rank rank, int world_size) {
  return std::make_unique<RendezvousClient>(client_options(server, rank, world_size));
}

std::vector<std::unique_ptr<RendezvousClient>> join_all(const RendezvousServer& server, int world_size) {
  std::vector<std::unique_ptr<RendezvousClient>> clients;
  clients.reserve(static_cast<std::size_t>(world_size));
  for (Rank rank = 0; rank < world_size; ++rank) clients.push_back(join(server, rank, world_size));
  return clients;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return str(name(error.kind()), ": ", error.what());
  }
}

std::vector<std::string> run_ranks(int count, const std::function<void(Rank)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (Rank rank = 0; rank < count; ++rank) {
    threads.emplace_back(
        [&, rank] { errors[static_cast<std::size_t>(rank)] = error_of([&] { body(rank); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

bool soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

RawPeer::RawPeer(std::uint16_t port) {
  descriptor_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CP_INVARIANT(connect(descriptor_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "port ", port);
}

RawPeer::~RawPeer() { close(descriptor_); }

void RawPeer::send(std::string_view bytes) {
  sent.append(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void RawPeer::send(const proto::RendezvousMessage& message) {
  proto::RendezvousFrame frame;
  frame.set_message(message.SerializeAsString());
  send(runtime::encode_frame(frame));
}

bool RawPeer::read() {
  pollfd wanted{descriptor_, POLLIN, 0};
  const auto patience = std::chrono::milliseconds(kPatience);
  CP_INVARIANT(poll(&wanted, 1, static_cast<int>(patience.count())) == 1,
               "the server neither answers nor closes");
  char bytes[4096];
  const ssize_t count = recv(descriptor_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  parser_.feed({bytes, static_cast<std::size_t>(count)});
  return true;
}

std::optional<proto::RendezvousFrame> RawPeer::receive() {
  while (true) {
    if (auto frame = parser_.next()) return frame;
    if (!read()) return std::nullopt;
  }
}

bool RawPeer::is_closed() {
  while (read()) {
  }
  return true;
}

void RawPeer::join(runtime::Handshake handshake, const std::string& token) {
  send(hello_of(handshake));
  const auto frame = receive();
  CP_INVARIANT(frame.has_value(), "no challenge");
  handshake.server_nonce = runtime::parse_message(frame->message()).challenge().nonce();
  session.emplace(token, handshake, runtime::Side::rank);
  proto::RendezvousMessage message;
  message.mutable_join();
  send(runtime::encode_frame(session->seal(message.SerializeAsString())));
}

proto::RendezvousMessage hello_of(const runtime::Handshake& handshake) {
  proto::RendezvousMessage message;
  auto& hello = *message.mutable_hello();
  hello.set_protocol_version(handshake.protocol_version);
  hello.set_job_id(handshake.job_id);
  hello.set_rank(handshake.rank);
  hello.set_world_size(handshake.world_size);
  hello.set_nonce(handshake.rank_nonce);
  hello.set_host(handshake.host);
  hello.set_pid(handshake.pid);
  return message;
}

runtime::Handshake handshake_of(Rank rank, int world_size) {
  return {.job_id = "job",
          .rank = rank,
          .world_size = world_size,
          .host = "elsewhere",
          .pid = 7,
          .rank_nonce = runtime::make_nonce(),
          .server_nonce = {}};
}

}  // namespace cp::testing
