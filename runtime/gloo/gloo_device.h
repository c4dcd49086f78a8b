// GlooDevice: a rank's streams on threads of its process, its memory on the host, its collectives over Gloo
// and TCP.
//
// Gloo blocks, so each stream has a thread, and each group a context of its own that only the thread of the
// group's stream uses. Contexts are made in prepare() and kept for later plans with the same group.
//
// Memory: the device owns the arena, as large as that of the largest plan so far, and the buffers of the plan
// prepared last that have no binding. A plan that is prepared again finds them as its last run left them, and
// running it allocates nothing that grows with its tensors. Beside what plans declare, each group in which
// one of them reduces has up to kMostStagingBytes (gloo_reduction.h), made in prepare() and kept; no other
// collective needs memory of its own.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

// Of what the device and the rendezvous stand on, by name.
std::map<std::string, std::string> gloo_library_versions();

struct GlooOptions {
  Rank rank = 0;
  // Where all ranks find one another: a store, such as RendezvousStore; without one a directory that is empty
  // when the first of them starts.
  //
  // Ranks connect with whoever knows the token of the job and what the store says (sealed_connect.h). Without
  // a token the store is the only secret: each listener's random ticket, which ranks find there alone.
  // Whoever may read it may connect.
  std::shared_ptr<gloo::rendezvous::Store> store = nullptr;
  std::string store_directory = "";
  std::string token = {}, job_id = {};
  std::string hostname = "127.0.0.1";         // of the interface that peers connect to
  std::chrono::milliseconds timeout{30'000};  // of connecting a group, and of each wait for a peer
  // Of each wait for a peer, where it is another: a job's server knows better who is lost and who computes.
  std::optional<std::chrono::milliseconds> wait_timeout = {};
  // Of payloads, in the observed records; `each`: compared at each collective, whose errors synchronize
  // throws. Takes the time of reading each payload once more at both ends.
  Checksums checksums = Checksums::off;
  // Inside of prepare(), when the rank has connected to all others of a group: it reads no key any more of
  // the store that begins with the group's canonical name and "/".
  std::function<void(const Group&)> on_connected = {};
  // On the thread of the collective's stream, before it begins; several streams may call at once.
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};  // the same, after it; with its record
  // Told, on the thread that prepares, of strangers who connected and were refused: when the first of them
  // did, and at the device's end of those since.
  std::function<void(const std::string& note)> on_note = {};
};

// After an error of running work the connections are closed. So that a lost peer is an error, SIGPIPE is
// ignored from the first device on, unless the program has a handler of its own.
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

  std::vector<OpRecord> take_observed() override;
  DeviceTimes take_times() override;
  bool host_memory() const override { return true; }
  DeviceActivity activity() const override;
  void abort() override;  // closes the connections, and ends the connecting

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
