// NCCL's interface: windows of symmetric memory, and calls of one side.
#include "tests/emulated_gpu/nccl_window_calls.h"

#include <string>

#include <nccl.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/nccl_group.h"

using namespace cp::emulated;
using cp::str;

namespace cp::emulated {

bool Communicator::has_copy_engines() const {
  if (!zero_ctas_) return false;
  for (const Hello& hello : members_.hellos) {
    if (hello.host != members_.hellos.front().host) return false;
  }
  return true;
}

void* Communicator::add_window(const Window& own, Hello hello) {
  hello.rank = hello.key = rank();
  hello.size = size();
  const std::string root = str(token(), ".window.", next_window_);
  if (rank() == 0) serve_root(root, size());
  const Members all = join(root, hello, [this] { return is_aborted(); });
  for (std::size_t peer = 0; peer < all.hellos.size(); ++peer) {
    const Hello& other = all.hellos[peer];
    if (other.window_bytes == hello.window_bytes && other.window_at == hello.window_at &&
        other.allocation_bytes == hello.allocation_bytes && other.window_flags == hello.window_flags)
      continue;
    const auto words = [](const Hello& of) {
      return str(of.window_bytes, " bytes at ", of.window_at, " of an allocation of ", of.allocation_bytes,
                 ", flags ", of.window_flags);
    };
    throw NcclFailure(ncclInvalidUsage, str("a window differs: rank ", rank(), " registers ", words(hello),
                                            ", rank ", peer, " ", words(other)));
  }
  const auto handle = std::make_shared<char>();
  Window& made = windows_.emplace(handle.get(), own).first->second;
  made.handle = handle;
  made.number = next_window_++;
  transfers_->set_window(made.number, made.data, made.size);
  return handle.get();
}

bool Communicator::remove_window(void* handle) {
  const auto found = windows_.find(handle);
  if (found == windows_.end()) return false;
  transfers_->set_window(found->second.number, nullptr, 0);
  windows_.erase(found);
  return true;
}

const Communicator::Window* Communicator::window_of(const void* handle) const {
  const auto found = windows_.find(handle);
  return found == windows_.end() ? nullptr : &found->second;
}

const Communicator::Window* Communicator::symmetric_window(const std::byte* data, std::size_t size) const {
  for (const auto& [handle, window] : windows_) {
    if (window.symmetric && data >= window.data && data + size <= window.data + window.size) return &window;
  }
  return nullptr;
}

bool place_in_windows(const Communicator& communicator, std::size_t send_bytes, std::size_t recv_bytes,
                      NcclOperation& operation) {
  if (!communicator.has_copy_engines()) return false;
  const Communicator::Window* const send = communicator.symmetric_window(operation.send, send_bytes);
  const Communicator::Window* const recv = communicator.symmetric_window(operation.recv, recv_bytes);
  if (send == nullptr || recv == nullptr) return false;
  operation.send_at = operation.send - send->data;
  operation.recv_at = operation.recv - recv->data;
  return true;
}

}  // namespace cp::emulated

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)

namespace {

void expect_valid(bool holds, const std::string& what) {
  if (!holds) throw NcclFailure(ncclInvalidArgument, what);
}

}  // namespace

extern "C" {

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, std::size_t size, ncclWindow_t* window,
                                    int flags) {
  return nccl_call("ncclCommWindowRegister", [&] {
    const CommunicatorPtr found = find_communicator(comm, true);
    if (const auto why = device_memory().refuse(data, size)) throw NcclFailure(ncclInvalidArgument, *why);
    const auto allocation = device_memory().find(data);
    // NOLINT(performance-no-int-to-ptr): kept as a number
    void* const begin = reinterpret_cast<void*>(allocation->begin);
    expect_valid(is_of_nccl(begin), "the memory of a window is not from ncclMemAlloc");
    Hello hello;
    hello.window_at = reinterpret_cast<std::uintptr_t>(data) - allocation->begin;
    hello.window_bytes = size, hello.allocation_bytes = allocation->size, hello.window_flags = flags;
    expect_valid(hello.window_at % NCCL_WIN_REQUIRED_ALIGNMENT == 0,
                 "Window address must be suitably aligned.");
    const Communicator::Window own{static_cast<std::byte*>(data), size, 0,
                                   (flags & NCCL_WIN_COLL_SYMMETRIC) != 0};
    *window = nullptr;
    add_job(found, [found, own, hello, window] {
      *window = static_cast<ncclWindow_t>(found->add_window(own, hello));
      count_window();
    });
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return nccl_call("ncclCommWindowDeregister", [&] {
    if (window == nullptr) return;
    expect_valid(find_communicator(comm, false)->remove_window(window), "no such window");
  });
}

}  // extern "C"

#endif

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)

namespace {

ncclResult_t add_one_sided(const char* name, ncclComm_t comm, int sig_index, int context,
                           const NcclOperation& operation, ncclWindow_t window = nullptr) {
  return nccl_call(name, [&] {
    const CommunicatorPtr communicator = find_communicator(comm, true);
    expect_valid(operation.peer >= 0 && operation.peer < communicator->size(),
                 str("invalid peer ", operation.peer));
    expect_valid(sig_index == 0 && context == 0, "signal index and context must be 0");
    const auto stream = find_stream(operation.stream);
    expect_valid(stream != nullptr && stream->device() == communicator->device(),
                 "the stream is not of the communicator's GPU");
    NcclOperation added = operation;
    if (operation.function == NcclOperation::Function::put_signal) {
      const std::size_t bytes = operation.count * size_bytes(operation.type);
      const Communicator::Window* const there = communicator->window_of(window);
      expect_valid(there != nullptr, "peerWin is no window of the communicator");
      expect_valid(communicator->symmetric_window(operation.send, bytes) != nullptr,
                   "srcWinHost is not in a valid symmetric window");
      added.window = there->number;
    }
    add_operation(communicator, added);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclPutSignal(const void* from, std::size_t count, ncclDataType_t type, int peer,
                           ncclWindow_t window, std::size_t offset, int sig_index, int context, unsigned int,
                           ncclComm_t comm, cudaStream_t stream) {
  NcclOperation put{NcclOperation::Function::put_signal,
                    static_cast<const std::byte*>(from),
                    nullptr,
                    count,
                    type,
                    ncclSum,
                    peer,
                    stream};
  put.recv_at = static_cast<std::int64_t>(offset);
  return add_one_sided("ncclPutSignal", comm, sig_index, context, put, window);
}

ncclResult_t ncclSignal(int peer, int sig_index, int context, unsigned int, ncclComm_t comm,
                        cudaStream_t stream) {
  return add_one_sided(
      "ncclSignal", comm, sig_index, context,
      {NcclOperation::Function::signal, nullptr, nullptr, 0, ncclInt8, ncclSum, peer, stream});
}

ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t* waits, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result = start_group();
  for (int i = 0; i < count && result == ncclSuccess; ++i) {
    NcclOperation wait{
        NcclOperation::Function::wait_signal, nullptr, nullptr, 0, ncclInt8, ncclSum, waits[i].peer, stream};
    wait.signals = static_cast<std::size_t>(waits[i].opCnt);
    result = add_one_sided("ncclWaitSignal", comm, waits[i].sigIdx, waits[i].ctx, wait);
  }
  const ncclResult_t ended = end_group();
  return result == ncclSuccess ? ended : result;
}

}  // extern "C"

#endif
