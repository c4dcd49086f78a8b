// Gloo over connections that have been made already (sealed_connect.h).
//
// Gloo's own pairs listen for anybody and take whoever comes first. Those here are subclasses of Gloo's that
// begin with a connection. Two more things differ from Gloo's: what goes wrong with a message on Gloo's
// thread is an error of the pair and of who waits for it there, where Gloo ends the process; and a message
// that is shorter than what it was to fill is such an error too, where Gloo calls it complete.
//
// The subclasses stand on Gloo's protected members, those of the version that Debian has (0.5.0 of 2022):
// cmake/gloo/probe.cc asks for all of them when the build is configured.
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

// A member of the group sent a message of another size than the receive that it was for.
class PayloadSizeError : public gloo::IoException {
 public:
  PayloadSizeError(std::int32_t from, std::size_t sent, std::size_t expected);
  const std::int32_t sender;  // its place in the group
  const std::size_t sent_bytes, expected_bytes;
};

// The thread that Gloo's connections are served by. Throws InvalidInput on a machine without a loopback
// interface.
std::shared_ptr<gloo::transport::Device> make_gloo_thread();

// Bytes that have arrived, counted as they do.
using ArrivedBytes = std::shared_ptr<std::atomic<std::uint64_t>>;

// Checksums of the payloads that passed on a context's connections, taken between the memory and the sockets,
// when a cache has the bytes anyway. Those of a connection fold in its order, which is one at both its ends;
// messages of even and of odd slots apart, so that a collective can tell two kinds. A message is in them
// before the wait for it returns.
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

  // Of a message that is sent: what goes to many members in one slot is read once. For any thread.
  std::uint64_t checksum_of(std::span<const std::byte> payload, std::uint64_t slot);

  // Forgets everything; nothing is under way.
  void clear();

 private:
  std::vector<Connection> connections_;
  std::mutex mutex_;  // of what follows
  std::map<std::tuple<const std::byte*, std::size_t, std::uint64_t>, std::uint64_t> known_;
};

// `sockets`: by place in the group, none at `index`, the own one. The timeout is that of each wait. Without
// `passed` there are no checksums.
std::shared_ptr<gloo::Context> make_gloo_context(std::shared_ptr<gloo::transport::Device> device,
                                                 std::int32_t index, std::vector<Descriptor> sockets,
                                                 std::chrono::milliseconds timeout, ArrivedBytes arrived,
                                                 std::shared_ptr<PassedPayloads> passed);

}  // namespace cp::runtime
