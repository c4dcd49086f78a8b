#include "runtime/nccl/nccl_launch.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

using Function = NcclCall::Function;

// The version that brought NCCL_LAUNCH_ORDER_IMPLICIT.
constexpr int kKeepsOrderSince = NCCL_VERSION(2, 26, 2);

// Read before main(), because NCCL reads the variable once, at its first launch in the process, which may be
// earlier than this device's.
const bool g_asked = [] {
  const char* value = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return value != nullptr && std::string_view(value) == "1";
}();

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
  }
  CP_INVARIANT(false, "dtype ", static_cast<int>(dtype));
}

ncclRedOp_t nccl_reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::avg:
      return ncclAvg;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::product:
      return ncclProd;
  }
  CP_INVARIANT(false, "reduction ", static_cast<int>(op));
}

Plan only_groups(const Plan& plan) {
  Plan made;
  made.self = plan.self;
  made.groups = plan.groups;
  return made;
}

}  // namespace

bool nccl_keeps_launch_order() {
  int version = 0;
  return g_asked && ncclGetVersion(&version) == ncclSuccess && version >= kKeepsOrderSince;
}

NcclLaunches::NcclLaunches(const Plan& plan, const CudaMemory& memory, std::vector<NcclCommunicator*> members,
                           bool ordered)
    : plan_(plan),
      groups_(only_groups(plan)),
      memory_(memory),
      members_(std::move(members)),
      ordered_(ordered),
      ends_(members_.size()) {}

bool NcclLaunches::takes_turns(GroupId group) const {
  return !ordered_ && plan_.groups[static_cast<std::size_t>(group)].ranks.size() > 1;
}

bool NcclLaunches::await_turn(GroupId group, cudaStream_t stream) {
  if (!takes_turns(group) || last_.end == nullptr || last_.stream == stream) return false;
  CP_CUDA(cudaStreamWaitEvent(stream, last_.end, 0));
  return true;
}

void NcclLaunches::done(GroupId group, cudaStream_t stream, cudaEvent_t end) {
  if (takes_turns(group)) last_ = {end, stream};
  ends_[static_cast<std::size_t>(group)].push_back(end);
}

void NcclLaunches::forget_turns() {
  last_ = {};
  for (std::deque<cudaEvent_t>& ends : ends_) ends.clear();
}

bool NcclLaunches::await_room(GroupId group, const NcclHandles& handles) {
  std::deque<cudaEvent_t>& ends = ends_[static_cast<std::size_t>(group)];
  if (ends.size() < kMostUnderWay) return true;
  while (!is_finished(ends.front())) {
    if (handles.is_ending()) return false;
    // Chosen: other collectives are still queued on the GPU, so it does not run dry meanwhile.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  ends.pop_front();
  return true;
}

ncclResult_t NcclLaunches::issue(const Collective& collective, const NcclLaunch& where, cudaStream_t stream) {
  const std::size_t first = calls_.size();
  add_nccl_calls(plan_, collective, where, calls_);
  const bool grouped = calls_[first].function == Function::group_start;
  ncclResult_t result = ncclSuccess;
  // If there is nothing to do, NCCL is not called: 2.28 keeps some memory for each such group.
  if (grouped ? calls_.size() == first + 2 : calls_[first].count == 0) return result;
  for (std::size_t i = first; i < calls_.size(); ++i) {
    result = issue(calls_[i], stream);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    if (grouped && i + 1 < calls_.size()) static_cast<void>(ncclGroupEnd());  // the thread is still in it
    break;
  }
  return result;
}

std::byte* NcclLaunches::address(const Address& address) const {
  if (address.buffer < 0) return nullptr;
  const DType dtype = plan_.buffers[static_cast<std::size_t>(address.buffer)].dtype;
  return memory_.data(address.buffer) + address.offset * size_bytes(dtype);
}

ncclResult_t NcclLaunches::issue(const NcclCall& call, cudaStream_t stream) const {
  const ncclComm_t comm = *members_[static_cast<std::size_t>(call.comm)]->comm;
  const void* const send = address(call.send_buffer);
  void* const recv = address(call.recv_buffer);
  const auto count = static_cast<std::size_t>(call.count);
  const ncclDataType_t type = nccl_type(call.dtype);
  const ncclRedOp_t op = nccl_reduction(call.reduction.value_or(ReduceOp::sum));
  switch (call.function) {
    case Function::all_gather:
      return ncclAllGather(send, recv, count, type, comm, stream);
    case Function::reduce_scatter:
      return ncclReduceScatter(send, recv, count, type, op, comm, stream);
    case Function::all_reduce:
      return ncclAllReduce(send, recv, count, type, op, comm, stream);
    case Function::broadcast:
      return ncclBroadcast(send, recv, count, type, call.peer, comm, stream);
    case Function::send:
      return ncclSend(send, count, type, call.peer, comm, stream);
    case Function::recv:
      return ncclRecv(recv, count, type, call.peer, comm, stream);
    case Function::group_start:
      return ncclGroupStart();
    case Function::group_end:
      return ncclGroupEnd();
    case Function::kernel:
    case Function::event_record:
    case Function::stream_wait_event:
      break;
  }
  CP_INVARIANT(false, "no call of NCCL");
}

std::vector<OpRecord> NcclLaunches::take_records() {
  std::vector<std::int64_t> sequences;
  for (const NcclCommunicator* member : members_) sequences.push_back(member->begun.next_sequence());
  std::int64_t launch = -1;
  for (const NcclCall& call : calls_) {
    if (call.launch != launch) --sequences[static_cast<std::size_t>(call.comm)];
    launch = call.launch;
  }
  std::vector<OpRecord> records = observed_records(calls_, groups_, sequences);
  calls_.clear();
  return records;
}

}  // namespace cp::runtime
