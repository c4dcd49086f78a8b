// Connects the ranks of a group with one another. Both ends of each connection prove that they know the job's
// token (sealed_proof.h) before Gloo gets the connection.
//
// Each rank but the last of the group listens on one port while the group connects, and tells the store
// where. Each rank connects to all that come before it in the group, and accepts connections from those
// behind it. All of this happens at once on the calling thread, so that ranks may connect in any order.
//
// Strangers who connect do not hold up the ranks: connections that have proven nothing yet are served side by
// side, and if there are too many, the oldest is closed. A rank whose connection was closed in this way
// connects again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include <gloo/rendezvous/store.h>

#include "runtime/descriptor.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct SealedOptions {
  // Whoever connects must know what the store tells, and the token. Without a token the store is the only
  // secret.
  std::string token = {}, job_id = {};
  std::string address = "127.0.0.1";          // a numeric address of this machine; the others connect to it
  std::chrono::milliseconds timeout{30'000};  // until the whole group must be connected; chosen
  std::stop_token abort = {};                 // ends the connecting, from any thread
};

// Connections that did not come from the group's ranks and were refused.
struct Strangers {
  std::int64_t count = 0;
  // "127.0.0.1:4711": where this rank listened, and where the first stranger connected from.
  std::string listener = {}, first = {};
};

struct SealedSockets {
  // By place in the group; there is none at the own place. Programs that are started later do not inherit
  // them.
  std::vector<Descriptor> sockets;
  Strangers strangers;
};

// How many connections that have not proven the token are served at a time. Chosen: it bounds the number of
// descriptors that strangers can make a rank keep open.
inline constexpr std::size_t kMostUnproven = 128;

// Blocks until this rank, at place `index` of the group, is connected with all others. `store` must be for
// this group alone. Throws
//   Timeout              if ranks have not come in time; its text and its facts name them
//   PeerLost             if a rank has stopped listening, or after an abort
//   AuthenticationError  if whatever listens at a rank's address does not know the token
//   RendezvousError      if a rank's entry in the store is not an address
// and what the store throws.
SealedSockets connect_sealed(const Group& group, std::int32_t index, gloo::rendezvous::Store& store,
                             const SealedOptions& options);

}  // namespace cp::runtime
