// NCCL's interface: communicators.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <nccl.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/nccl_group.h"
#include "tests/emulated_gpu/nccl_window_calls.h"

using namespace cp::emulated;
using cp::str;

namespace {

struct Handles {
  std::mutex mutex;
  std::set<ncclComm_t> live;
  std::set<void*> memory;  // of ncclMemAlloc
  NcclUse use;
};

std::atomic<int> g_version = NCCL_VERSION_CODE;

Handles& handles() {
  static auto& all = *new Handles;
  return all;
}

ncclComm_t make_handle(const CommunicatorPtr& communicator) {
  auto* handle = new ncclComm{communicator};
  const std::lock_guard lock(handles().mutex);
  handles().live.insert(handle);
  ++handles().use.made;
  return handle;
}

void free_handle(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  if (handles().live.erase(handle) > 0) delete handle;
}

std::string failure_of(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  return handles().live.contains(handle) ? handle->impl->failure() : "";
}

void require(bool holds, const char* what) {
  if (!holds) throw NcclFailure(ncclInvalidArgument, what);
}

// The communicator that the configuration asks for, on the current device.
CommunicatorPtr make(const ncclConfig_t* config, const Communicator* parent) {
  bool blocking = parent == nullptr || parent->blocking();
  int most_channels = 64;
  bool zero_ctas = false;
  if (config != nullptr) {
    require(config->size == sizeof(ncclConfig_t) && config->magic == 0xcafebeef,
            "ncclConfig_t not initialized by NCCL_CONFIG_INITIALIZER");
    const auto is_set = [](int value) { return value != NCCL_CONFIG_UNDEF_INT; };
    require(!is_set(config->blocking) || config->blocking == 0 || config->blocking == 1,
            "blocking is 0 or 1");
    require(!is_set(config->minCTAs) || config->minCTAs > 0, "minCTAs is positive");
    require(!is_set(config->maxCTAs) || config->maxCTAs > 0, "maxCTAs is positive");
    require(config->minCTAs <= config->maxCTAs,  // also where one is unset, as NCCL 2.28 compares
            "minCTAs is at most maxCTAs");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    require(!is_set(config->CTAPolicy) || (config->CTAPolicy >= 0 && config->CTAPolicy <= 2),
            "CTAPolicy is 0, 1 or 2");
    zero_ctas = config->CTAPolicy == 2;
#endif
    if (is_set(config->maxCTAs)) most_channels = config->maxCTAs;
    if (is_set(config->blocking))
      blocking = config->blocking != 0;
    else if (parent == nullptr)
      blocking = true;
  }
  return std::make_shared<Communicator>(parent != nullptr ? parent->device() : current_device(), blocking,
                                        most_channels, zero_ctas);
}

void init(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  require(comm != nullptr, "no place for the communicator");
  require(size >= 1 && rank >= 0 && rank < size, "invalid rank");
  const std::string root(id.internal, ::strnlen(id.internal, sizeof id.internal));
  require(!root.empty(), "not an id of ncclGetUniqueId");
  const CommunicatorPtr made = make(config, nullptr);
  *comm = make_handle(made);
  Hello hello;
  hello.rank = hello.key = rank;
  hello.size = size;
  hello.device = made->device();
  hello.host = host_hash();
  add_job(made,
          [made, root, hello] { made->connect(join(root, hello, [made] { return made->is_aborted(); })); });
}

void split(ncclComm_t parent_handle, int color, int key, ncclComm_t* comm, const ncclConfig_t* config) {
  const CommunicatorPtr parent = find_communicator(parent_handle, true);
  {
    const std::lock_guard lock(handles().mutex);
    handles().use.channels_of_parent = static_cast<std::size_t>(parent->most_channels());
  }
  require(comm != nullptr, "no place for the communicator");
  require(color >= 0 || color == NCCL_SPLIT_NOCOLOR, "invalid color");
  *comm = nullptr;  // until the split is complete
  const CommunicatorPtr made = color != NCCL_SPLIT_NOCOLOR ? make(config, parent.get()) : nullptr;
  const std::string root = parent->next_child_root();
  Hello hello;
  hello.rank = parent->rank();
  hello.size = parent->size();
  hello.color = color;
  hello.key = key;
  hello.device = parent->device();
  hello.host = host_hash();
  add_job(parent, [parent, made, root, hello, comm] {
    if (hello.rank == 0) serve_root(root, hello.size);
    Members members = join(root, hello, [parent] { return parent->is_aborted(); });
    if (!made) return;
    made->connect(std::move(members));
    *comm = make_handle(made);
  });
}

}  // namespace

