#include "runtime/nccl/nccl_order.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <nccl.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl_versions.h"

namespace cp::runtime {
namespace {

// Before main(): NCCL reads it once, at its first launch, which may be before this device's.
const bool kAsked = [] {
  const char* value = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return value != nullptr && std::string_view(value) == "1";
}();

// How long a look for room waits for the next one. Chosen: shorter than most collectives take.
constexpr std::chrono::microseconds kNap{20};

}  // namespace

bool nccl_keeps_launch_order() {
  int version = 0;
  return kAsked && ncclGetVersion(&version) == ncclSuccess && version >= kNcclLaunchOrderSince;
}

bool NcclOrder::await_turn(const NcclCommunicator& member, cudaStream_t stream) {
  if (!takes_turns(member) || last_.end == nullptr || last_.stream == stream) return false;
  CP_CUDA(cudaStreamWaitEvent(stream, last_.end, 0));
  return true;
}

void NcclOrder::done(NcclCommunicator& member, cudaStream_t stream, cudaEvent_t end) {
  if (takes_turns(member)) last_ = {end, stream};
  member.ends.push_back(end);
}

bool NcclOrder::await_room(NcclCommunicator& member, const NcclHandles& handles, std::size_t count) {
  while (member.ends.reserve() < count) {
    while (!is_finished(member.ends.front())) {
      if (handles.is_ending()) return false;
      std::this_thread::sleep_for(kNap);
    }
    member.ends.pop_front();
  }
  return true;
}

}  // namespace cp::runtime
