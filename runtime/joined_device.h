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

#include "runtime/backend.h"
#include "runtime/job_environment.h"
#include "runtime/process_device.h"
#include "runtime/progress_page.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/transfer_check.h"

namespace cp::runtime {

// Whether threads of a device that has gone are still inside its library (Backend::left_behind): the process is to end by
// std::_Exit().
bool devices_left_behind();

struct JoinedDeviceOptions {
  OnCollective on_collective = {};         // after the server and the launcher's page were told
  OnCollectiveEnd on_collective_end = {};  // the same
  // Of payloads, where the backend has them (Backend::has_checksums); another refuses them.
  Checksums checksums = Checksums::off;
  // All ranks of the job prepare the same plans together, so that a library may connect groups by calls that all ranks make.
  bool every_rank_prepares = false;
  // Where a job has one device after the other: what its keys and its groups begin with, another each time ("profile 1/"). Each
  // device counts its collectives from 0, and ranks are compared by group and number.
  std::string name = {};
  // What the job's backend has of its own, such as NcclBackendOptions; those of another have no effect.
  std::shared_ptr<const BackendOptions> own = {};
};

class JoinedDevice : public ForwardingDevice {
 public:
  // Of the job's backend. Throws InvalidInput for a backend that this build or this machine lacks.
  JoinedDevice(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client,
               JoinedDeviceOptions options = {});
  ~JoinedDevice() override;

  // As ProcessDevice, but prepare and synchronize throw PeerLost with the job's first failure ("rank 2 (host b, pid 4711) at all_gather
  // #17 of cp[0,1,2,3]: ..."). Timeout is thrown where a group does not connect in time, and over NCCL where a collective that all have
  // begun makes no progress; other waits have no end of their own: the server ends them (rendezvous/stall.h). prepare also
  // throws InvalidInput where NCCL would not find the shared memory that the plan's groups need (nccl_pools.h).
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void synchronize() override;

  bool host_memory() const { return device_->host_memory(); }  // as ProcessDevice
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

  const Backend& backend_;
  const std::chrono::milliseconds timeout_;
  const std::string name_;  // of JoinedDeviceOptions
  std::shared_ptr<RendezvousClient> client_;
  std::shared_ptr<ProgressWriter> page_;  // null where no launcher reads it
  std::vector<int> tracks_;               // of the page, by StreamId; grows while the device is idle
  mutable std::mutex mutex_;
  std::vector<std::optional<Activity::Collective>> under_way_;  // by stream
  std::map<std::string, Progress> latest_;  // collective that began, by group as the device names it
  std::optional<Error> last_error_;
  std::atomic<int> calls_{0};              // of prepare() and synchronize(), that have not returned
  std::unique_ptr<ProcessDevice> device_;  // last: its threads use the above
};

}  // namespace cp::runtime
