// GlooDevice is a Device for one rank on CPUs. The rank's streams are threads of its process, its memory is
// on the host, and its collectives go over Gloo and TCP.
//
// Calls of Gloo block, so each stream has a thread of its own. Each group has a Gloo context of its own,
// which only the thread of the group's stream uses. prepare() makes the contexts, and the device keeps them
// for later plans with the same group.
//
// Memory: the device owns the arena, which is as large as that of the largest plan so far, and those buffers
// of the plan prepared last that have no binding. If the same plan is prepared again, they have the contents
// that its last run left. A run allocates nothing that grows with the plan's tensors. Beside what plans
// declare, each group with a collective that reduces has up to kMostStagingBytes (gloo_reduction.h).
// prepare() allocates them, and the group keeps them. No other collective needs memory of its own.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/errors.h"
#include "runtime/process_device.h"
#include "shared/plan/device.h"
#include "shared/plan/trace.h"
#include "shared/plan/transfer_check.h"

namespace gloo::rendezvous {
class Store;
}

namespace cp::runtime {

// The versions of the libraries that the device and the rendezvous use, by name: gloo, protobuf, boost.
std::map<std::string, std::string> gloo_library_versions();

struct GlooOptions {
  Rank rank = 0;
  // Where all ranks find one another: a store such as RendezvousStore or, if there is none, files in
  // `store_directory`, which must be empty when the first rank starts.
  //
  // Ranks connect with whoever knows the token of the job and what the store says (sealed_connect.h). Without
  // a token the store is the only secret: it has the random ticket of each listener, which is nowhere else.
  // So whoever may read the store may then connect.
  std::shared_ptr<gloo::rendezvous::Store> store = nullptr;
  std::string store_directory = "";
  std::string token = {}, job_id = {};
  std::string hostname = "127.0.0.1";  // of the interface that peers connect to

  // How long connecting a group may take, and how long each wait for a peer. 30 s is
  // chosen: long enough for processes that start one after the other.
  std::chrono::milliseconds timeout{30'000};
  // How long each wait for a peer may take, if not `timeout`. In a job with a rendezvous server this is set
  // to a very long time, because the server knows better which ranks are lost and which compute.
  std::optional<std::chrono::milliseconds> wait_timeout = {};

  // Whether the observed records have checksums of payloads. With `each` the members also compare them at
  // each collective; synchronize() throws what differs. Checksums take the time of reading each payload once
  // more at both ends.
  Checksums checksums = Checksums::off;
  // Whether records and times are kept for take_observed() and take_times(). A program that never asks for
  // them saves their memory.
  bool traces = true;
  // Inside of prepare(), when the rank has connected to all others of a group: it reads no key any more of
  // the store that begins with the group's canonical name and "/".
  std::function<void(const Group&)> on_connected = {};
  // Called on the thread of the collective's stream, before the collective begins, and after it with its
  // record. Several streams may call at once.
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};
  // Told of strangers who connected and were refused: first by prepare(), about the first group where that
  // happened, and then by the destructor, with the total, if there were more since.
  std::function<void(const std::string& note)> on_note = {};
};

// If work fails, the device closes its connections, and synchronize() throws the error: PeerLost, Timeout,
// CollectiveMismatch, or what a callback threw. So that a lost peer is an error and does not end the process,
// SIGPIPE is ignored from the first device on, unless the program has a handler of its own.
class GlooDevice : public ProcessDevice {
 public:
  explicit GlooDevice(GlooOptions options);
  ~GlooDevice() override;

  Rank rank() const override;
  const Target& target() const override;  // the host's
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const StepRef& step, std::int64_t iteration) override;
  EventId record(StreamId stream) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override;
  void download(BufferId buffer, std::span<std::byte> host) override;

  // Memory of a kept plan: its own arena, and its own buffers that have no binding. Lanes have threads of
  // their own.
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override;
  void use(PreparedId prepared, const Bindings& changed) override;
  void release(PreparedId prepared) override;
  bool has_happened(EventId event) override;
  void await(EventId event) override;
  void begin_run(CallerStream caller) override;
  void begin_run_after(std::span<const EventId> events) override;
  void end_run(CallerStream caller, EventId end) override;

  std::vector<OpRecord> take_observed() override;
  DeviceTimes take_times() override;
  bool host_memory() const override { return true; }
  DeviceActivity activity() const override;
  void abort() override;  // closes the connections, and ends a prepare() that is connecting; for any thread

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
