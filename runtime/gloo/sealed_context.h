// Makes Gloo contexts over connections that exist already (sealed_connect.h).
//
// Gloo's own pairs (the ends of its connections) listen, and take whoever connects first. The pairs here are
// subclasses of Gloo's that begin with a connection. They differ from Gloo's in two more ways:
//   - If something goes wrong with a message on Gloo's thread, Gloo ends the process. Here it is an error of
//     the pair, which whoever waits for the pair gets.
//   - If a message is shorter than the receive that it is for, Gloo takes the receive for complete. Here it
//     is a PayloadSizeError.
//
// The subclasses use protected members of Gloo, those of the version that Debian has (0.5.0 of 2022).
// cmake/gloo/probe.cc checks that all of them exist when the build is configured.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/device.h>

#include "runtime/descriptor.h"

namespace cp::runtime {

// Thrown by a wait if a member of the group sent a message of another size than the receive that it is for.
class PayloadSizeError : public gloo::IoException {
 public:
  PayloadSizeError(std::int32_t from, std::size_t sent, std::size_t expected);
  const std::int32_t sender;  // the member's place in the group
  const std::size_t sent_bytes, expected_bytes;
};

// Makes the device of Gloo, whose thread serves all connections of the contexts made with it. Throws
// InvalidInput on a machine without a loopback interface.
std::shared_ptr<gloo::transport::Device> make_gloo_thread();

// A counter of the bytes that have arrived, which Gloo's thread moves on as they arrive. Any thread may read
// it.
using ArrivedBytes = std::shared_ptr<std::atomic<std::uint64_t>>;

// The checksums of the payloads that passed on a context's connections. They are taken between the memory and
// the sockets, when a cache has the bytes anyway.
//
// The checksums of the messages of one connection are folded into one in their order, which is the same at
// both ends. Messages with even and with odd slots are folded apart, so that a collective can tell two kinds
// of messages. A message is folded in before the wait for it returns.
class PassedPayloads {
 public:
  struct Checksums {
    std::uint64_t even = 0, odd = 0;  // 0: no message
  };
  struct Connection {
    Checksums sent, received;
  };
  explicit PassedPayloads(std::size_t size) : connections_(size) {}

  Connection& of(std::size_t place) { return connections_.at(place); }  // by place in the group

  // Returns the checksum of a message that is sent. If the same memory goes to many members in one slot, it
  // is read only once. Any thread may call this.
  std::uint64_t checksum_of(std::span<const std::byte> payload, std::uint64_t slot);

  // Forgets everything. Call it only while no message is under way.
  void clear();

 private:
  std::vector<Connection> connections_;
  std::mutex mutex_;  // guards what follows
  std::map<std::tuple<const std::byte*, std::size_t, std::uint64_t>, std::uint64_t> known_;
};

// Makes a context of the connections `sockets`, which are by place in the group, with none at `index`, the
// own place. The context owns them. `timeout` is that of each wait. If `passed` is null, no checksums are
// taken.
std::shared_ptr<gloo::Context> make_gloo_context(std::shared_ptr<gloo::transport::Device> device,
                                                 std::int32_t index, std::vector<Descriptor> sockets,
                                                 std::chrono::milliseconds timeout, ArrivedBytes arrived,
                                                 std::shared_ptr<PassedPayloads> passed);

}  // namespace cp::runtime
