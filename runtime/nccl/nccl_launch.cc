#include "runtime/nccl/nccl_launch.h"

#include <utility>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

using Function = NcclCall::Function;

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

NcclLaunches::NcclLaunches(const Plan& plan, const CudaMemory& memory,
                           std::vector<NcclCommunicatorPtr> members, bool keeps_calls)
    : plan_(plan),
      groups_(only_groups(plan)),
      memory_(memory),
      members_(std::move(members)),
      keeps_calls_(keeps_calls) {}

ncclResult_t NcclLaunches::issue(const Collective& collective, const NcclLaunch& where, std::int64_t sequence,
                                 cudaStream_t stream) {
  if (keeps_calls_) {
    sequences_.push_back(sequence);
  } else {
    calls_.clear();
  }
  const std::size_t first = calls_.size();
  add_nccl_calls(plan_, collective, where, calls_);
  return issue_from(calls_, first, stream);
}

ncclResult_t NcclLaunches::capture(const Collective& collective, const NcclLaunch& where, cudaStream_t stream,
                                   std::vector<NcclCall>& calls) {
  const std::size_t first = calls.size();
  add_nccl_calls(plan_, collective, where, calls);
  return issue_from(calls, first, stream);
}

void NcclLaunches::replayed(std::span<const NcclCall> calls, std::int64_t number, std::int64_t sequence) {
  if (!keeps_calls_) return;
  sequences_.push_back(sequence);
  for (const NcclCall& call : calls) {
    calls_.push_back(call);
    calls_.back().launch = number;
  }
}

ncclResult_t NcclLaunches::issue_from(const std::vector<NcclCall>& calls, std::size_t first,
                                      cudaStream_t stream) const {
  const bool grouped = calls[first].function == Function::group_start;
  ncclResult_t result = ncclSuccess;
  // If there is nothing to do, NCCL is not called: 2.28 keeps some memory for each such group.
  if (grouped ? calls.size() == first + 2 : calls[first].count == 0) return result;
  for (std::size_t i = first; i < calls.size(); ++i) {
    result = issue(calls[i], stream);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    if (grouped && i + 1 < calls.size()) static_cast<void>(ncclGroupEnd());  // the thread is still in it
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
  if (!keeps_calls_) return {};
  std::vector<OpRecord> records = observed_records(calls_, groups_);
  CP_INVARIANT(records.size() == sequences_.size(), records.size(), " records of ", sequences_.size());
  for (std::size_t i = 0; i < records.size(); ++i) records[i].sequence = sequences_[i];
  calls_.clear();
  sequences_.clear();
  return records;
}

}  // namespace cp::runtime
