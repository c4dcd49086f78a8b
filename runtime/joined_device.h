// JoinedDevice: a rank's device as part of a job. It adds to the backend's device what only a job can do:
//   - Its groups connect through the job's rendezvous server.
//   - It tells the server of each collective that begins, so that the server can name ranks that are stuck
//     and ranks that do something else than the others.
//   - It shows a launcher on the same machine what each stream is in, on a page of memory that both share
//     (runtime/progress_page.h).
//   - When the job fails, whatever waits here ends.
//   - Its errors say which rank failed first, or which has not come.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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

// Whether threads of a device that has gone are still inside its library (Backend::left_behind). If so, the
// process must end by std::_Exit().
bool devices_left_behind();

struct JoinedDeviceOptions {
  // Both are called after the server and the launcher's page were told.
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};
  // Checksums of payloads. A backend without them (Backend::has_checksums) refuses any but `off`.
  Checksums checksums = Checksums::off;
  // True if all ranks of the job prepare the same plans together; a library may then connect groups by calls
  // that all ranks make.
  bool every_rank_prepares = false;
  // Whether take_observed() and take_times() will be called. If not, the device keeps nothing for them.
  bool traces = true;
  // Whether prepare() leaves what was observed so far for take_observed(), which is then asked once, for all
  // plans of the job. If not, prepare() drops it.
  bool keeps_observed = false;
  // If a job has one device after the other, each needs a name of its own ("profile 1/"), with which its keys
  // and groups begin. Each device counts its collectives from 0, and ranks are compared by group and number:
  // without names two devices would be mixed up.
  std::string name = {};
  // Options that only the job's backend has, such as NcclBackendOptions. Options of another backend have no
  // effect.
  std::shared_ptr<const BackendOptions> own = {};
};

class JoinedDevice : public ForwardingDevice {
 public:
  // Makes a device of the job's backend. Throws InvalidInput if this build or this machine lacks it.
  JoinedDevice(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client,
               JoinedDeviceOptions options = {});
  ~JoinedDevice() override;

  // These do the same as those of a ProcessDevice, but their PeerLost tells the job's first failure: "rank 2
  // (host b, pid 4711) at all_gather #17 of cp[0,1,2,3]: ...". They throw Timeout if a group whose members
  // have come does not connect, and over NCCL if a collective that all have begun makes no progress. Other
  // waits have no end of their own; the server ends them (rendezvous/stall.h). prepare also throws
  // InvalidInput for groups without the shared memory or descriptors that NCCL needs (nccl_pools.h,
  // nccl_descriptors.h).
  void prepare(const Plan& plan, const Bindings& bindings) override;
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override;
  void synchronize() override;
  void await(EventId event) override;

  bool host_memory() const { return device_->host_memory(); }  // as ProcessDevice
  std::unique_ptr<DeviceMemory> memory() { return device_->memory(); }
  std::vector<OpRecord> take_observed() { return device_->take_observed(); }
  DeviceTimes take_times() { return device_->take_times(); }

  // The error that prepare or synchronize threw last, if any.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  void tell(const CollectiveBegin& begin);
  void tell_end(StreamId stream);
  std::vector<std::string> meet(const Group& group, std::int64_t number, const std::string& own);
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
  const std::string name_;     // of JoinedDeviceOptions
  const bool keeps_observed_;  // likewise
  std::shared_ptr<RendezvousClient> client_;
  std::shared_ptr<ProgressWriter> page_;                        // null where no launcher reads it
  mutable std::mutex mutex_;                                    // of what follows, up to last_error_
  std::vector<int> tracks_;                                     // of the page, by stream of the device
  std::vector<std::optional<Activity::Collective>> under_way_;  // by stream
  std::optional<Activity::Collective> meeting_;                 // that the rank's thread waits in
  struct Begun {
    Progress progress;
    std::chrono::milliseconds patience{0};  // of the device
  };
  std::map<std::string, Begun> latest_;  // collective that began, by group as the device names it
  std::optional<Error> last_error_;
  std::atomic<int> calls_{0};              // of prepare() and synchronize(), that have not returned
  std::unique_ptr<ProcessDevice> device_;  // last: its threads use the above
};

}  // namespace cp::runtime
