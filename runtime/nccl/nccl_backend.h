// The nccl back end: a GPU for each rank. What it has of its own beside what every back end has.
#pragma once

#include <optional>

#include "runtime/backend.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/rank_gpu.h"

namespace cp::runtime {

// For JoinedDeviceOptions::own.
struct NcclBackendOptions final : BackendOptions {
  std::optional<RankGpu> gpu = {};  // unset: as rank_gpu() says, which all ranks of the job then ask
  NcclCommOptions communicators = {};
};

Backend nccl_backend();

}  // namespace cp::runtime
