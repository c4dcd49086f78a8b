// RendezvousServer: the ranks of a job find one another through it, and it notices when one is lost. It is
// part of the launcher, or of the process of rank 0, and runs in a thread of its own. Ranks talk to it with
// RendezvousClient.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/errors.h"
#include "runtime/rendezvous/status.h"

namespace cp::runtime {

struct ServerOptions {
  std::string interface =
      "127.0.0.1";         // an address, an interface or a name of this machine; nothing else is listened on
  std::uint16_t port = 0;  // 0: any that is free
  std::string job_id = "cprun";
  std::int32_t world_size = 1;
  std::string token;                                    // of all ranks: make_token(), read_token_file()
  std::chrono::milliseconds handshake_timeout{5'000};   // of a connection that has not proved the token
  std::chrono::milliseconds join_timeout{30'000};       // of all ranks, from the first one on; 0: none
  std::chrono::milliseconds heartbeat_timeout{30'000};  // a rank that is silent for so long is lost
  // A rank that lives and computes counts as stuck if others have waited for it that long; 0 means never.
  std::chrono::milliseconds compute_timeout{0};
  // Called on the server's thread, with a line of text, if ranks wait for a rank that computes for longer
  // than the heartbeat timeout.
  std::function<void(const std::string&)> on_note = {};
  // Ranks 0 to launches - 1 are processes of this server's owner, who reports how they end by
  // report_failure().
  std::int32_t launches = 0;
  int spare_connections = 64;  // beyond one for each rank; of more, the oldest that proved nothing is dropped
  // Called once, on the server's thread, with the first failure. It may use the server, but not destroy it.
  std::function<void(const Failure&)> on_failure = {};
};

class RendezvousServer {
 public:
  // Listens when it returns. Throws InvalidInput, AddressInUse (with the address), RendezvousError.
  explicit RendezvousServer(ServerOptions options);
  ~RendezvousServer();  // ranks that are still there see a lost server

  const std::string& address() const;  // numeric, that it listens on
  std::uint16_t port() const;
  std::string endpoint() const;  // "127.0.0.1:29500"

  // The cause: what happened first. Later failures are its consequences.
  std::optional<Failure> first_failure() const;
  std::vector<Failure> consequences() const;
  std::vector<RankStatus> ranks() const;
  std::size_t num_keys() const;  // that are set, and not freed

  // To be called when the owner's ranks have ended. Blocks until the ranks of all other launchers have ended
  // well, and then returns nothing; otherwise it returns the first failure. The launchers have heard the
  // result when it returns. Launchers that have not come yet have the join timeout from this call on.
  std::optional<Failure> await_end();

  // Reports what the owner knows for sure, for example that a child was killed. If it is the first failure,
  // the ranks are told.
  void report_failure(Failure failure);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
