#include "runtime/nccl/nccl_launch.h"

#include <algorithm>
#include <utility>

#include "runtime/nccl/nccl_later.h"
#include "shared/base/error.h"
#include "shared/base/inline_list.h"

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

// NCCL is not called then: 2.28 keeps some memory for each group of nothing.
bool nothing_to_do(std::span<const NcclCall> calls) {
  if (calls.front().function == Function::group_start) return calls.size() == 2;
  return calls.size() == 1 && calls.front().count == 0;
}

Plan only_groups(const Plan& plan) {
  Plan made;
  made.self = plan.self;
  made.groups = plan.groups;
  return made;
}

}  // namespace

NcclLaunches::NcclLaunches(const Plan& plan, const CudaMemory& memory,
                           std::vector<NcclCommunicatorPtr> members, const std::vector<NcclWindow>& windows,
                           bool keeps_calls)
    : plan_(plan),
      groups_(only_groups(plan)),
      memory_(memory),
      members_(std::move(members)),
      windows_(windows),
      keeps_calls_(keeps_calls) {}

ncclResult_t NcclLaunches::issue(const Collective& collective, const NcclLaunch& where, std::int64_t sequence,
                                 cudaStream_t stream) {
  if (keeps_calls_) {
    issued_.push_back({where.number, sequence});
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
  issued_.push_back({number, sequence});
  for (const NcclCall& call : calls) {
    calls_.push_back(call);
    calls_.back().launch = number;
  }
}

ncclResult_t NcclLaunches::issue_from(const std::vector<NcclCall>& all, std::size_t first,
                                      cudaStream_t stream) const {
  const std::span<const NcclCall> calls = std::span(all).subspan(first);
  ncclResult_t result = ncclSuccess;
  if (nothing_to_do(calls)) return result;
  bool in_group = false;
  for (std::size_t i = 0, next = 0; i < calls.size(); i = next) {
    next = i + 1;
    if (calls[i].function == Function::wait_signal) {
      while (next < calls.size() && calls[next].function == Function::wait_signal) ++next;
      result = await_signals(calls.subspan(i, next - i), stream);
    } else if (calls[i].function == Function::group_start && next < calls.size() &&
               calls[next].function == Function::group_end) {
      ++next;  // of puts, where this rank has none
      continue;
    } else {
      result = issue(calls[i], stream);
    }
    if (calls[i].function == Function::group_start) in_group = true;
    if (calls[i].function == Function::group_end) in_group = false;
    if (result == ncclSuccess || result == ncclInProgress) continue;
    if (in_group) static_cast<void>(ncclGroupEnd());  // the thread is still in it
    break;
  }
  return result;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
ncclResult_t NcclLaunches::await_signals(std::span<const NcclCall> calls, cudaStream_t stream) const {
  // As many peers in one call; a ring has one.
  constexpr std::size_t kAtOnce = 8;
  InlineList<ncclWaitSignalDesc_t, kAtOnce> waits;
  const ncclComm_t comm = *members_[static_cast<std::size_t>(calls.front().comm)]->comm;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto known = std::find_if(waits.begin(), waits.end(), [&](const ncclWaitSignalDesc_t& wait) {
      return wait.peer == calls[i].peer;
    });
    if (known != waits.end()) {
      ++known->opCnt;
    } else {
      waits.push_back({.opCnt = 1, .peer = calls[i].peer, .sigIdx = 0, .ctx = 0});
    }
    if (waits.size() < kAtOnce && i + 1 < calls.size()) continue;
    const ncclResult_t result = ncclWaitSignal(static_cast<int>(waits.size()), waits.begin(), comm, stream);
    if (result != ncclSuccess && result != ncclInProgress) return result;
    waits.clear();
  }
  return ncclSuccess;
}
#else
ncclResult_t NcclLaunches::await_signals(std::span<const NcclCall>, cudaStream_t) const {
  CP_INVARIANT(false, "puts without a library that has them; refuse_copy_engines() lets none through");
}
#endif

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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    case Function::all_to_all:
      return ncclAlltoAll(send, recv, count, type, comm, stream);
#else
    case Function::all_to_all:
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
    case Function::put_signal: {
      auto* const window = static_cast<ncclWindow_t>(windows_[static_cast<std::size_t>(call.comm)].window);
      const auto offset =
          static_cast<std::size_t>(static_cast<std::byte*>(recv) - memory_.symmetric().data());
      return ncclPutSignal(send, count, type, call.peer, window, offset, 0, 0, 0, comm, stream);
    }
    case Function::signal:
      return ncclSignal(call.peer, 0, 0, 0, comm, stream);
#else
    case Function::put_signal:
    case Function::signal:
#endif
    case Function::wait_signal:
      break;  // await_signals()
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

std::vector<NcclRecord> NcclLaunches::take_records() {
  if (!keeps_calls_) return {};
  std::vector<OpRecord> records = observed_records(calls_, groups_);
  CP_INVARIANT(records.size() == issued_.size(), records.size(), " records of ", issued_.size());
  std::vector<NcclRecord> numbered;
  for (std::size_t i = 0; i < records.size(); ++i) {
    records[i].sequence = issued_[i].sequence;
    numbered.push_back({issued_[i].launch, std::move(records[i])});
  }
  calls_.clear();
  issued_.clear();
  return numbered;
}

}  // namespace cp::runtime
