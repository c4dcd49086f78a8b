// Jobs for tests: a server, ranks on threads, and peers that do not keep the rules.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/rendezvous/authentication.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/frame.h"
#include "runtime/rendezvous/server.h"

namespace cp::testing {

inline const std::string kToken = "0123456789abcdef0123456789abcdef";

// Far beyond what a busy machine needs.
constexpr std::chrono::seconds kPatience{30};

runtime::ServerOptions server_options(int world_size);
runtime::ClientOptions client_options(const runtime::RendezvousServer& server, Rank rank, int world_size);
std::unique_ptr<runtime::RendezvousClient> join(const runtime::RendezvousServer& server, Rank rank,
                                                int world_size);

// The ranks as clients, in order.
std::vector<std::unique_ptr<runtime::RendezvousClient>> join_all(const runtime::RendezvousServer& server,
                                                                 int world_size);

// body(rank) on a thread for each rank; what each threw: "timeout: message", with the kind's name, else "".
std::vector<std::string> run_ranks(int count, const std::function<void(Rank)>& body);

// "timeout: message" of what it throws, else "".
std::string error_of(const std::function<void()>& body);

// Whether it holds within kPatience.
bool soon(const std::function<bool()>& condition);

// A connection that says what a test wants it to.
class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void send(std::string_view bytes);
  void send(const proto::RendezvousMessage& message);  // as a plain frame
  std::optional<proto::RendezvousFrame> receive();     // nothing when the other side closes
  bool is_closed();                                    // waits for it, and drops what comes before

  // The first exchange, as a rank does it. What was sent is kept.
  void join(runtime::Handshake handshake, const std::string& token);
  std::optional<runtime::Session> session;
  std::string sent;

 private:
  bool read();
  int descriptor_ = -1;
  runtime::FrameParser parser_;
};

proto::RendezvousMessage hello_of(const runtime::Handshake& handshake);
runtime::Handshake handshake_of(Rank rank, int world_size);

}  // namespace cp::testing
