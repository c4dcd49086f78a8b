#include "tests/emulated_gpu/nccl_profiler.h"

#include <array>
#include <cstdlib>

#include <dlfcn.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/gpu/nccl_profiler_interface.h"

namespace cp::emulated {
namespace {

using testing::NcclProfilerEvent;
using testing::NcclProfilerV4;

// Of the environment at this moment. A library that was opened stays.
const NcclProfilerV4* find_plugin() {
  const char* path = std::getenv("NCCL_PROFILER_PLUGIN");
  if (path == nullptr) return nullptr;
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const void* const found = library != nullptr ? ::dlsym(library, testing::kNcclProfilerSymbol) : nullptr;
  if (found == nullptr) say(str("NCCL_PROFILER_PLUGIN: no profiler of version 4 in ", path));
  return static_cast<const NcclProfilerV4*>(found);
}

const char* function_name(NcclOperation::Function function) {
  static constexpr std::array<const char*, 10> kNames = {
      "AllGather", "ReduceScatter", "AllReduce", "Broadcast", "AlltoAll",
      "Send",      "Recv",          "PutSignal", "Signal",    "WaitSignal"};
  return kNames.at(static_cast<std::size_t>(function));
}

const char* type_name(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "ncclInt8";
    case ncclInt32:
      return "ncclInt32";
    case ncclInt64:
      return "ncclInt64";
    case ncclFloat16:
      return "ncclFloat16";
    case ncclFloat32:
      return "ncclFloat32";
    case ncclBfloat16:
      return "ncclBfloat16";
    default:
      return "Unknown";
  }
}

}  // namespace

NcclProfiler::NcclProfiler(std::uint64_t communicator, int ranks, int rank)
    : plugin_(find_plugin()), ranks_(ranks), rank_(rank) {
  if (plugin_ == nullptr) return;
  constexpr int kNodes = 1;
  if (plugin_->init(&context_, &event_mask_, "", communicator, kNodes, ranks, rank, nullptr) == ncclSuccess)
    return;
  say("the profiler's init failed: goes on without it");
  plugin_ = nullptr;
}

NcclProfiler::~NcclProfiler() {
  if (plugin_ != nullptr && context_ != nullptr) static_cast<void>(plugin_->finalize(context_));
}

void NcclProfiler::tell(const std::vector<NcclOperation>& operations) const {
  if (plugin_ == nullptr || ranks_ == 1) return;
  for (const NcclOperation& operation : operations) {
    NcclProfilerEvent event = {};
    event.rank = rank_;
    if (is_collective(operation)) {
      using Function = NcclOperation::Function;
      const bool in_bytes =
          operation.function == Function::all_gather || operation.function == Function::broadcast;
      event.type = testing::kProfileCollective;
      event.collective = {};
      event.collective.function = function_name(operation.function);
      event.collective.send = operation.send;
      event.collective.recv = operation.recv;
      event.collective.count = in_bytes ? operation.count * size_bytes(operation.type) : operation.count;
      event.collective.root = operation.peer;
      event.collective.datatype = type_name(in_bytes ? ncclInt8 : operation.type);
    } else {
      event.type = testing::kProfileTransfer;
      event.transfer = {};
      event.transfer.function = function_name(operation.function);
      event.transfer.datatype = type_name(operation.type);
      event.transfer.count = operation.count;
      event.transfer.peer = operation.peer;
    }
    if ((event_mask_ & event.type) == 0) continue;
    void* handle = nullptr;
    static_cast<void>(plugin_->start_event(context_, &handle, &event));
    if (handle != nullptr) static_cast<void>(plugin_->stop_event(handle));
  }
}

}  // namespace cp::emulated
