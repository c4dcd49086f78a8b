// Backend: what runs the plans of a job's processes, by name. JoinedDevice, Job and cprun ask here alone what a back end has and needs;
// each back end answers in a file of its own:
//
//   runtime/gloo/gloo_backend.cc   processes on CPUs     (no_gloo_backend.cc in a build without Gloo)
//   runtime/nccl/nccl_backend.cc   a GPU for each rank   (no_nccl_backend.cc in a build without CUDA and NCCL)
//
// CMake chooses which of the two is compiled; both define the same function, and backends() lists what these functions return. A static
// object that registers itself would be left out by the linker, which takes from a library only what somebody names.
#pragma once

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

// Options that one back end alone has, such as NcclBackendOptions (runtime/nccl/nccl_backend.h). The others do not look at them.
struct BackendOptions {
  virtual ~BackendOptions() = default;
};

// What a back end makes a rank's device from.
struct DeviceRequest {
  const JobEnvironment& job;
  std::shared_ptr<RendezvousClient> client;
  std::string
      name;  // what the keys that it shares with other ranks begin with, another for each device of a job
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};
  Checksums checksums = Checksums::off;
  bool every_rank_prepares = false;  // all ranks of the job prepare the same plans together
  // Of a collective without progress for the job's timeout: whether it may go on, since a member that has not begun it lives.
  std::function<bool(const CollectiveBegin&)> may_wait = {};
  const BackendOptions* own = nullptr;
};

// Network of a job, as its launcher knows it.
struct LaunchNetwork {
  std::string interface;  // that the user asked for; empty: none
  int machines = 1;
};

struct Backend {
  std::string name;            // of --backend and CPRUN_BACKEND: "gloo"
  std::string why_not = {};    // why this build lacks it, and what to do; empty where it has it
  bool on_gpus = false;        // each rank has a GPU (rank_gpu.h), whose memory its buffers are
  bool has_checksums = false;  // of payloads, where somebody asks for them

  // Of a back end that this build has; those below may be null, where it has nothing to say.
  std::unique_ptr<ProcessDevice> (*make)(DeviceRequest request) = nullptr;
  // Of what its devices and the rendezvous stand on, by name.
  std::map<std::string, std::string> (*library_versions)() = nullptr;
  // Which GPU the rank has: rank_gpu() of rank_gpu.h.
  RankGpu (*rank_gpu)(const JobEnvironment& job, RendezvousClient& client) = nullptr;
  // "NAME=value", ...: what its libraries are to find in a rank's environment, but for what the user has set.
  std::vector<std::string> (*variables)(const JobEnvironment& rank, const LaunchNetwork& network) = nullptr;
  // Whether threads of a device that has gone are still inside its library.
  bool (*left_behind)() = nullptr;
};

// All that the project has, those that this build lacks among them.
const std::vector<Backend>& backends();
// Throws InvalidInput, with the names that there are.
const Backend& find_backend(std::string_view name);
// The same, and throws InvalidInput with why_not for one that this build lacks.
const Backend& require_backend(std::string_view name);

// As Backend::library_versions; empty for a back end that this build lacks.
std::map<std::string, std::string> library_versions(std::string_view backend);

}  // namespace cp::runtime