namespace cp::emulated {

CommunicatorPtr find_communicator(ncclComm_t comm, bool ready) {
  CommunicatorPtr found;
  {
    const std::lock_guard lock(handles().mutex);
    if (handles().live.contains(comm)) found = comm->impl;
  }
  if (!found) throw NcclFailure(ncclInvalidArgument, "no such communicator, or destroyed");
  if (!ready) return found;
  const ncclResult_t state = found->state();
  if (state == ncclInProgress)
    throw NcclFailure(ncclInvalidArgument,
                      "Attempt to use communicator before the previous operation returned ncclSuccess");
  if (state != ncclSuccess) throw NcclFailure(state, "the communicator has failed before");
  return found;
}

void break_communicator(ncclComm_t comm) {
  find_communicator(comm, false)->fail(ncclSystemError, "broken on purpose");
}

void set_nccl_version(int version) { g_version = version; }
int nccl_version() { return g_version; }

std::size_t communicator_count() {
  const std::lock_guard lock(handles().mutex);
  return handles().live.size();
}

NcclUse nccl_use() {
  const std::lock_guard lock(handles().mutex);
  NcclUse use = handles().use;
  use.allocated = handles().memory.size();
  return use;
}

bool is_of_nccl(void* allocation) {
  const std::lock_guard lock(handles().mutex);
  return handles().memory.contains(allocation);
}

void count_window() {
  const std::lock_guard lock(handles().mutex);
  ++handles().use.windows;
}

void count_collective(bool by_copy_engines, bool fell_back) {
  const std::lock_guard lock(handles().mutex);
  if (by_copy_engines) ++handles().use.by_copy_engines;
  if (fell_back) ++handles().use.fell_back;
}

void count_empty_group() {
  const std::lock_guard lock(handles().mutex);
  ++handles().use.empty_groups;
}

}  // namespace cp::emulated

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = nccl_version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call("ncclGetUniqueId", [&] {
    *id = {};
    const std::string name = unique_socket_name();
    serve_root(name);
    name.copy(id->internal, sizeof id->internal - 1);
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return nccl_call("ncclCommInitRankConfig", [&] { init(comm, size, id, rank, config); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return nccl_call("ncclCommInitRank", [&] { init(comm, size, id, rank, nullptr); });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return nccl_call("ncclCommSplit", [&] { split(comm, color, key, child, config); });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return nccl_call("ncclCommFinalize", [&] {
    const CommunicatorPtr found = find_communicator(comm, true);
    add_job(found, [found] {
      found->await_work();
      found->leave();
    });
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return nccl_call("ncclCommDestroy", [&] {
    const CommunicatorPtr found = find_communicator(comm, false);
    // As NCCL 2.28 does, which returns in the midst of what the call began.
    const ncclResult_t state = found->state();
    if (state != ncclSuccess)
      throw NcclFailure(state == ncclInProgress ? ncclInvalidArgument : state,
                        "the communicator has failed before, or is busy", NcclFailure::Group::stays_open);
    add_end(found, [found, comm] {
      found->leave();
      free_handle(comm);
    });
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return nccl_call("ncclCommAbort", [&] {
    const CommunicatorPtr found = find_communicator(comm, false);
    found->abort();
    found->finish_job();
    add_end(found, [comm] { free_handle(comm); });
  });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return nccl_call("ncclCommCount", [&] { *count = find_communicator(comm, true)->size(); });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return nccl_call("ncclCommUserRank", [&] { *rank = find_communicator(comm, true)->rank(); });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return nccl_call("ncclCommCuDevice", [&] { *device = find_communicator(comm, true)->device(); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return nccl_call("ncclCommGetAsyncError", [&] { *error = find_communicator(comm, false)->state(); });
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t size, void** handle) {
  return nccl_call("ncclCommRegister", [&] {
    const CommunicatorPtr found = find_communicator(comm, true);
    if (const auto why = device_memory().refuse(data, size)) throw NcclFailure(ncclInvalidArgument, *why);
    {
      const std::lock_guard lock(handles().mutex);
      ++handles().use.registered;
      const auto allocation = device_memory().find(data);
      if (!allocation || !handles().memory.contains(reinterpret_cast<void*>(allocation->begin)))
        ++handles().use.without_effect;
    }
    *handle = new char;
    found->registered.insert(*handle);
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return nccl_call("ncclCommDeregister", [&] {
    const CommunicatorPtr found = find_communicator(comm, false);
    if (found->registered.erase(handle) == 0) throw NcclFailure(ncclInvalidArgument, "no such registration");
    delete static_cast<char*>(handle);
  });
}

ncclResult_t ncclMemAlloc(void** data, std::size_t size) {
  const cudaError_t result = cudaMalloc(data, size);
  if (result != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(handles().mutex);
  handles().memory.insert(*data);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  if (data == nullptr) return ncclSuccess;
  {
    const std::lock_guard lock(handles().mutex);
    if (handles().memory.erase(data) == 0) {
      say("ncclMemFree: not of ncclMemAlloc");
      return ncclUnhandledCudaError;
    }
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  text = failure_of(comm);
  if (text.empty()) text = last_nccl_error();
  return text.c_str();
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

}  // extern "C"
