// A profiler of NCCL's that writes down which calls NCCL was given: the second witness of what a device
// observed, which the device's own list of calls has no part in.
//
// For each communicator that a process makes, while CP_NCCL_WITNESS names a folder, a file in it:
//   communicator HASH RANKS RANK      the hash is equal on all of its ranks, and the rank is its own in it
//   AllReduce COUNT TYPE ROOT         a collective, with the type's name and ncclBroadcast's root
//   Send COUNT TYPE PEER              a transfer, or Recv
// NCCL turns AllGather and Broadcast into ones of bytes before it tells. Lines stand in the order of the
// calls; transfers of one group may be in another order, but not those with one peer.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>

#include "tests/gpu/nccl_profiler_interface.h"

namespace {

using cp::testing::NcclProfilerEvent;

constexpr int kSuccess = 0, kSystemError = 2;  // of ncclResult_t

struct Witness {
  explicit Witness(std::FILE* opened) : file(opened) {}
  ~Witness() { std::fclose(file); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  std::mutex mutex;
  std::FILE* const file;
};

std::atomic<int> g_number{0};

int init(void** context, int* event_mask, const char*, std::uint64_t hash, int, int ranks, int rank, void*) {
  *context = nullptr;
  const char* folder = std::getenv("CP_NCCL_WITNESS");
  if (folder == nullptr) return kSuccess;
  const std::string path =
      std::string(folder) + "/" + std::to_string(getpid()) + "." + std::to_string(g_number++) + ".witness";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return kSystemError;
  std::setvbuf(file, nullptr, _IOLBF, 0);  // what a process wrote before it was ended is there
  std::fprintf(file, "communicator %" PRIu64 " %d %d\n", hash, ranks, rank);
  *context = new Witness(file);
  *event_mask = cp::testing::kProfileCollective | cp::testing::kProfileTransfer;
  return kSuccess;
}

int start_event(void* context, void** event, NcclProfilerEvent* description) {
  *event = nullptr;
  if (context == nullptr) return kSuccess;
  Witness& witness = *static_cast<Witness*>(context);
  const std::lock_guard lock(witness.mutex);
  if (description->type == cp::testing::kProfileCollective) {
    const NcclProfilerEvent::Collective& call = description->collective;
    std::fprintf(witness.file, "%s %zu %s %d\n", call.function, call.count, call.datatype, call.root);
  } else if (description->type == cp::testing::kProfileTransfer) {
    const NcclProfilerEvent::Transfer& call = description->transfer;
    std::fprintf(witness.file, "%s %zu %s %d\n", call.function, call.count, call.datatype, call.peer);
  }
  return kSuccess;
}

int stop_event(void*) { return kSuccess; }
int record_event_state(void*, int, void*) { return kSuccess; }

int finalize(void* context) {
  delete static_cast<Witness*>(context);
  return kSuccess;
}

}  // namespace

// NCCL looks for this name. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) const cp::testing::NcclProfilerV4 ncclProfiler_v4 = {
    "cpsim witness", init, start_event, stop_event, record_event_state, finalize};
