// NCCL's interface for profilers, version 4, as far as it is used here: what NCCL 2.27 and later ask of the
// library that NCCL_PROFILER_PLUGIN names. It is laid out as NCCL's public sources say
// (src/include/plugin/profiler/profiler_v4.h), since NCCL's headers do not have it.
//
// The library exports an object `ncclProfiler_v4` of type NcclProfilerV4. NCCL calls init() for each
// communicator, startEvent() for what the event mask asks for, from any thread, and finalize() at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cp::testing {

inline constexpr const char* kNcclProfilerSymbol = "ncclProfiler_v4";
inline constexpr int kProfileCollective = 1 << 1, kProfileTransfer = 1 << 2;  // types of events

struct NcclProfilerEvent {
  struct Collective {
    std::uint64_t number;
    const char* function;  // "AllReduce"
    const void* send;
    void* recv;
    std::size_t count;
    int root;
    const char* datatype;  // "ncclFloat32"
    std::uint8_t channels, warps;
    const char *algorithm, *protocol;
  };
  struct Transfer {
    const char* function;  // "Send", "Recv"
    void* buffer;
    const char* datatype;
    std::size_t count;
    int peer;
    std::uint8_t channels;
  };

  std::uint8_t type;
  void* parent;
  int rank;  // in the communicator
  union {
    Collective collective;
    Transfer transfer;
  };
};

// Results are of ncclResult_t: 0 is success.
struct NcclProfilerV4 {
  const char* name;
  int (*init)(void** context, int* event_mask, const char* communicator_name, std::uint64_t communicator_hash,
              int nodes, int ranks, int rank, void* logger);
  int (*start_event)(void* context, void** event, NcclProfilerEvent* description);
  int (*stop_event)(void* event);
  int (*record_event_state)(void* event, int state, void* arguments);
  int (*finalize)(void* context);
};

}  // namespace cp::testing
