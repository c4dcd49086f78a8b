// Backend: what runs the plans of a job's processes, found by its name. JoinedDevice, Job and cprun ask only
// here what a back end has and needs; each back end answers in a file of its own:
//
//   runtime/gloo/gloo_backend.cc   processes on CPUs     (no_gloo_backend.cc in a build without Gloo)
//   runtime/nccl/nccl_backend.cc   a GPU for each rank   (no_nccl_backend.cc in a build without CUDA and
//                                  NCCL)
//
// CMake chooses which of the two is compiled; both define the same function, and backends() lists what these
// functions return. A static object that registers itself would be left out by the linker, which takes from a
// library only what somebody names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/process_device.h"
#include "runtime/rank_gpu.h"
#include "shared/plan/transfer_check.h"

namespace cp::runtime {

// Options that one back end alone has, such as NcclBackendOptions (runtime/nccl/nccl_backend.h). The others
// do not look at them.
struct BackendOptions {
  virtual ~BackendOptions() = default;
};

// What a back end makes a rank's device from.
struct DeviceRequest {
  const JobEnvironment& job;
  std::shared_ptr<RendezvousClient> client;
  // The beginning of the keys that the device shares with other ranks. Each device of a job has another one.
  std::string name;
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};
  Checksums checksums = Checksums::off;
  bool every_rank_prepares = false;  // all ranks of the job prepare the same plans together
  bool traces = true;                // somebody asks the device for records and times
  // Asked when a collective has made no progress for the job's timeout: whether it may go on waiting, because
  // a member that has not begun it is alive.
  std::function<bool(const CollectiveBegin&)> may_wait = {};
  // Where the members of a group meet while they prepare a plan: returns what each gave as `own`, in the
  // order of group.ranks, when all have called it with this number of the group's meetings. It waits for as
  // long as they live, and throws PeerLost if the job fails.
  std::function<std::vector<std::string>(const Group& group, std::int64_t number, const std::string& own)>
      agree = {};
  const BackendOptions* own = nullptr;
};

// The network of a job, as its launcher knows it.
struct LaunchNetwork {
  std::string interface;  // the one that the user asked for; empty if none was
  int machines = 1;
};

struct Backend {
  std::string name;            // of --backend and CPRUN_BACKEND: "gloo"
  std::string why_not = {};    // why this build lacks it, and what to do; empty where it has it
  bool on_gpus = false;        // each rank has a GPU (rank_gpu.h), whose memory its buffers are
  bool has_checksums = false;  // of payloads, where somebody asks for them

  // Makes a device. It is null only for a back end that this build lacks; each function below may be null if
  // a back end has nothing to say.
  std::unique_ptr<ProcessDevice> (*make)(DeviceRequest request) = nullptr;
  // The versions of the libraries that its devices and the rendezvous are built on, by name.
  std::map<std::string, std::string> (*versions)() = nullptr;
  // Says which GPU the rank has, as rank_gpu() of rank_gpu.h.
  RankGpu (*rank_gpu)(const JobEnvironment& job, RendezvousClient& client) = nullptr;
  // What its libraries need to find in a rank's environment, as "NAME=value". What the user has set is left
  // as it is.
  std::vector<std::string> (*variables)(const JobEnvironment& rank, const LaunchNetwork& network) = nullptr;
  // Whether threads of a device that has gone are still inside its library.
  bool (*left_behind)() = nullptr;
};

// All back ends of the project, also those that this build lacks.
const std::vector<Backend>& backends();
// The back end of that name. Throws InvalidInput, with the names that there are, if none has it.
const Backend& find_backend(std::string_view name);
// The same, but it also throws InvalidInput, with why_not, for a back end that this build lacks.
const Backend& require_backend(std::string_view name);

// What Backend::versions returns; empty for a back end that this build lacks.
std::map<std::string, std::string> library_versions(std::string_view backend);

}  // namespace cp::runtime
