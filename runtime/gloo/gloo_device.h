// GlooDevice: a rank's streams on threads of its process, its memory on the host, its collectives over Gloo and TCP.
//
// Gloo blocks, so each stream has a thread, and each group a context of its own that only the thread of the group's stream
// uses. Contexts are made in prepare() and kept for later plans with the same group.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/errors.h"
#include "shared/plan/device.h"
#include "shared/plan/trace.h"

namespace gloo::rendezvous {
class Store;
}

namespace cp::runtime {

// Of what the device and the rendezvous stand on, by name.
std::map<std::string, std::string> library_versions();

// A collective of this rank that begins.
struct CollectiveBegin {
  const Plan& plan;
  const Collective& collective;
  const Group& group;
  std::int64_t number = 0;  // on its group, since the device was made
  StepId step = 0;          // of the plan
};

// When steps and collectives ran, since the device was made; each stream's in the order in which they ran.
struct GlooTimes {
  std::vector<TimedOp> steps, collectives;
};

struct GlooOptions {
  Rank rank = 0;
  // Where all ranks find one another: a store, such as RendezvousStore; without one a directory that is empty when the first of
  // them starts.
  std::shared_ptr<gloo::rendezvous::Store> store = nullptr;
  std::string store_directory = "";
  std::string hostname = "127.0.0.1";         // of the interface that peers connect to
  std::chrono::milliseconds timeout{30'000};  // of connecting, and of each wait for a peer
  // On the thread of the collective's stream, before it begins; several streams may call at once.
  std::function<void(const CollectiveBegin&)> on_collective = {};
};

// Errors of running work, thrown by synchronize: Timeout and PeerLost, with the operation, the group and the sequence number.
// After one the connections are closed and the device is of no further use. So that a lost peer is an error, SIGPIPE is ignored
// from the first device on, unless the program has a handler of its own.
class GlooDevice : public Device {
 public:
  explicit GlooDevice(GlooOptions options);
  ~GlooDevice() override;

  Rank rank() const override;
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const Step& step, std::int64_t iteration) override;
  EventId record(StreamId stream) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override;
  void download(BufferId buffer, std::span<std::byte> host) override;

  // The collectives since the last call, by stream in order of completion, from the arguments of the calls of Gloo. Sequence
  // numbers begin at 0 again. The device is idle meanwhile.
  std::vector<OpRecord> take_observed();
  // When the steps of the prepared plan ran, and the collectives among them, since the last call.
  GlooTimes take_times();

  // For any thread: closes the connections, so that what waits for a peer ends with PeerLost.
  void abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
