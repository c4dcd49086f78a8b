// The calls of NCCL and CUDA that a rank's plan becomes, as data. NcclDevice issues exactly these calls in
// this order, and its observed records are made of them. This code needs neither library, so any machine can
// show and test the calls.
//
//   AllGather, ReduceScatter, AllReduce, Broadcast   the call of the same name
//   Exchange     one group of sends and receives; transfers of nothing are left out
//   AllToAll     one group of sends and receives with all members and with the rank itself. An Exchange never
//                has a transfer with the rank itself, so that the two can be told apart.
//   of a group with copy_engine (Group): AllToAll is the call of the same name, and an Exchange is
//                  1. a signal to each peer that this rank receives from: the places are free, since the
//                     stream has waited for all that the plan orders before the Exchange
//                  2. a wait for such a signal of each peer that this rank sends to
//                  3. the puts, in one group
//                  4. a wait for the signal of each put to this rank
//                  The signals between two ranks come in the order of the calls, and both ranks call in the
//                  plan's order, so that one counter for each pair is enough. Between 1. and 2. nothing
//                  waits, so that no rank waits for more than in a group of sends and receives.
//   Repeat       its iterations one after the other
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

// An address that a call gets, as an element of a buffer of the plan.
struct Address {
  BufferId buffer = -1;     // -1: nullptr
  std::int64_t offset = 0;  // elements
  bool operator==(const Address&) const = default;
};

struct NcclCall {
  enum class Function : std::uint8_t {
    all_gather,
    reduce_scatter,
    all_reduce,
    broadcast,
    send,
    recv,
    all_to_all,   // in a group with copy_engine; else one of sends and receives
    put_signal,   // writes into the peer's memory at `recv_buffer`, and then signals
    signal,       // says that this rank's memory is free for the puts of the launch
    wait_signal,  // for one signal of the peer; with `recv_buffer` and `count`, for that of a put to there
    group_start,
    group_end,
    kernel,  // a kernel of a plan, which is not NCCL's
    event_record,
    stream_wait_event,
  };
  Function function = Function::kernel;
  StreamId stream = -1;      // group_start and group_end have stream and comm of the transfers between them
  std::int64_t launch = -1;  // the number, from 0, of the executor's launch that made the call; -1 for events
  std::string_view kernel = {};  // operation_name() of a kernel
  GroupId comm = -1;
  Address send_buffer = {}, recv_buffer = {};
  // Elements, as NCCL counts them: what one member gives (all_gather) or gets (reduce_scatter), else all.
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::optional<ReduceOp> reduction = {};
  // Index in the group: of send, recv, put_signal, signal and wait_signal; the root of broadcast.
  std::int32_t peer = -1;
  EventId event = -1;
  bool operator==(const NcclCall&) const = default;
};

// One launch of a step.
struct NcclLaunch {
  StreamId stream = 0;
  std::int64_t number = 0;     // counts the executor's launches, from 0
  std::int64_t iteration = 0;  // of the enclosing Repeat
};

// Appends the calls of one launch of a collective of the plan. This is the only place that decides which
// calls these are.
void add_nccl_calls(const Plan& plan, const Collective& collective, const NcclLaunch& launch,
                    std::vector<NcclCall>& calls);

// Returns the calls of the whole plan, in the order in which the executor launches it.
std::vector<NcclCall> nccl_calls(const Plan& plan);

// Returns the records that the calls amount to, one for each launch of a collective. Sequence numbers count
// per communicator: they begin at those in `next_sequences` (by GroupId), which the function moves on.
std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan,
                                       std::vector<std::int64_t>& next_sequences);
std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan);  // from 0

// Writes each call in a line, with the names of buffers, group and stream: "ncclAllGather(x+0, y+0, 256,
// ncclFloat32, tp, comm)".
std::string to_text(const std::vector<NcclCall>& calls, const Plan& plan);

}  // namespace cp::runtime
