// The nccl back end gives each rank a GPU. This header has the back end, and the options that only it has.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/backend.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/rank_gpu.h"

namespace cp::runtime {

// To be given in JoinedDeviceOptions::own.
struct NcclBackendOptions final : BackendOptions {
  // The rank's GPU. If it is not set, Backend::rank_gpu chooses it; then all ranks of the job must leave it
  // unset, because they tell each other their GPUs.
  std::optional<RankGpu> gpu = {};
  NcclCommOptions communicators = {};
  // Those of NcclOptions.
  bool graphs = false;
  std::function<void(const std::string&)> on_refused_graph = {};
};

// In a build without CUDA and NCCL the back end has no `make`, and `why_not` says what is missing
// (no_nccl_backend.cc).
Backend nccl_backend();

}  // namespace cp::runtime
