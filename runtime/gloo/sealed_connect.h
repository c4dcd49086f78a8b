// Connects a group's ranks with one another by connections that have proven the job's token (sealed_proof.h),
// before Gloo gets them.
//
// Each rank but the last listens on one port while the group connects, and tells the store where; each
// connects to all that come before it in the group, and takes connections from those behind. All of it goes
// on at once on the calling thread, so that no rank waits for another by the order in which it connects.
//
// Whoever else connects keeps nobody waiting: connections that have proven nothing are served side by side,
// and when there are many, the oldest goes; a rank whose connection went that way connects again.
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
  // What the store tells is known to all who may read it. With a token, who connects knows that, too; without
  // one, that store is all the secret there is.
  std::string token = {}, job_id = {};
  std::string address = "127.0.0.1";          // numeric, of this machine, that the others connect to
  std::chrono::milliseconds timeout{30'000};  // of the whole group
  std::stop_token abort = {};                 // ends the connecting, from any thread
};

// Connections of others than the group's ranks, which were refused.
struct Strangers {
  std::int64_t count = 0;
  std::string listener = {},
              first = {};  // "127.0.0.1:4711": where the first of them connected, and from where
};

struct SealedSockets {
  std::vector<Descriptor>
      sockets;  // by place in the group, none at the own one; not inherited by programs started later
  Strangers strangers;
};

// How many connections that have not proved the token are served at a time. Chosen: it bounds what strangers
// can make a rank keep open.
inline constexpr std::size_t kMostUnproven = 128;

// Blocks until this rank, at place `index` of the group, is connected with all others. The store is the
// group's own. Throws Timeout that names who has not come, as facts too; PeerLost for a rank that has stopped
// listening and after an abort; AuthenticationError when what listens at a rank's address does not know the
// token; and what the store throws.
SealedSockets connect_sealed(const Group& group, std::int32_t index, gloo::rendezvous::Store& store,
                             const SealedOptions& options);

}  // namespace cp::runtime
