// NCCL's interface for profilers, as the emulated NCCL offers it to the library that NCCL_PROFILER_PLUGIN
// names: version 4, the events of collectives and transfers.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/emulated_gpu/nccl_transfer.h"

namespace cp::testing {
struct NcclProfilerV4;
}

namespace cp::emulated {

// The profiler's view of one rank of a communicator. Where there is no profiler nothing happens.
class NcclProfiler {
 public:
  NcclProfiler(std::uint64_t communicator, int ranks, int rank);
  ~NcclProfiler();
  NcclProfiler(const NcclProfiler&) = delete;
  NcclProfiler& operator=(const NcclProfiler&) = delete;

  // As NCCL 2.28 does: AllGather and Broadcast as ones of bytes, and nothing of a communicator of one rank.
  void tell(const std::vector<NcclOperation>& operations) const;

 private:
  const testing::NcclProfilerV4* plugin_;
  const int ranks_, rank_;
  void* context_ = nullptr;
  int event_mask_ = 0;
};

}  // namespace cp::emulated
