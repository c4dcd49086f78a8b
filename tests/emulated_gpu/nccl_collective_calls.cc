// NCCL's interface: groups, collectives, sends and receives.
#include <optional>
#include <string>

#include <nccl.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/nccl_group.h"
#include "tests/emulated_gpu/nccl_reduce.h"
#include "tests/emulated_gpu/nccl_window_calls.h"

using namespace cp::emulated;
using cp::str;
using Function = NcclOperation::Function;

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw NcclFailure(ncclInvalidArgument, what);
}

struct Extent {  // elements that a call reads and writes
  std::size_t send = 0, recv = 0;
  std::optional<std::size_t> in_place;  // recv + in_place == send, or send + in_place == recv, may overlap
};

Extent extent_of(const NcclOperation& operation, const Communicator& communicator) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::size_t own = static_cast<std::size_t>(communicator.rank()) * operation.count;
  switch (operation.function) {
    case Function::all_gather:
      return {operation.count, operation.count * size, own};
    case Function::reduce_scatter:
      return {operation.count * size, operation.count, own};
    case Function::all_reduce:
      return {operation.count, operation.count, 0};
    case Function::all_to_all:
      return {operation.count * size, operation.count * size, std::nullopt};
    case Function::broadcast:
      return {operation.peer == communicator.rank() ? operation.count : 0, operation.count, 0};
    case Function::send:
      return {operation.count, 0, std::nullopt};
    case Function::recv:
      return {0, operation.count, std::nullopt};
    case Function::put_signal:
    case Function::signal:
    case Function::wait_signal:
      break;  // nccl_window_calls.cc
  }
  return {};
}

void check_memory(const NcclOperation& operation, const Communicator& communicator) {
  const Extent extent = extent_of(operation, communicator);
  const std::size_t element = size_bytes(operation.type);
  const std::size_t send = extent.send * element, recv = extent.recv * element;
  if (const auto why = device_memory().refuse(operation.send, send)) require(false, "sendbuff: " + *why);
  if (const auto why = device_memory().refuse(operation.recv, recv)) require(false, "recvbuff: " + *why);
  if (send == 0 || recv == 0) return;
  const bool overlap = operation.send < operation.recv + recv && operation.recv < operation.send + send;
  const std::size_t offset = extent.in_place.value_or(0) * element;
  const bool in_place = operation.function == Function::all_gather
                            ? operation.send == operation.recv + offset
                            : operation.recv == operation.send + offset;
  require(!overlap || in_place, "sendbuff and recvbuff overlap, but not in NCCL's in-place form");
}

// NCCL has copy engines for these collectives of plans alone.
void place(const Communicator& communicator, NcclOperation& operation) {
  const bool moves = operation.function == Function::all_gather || operation.function == Function::all_to_all;
  const Extent extent = extent_of(operation, communicator);
  const std::size_t element = size_bytes(operation.type);
  const bool placed =
      moves && place_in_windows(communicator, extent.send * element, extent.recv * element, operation);
  count_collective(placed, !placed && communicator.has_copy_engines());
}

ncclResult_t add(const char* name, ncclComm_t comm, NcclOperation operation) {
  const Inside inside(name);
  return nccl_call(name, [&] {
    const CommunicatorPtr communicator = find_communicator(comm, true);
    require(operation.peer >= 0 && operation.peer < communicator->size(),
            str("invalid root or peer ", operation.peer));
    require(operation.type >= 0 && operation.type < ncclNumTypes,
            str("invalid type ", static_cast<int>(operation.type)));
    const bool reduces =
        operation.function == Function::all_reduce || operation.function == Function::reduce_scatter;
    require(!reduces || can_reduce(operation.op, operation.type), "such a reduction is not emulated");
    const auto stream = find_stream(operation.stream);
    require(stream != nullptr && stream->device() == communicator->device(),
            "the stream is not of the communicator's GPU");
    check_memory(operation, *communicator);
    if (operation.count == 0 && is_collective(operation)) {  // NCCL leaves them out
      count_empty_group();
      return;
    }
    place(*communicator, operation);
    add_operation(communicator, operation);
  });
}

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

}  // namespace

extern "C" {

ncclResult_t ncclGroupStart() {
  const Inside inside("ncclGroupStart");
  return start_group();
}
ncclResult_t ncclGroupEnd() {
  const Inside inside("ncclGroupEnd");
  if (is_empty_group()) count_empty_group();
  return end_group();
}

ncclResult_t ncclAllGather(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add("ncclAllGather", comm,
             {Function::all_gather, bytes(send), bytes(recv), count, type, ncclSum, 0, stream});
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
ncclResult_t ncclAlltoAll(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return add("ncclAlltoAll", comm,
             {Function::all_to_all, bytes(send), bytes(recv), count, type, ncclSum, 0, stream});
}
#endif

ncclResult_t ncclReduceScatter(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add("ncclReduceScatter", comm,
             {Function::reduce_scatter, bytes(send), bytes(recv), count, type, op, 0, stream});
}

ncclResult_t ncclAllReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add("ncclAllReduce", comm,
             {Function::all_reduce, bytes(send), bytes(recv), count, type, op, 0, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* recv, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add("ncclBroadcast", comm,
             {Function::broadcast, bytes(send), bytes(recv), count, type, ncclSum, root, stream});
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add("ncclSend", comm, {Function::send, bytes(send), nullptr, count, type, ncclSum, peer, stream});
}

ncclResult_t ncclRecv(void* recv, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add("ncclRecv", comm, {Function::recv, nullptr, bytes(recv), count, type, ncclSum, peer, stream});
}

}  // extern "C"
