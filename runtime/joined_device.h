// JoinedDevice: a rank's device as part of a job. Its groups connect through the job's rendezvous server; the server is told of
// each collective that begins, so that it can name who is stuck and who does something else than the others; a launcher on this machine
// finds in the page that it shares with the rank what each stream is in (runtime/progress_page.h); when the job fails, what
// waits here ends; and errors say who failed first, or who has not come.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl_pools.h"
#include "runtime/process_device.h"
#include "runtime/progress_page.h"
#include "runtime/rank_gpu.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/plan/target.h"
#include "shared/plan/transfer_check.h"

namespace cp::runtime {

// Of what a backend's device and the rendezvous stand on, by name; empty for a backend that this build lacks.
std::map<std::string, std::string> library_versions(Backend backend);
// Throws InvalidInput for a backend that this build lacks: what it was built without.
void require_backend(Backend backend);

// Whether threads of a device that has gone are still inside its library (left_behind() of nccl_device.h): the process is to end by
// std::_Exit().
bool devices_left_behind();

struct JoinedDeviceOptions {
  OnCollective on_collective = {};         // after the server and the launcher's page were told
  OnCollectiveEnd on_collective_end = {};  // the same
  // Of payloads (GlooOptions). The nccl backend has none and refuses them: its kernels send and reduce on the GPU, out of sight.
  Checksums checksums = Checksums::off;
  // Of the nccl backend.
  std::optional<RankGpu> gpu = {};  // unset: as rank_gpu() says, which all ranks of the job then ask
  NcclCommOptions communicators = {};
  // All ranks of the job prepare the same plans together: their communicators are split from the job's.
  bool every_rank_prepares = false;
  // Where a job has one device after the other: what its keys and its groups begin with, another each time ("profile 1/"). Each
  // device counts its collectives from 0, and ranks are compared by group and number.
  std::string name = {};
};

class JoinedDevice : public Device {
 public:
  // Of the job's backend. Throws InvalidInput for a backend that this build or this machine lacks.
  JoinedDevice(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client,
               JoinedDeviceOptions options = {});
  ~JoinedDevice() override;

  // As ProcessDevice, but prepare and synchronize throw PeerLost with the job's first failure ("rank 2 (host b, pid 4711) at all_gather
  // #17 of cp[0,1,2,3]: ..."). Timeout is thrown where a group does not connect in time, and over NCCL where a collective that all have
  // begun makes no progress; other waits have no end of their own: the server ends them (rendezvous/stall.h). prepare throws InvalidInput where NCCL would not find the shared memory that the plan's groups need (nccl_pools.h).
  Rank rank() const override { return device_->rank(); }
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const StepRef& step, std::int64_t iteration) override { device_->launch(step, iteration); }
  EventId record(StreamId stream) override { return device_->record(stream); }
  void wait(StreamId stream, EventId event) override { device_->wait(stream, event); }
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override { device_->upload(buffer, host); }
  void download(BufferId buffer, std::span<std::byte> host) override { device_->download(buffer, host); }

  bool host_memory() const { return device_->host_memory(); }  // as ProcessDevice
  // What plans for this device are best made for; it runs those for others too, where it has their operations.
  const Target& target() const override { return *target_; }

  std::vector<OpRecord> take_observed() { return device_->take_observed(); }
  DeviceTimes take_times() { return device_->take_times(); }

  // What prepare or synchronize threw last.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  void tell(const CollectiveBegin& begin);
  void tell_end(StreamId stream);
  Activity activity() const;
  bool somebody_may_come(const CollectiveBegin& begin) const;
  int track(StreamId stream) const { return tracks_[static_cast<std::size_t>(stream)]; }
  template <class F>
  void naming_the_cause(const F& f);
  template <class F>
  void name_the_cause(const F& f);
  std::optional<Failure> cause_of_the_end() const;
  std::optional<std::string> who_is_missing(const std::string& group) const;

  std::unique_ptr<ProcessDevice> make_gloo(const JobEnvironment& job, JoinedDeviceOptions options);
  std::unique_ptr<ProcessDevice> make_nccl(const JobEnvironment& job, JoinedDeviceOptions options);

  const std::chrono::milliseconds timeout_;
  const std::string name_;  // of JoinedDeviceOptions
  std::shared_ptr<RendezvousClient> client_;
  std::shared_ptr<ProgressWriter> page_;  // null where no launcher reads it
  std::vector<int> tracks_;               // of the page, by StreamId; grows while the device is idle
  mutable std::mutex mutex_;
  std::vector<std::optional<Activity::Collective>> under_way_;  // by stream
  std::map<std::string, Progress> latest_;  // collective that began, by group as the device names it
  std::optional<Error> last_error_;
  const Target* target_;
  std::optional<NcclPools> pools_;         // of the nccl backend
  std::atomic<int> calls_{0};              // of prepare() and synchronize(), that have not returned
  std::unique_ptr<ProcessDevice> device_;  // last: its threads use the above
};

}  // namespace cp::runtime
