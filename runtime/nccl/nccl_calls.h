// The calls of NCCL and CUDA that a rank's plan becomes, as data: what the NCCL device issues, in its order,
// and what its observed records are made of. Needs neither library.
//
//   AllGather, ReduceScatter, AllReduce, Broadcast   the call of the same name
//   Exchange     one group of sends and receives; transfers of nothing are left out
//   AllToAll     one group of sends and receives with all members and with the rank itself, which an Exchange
//                never has
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

// An address that a call gets: an element of a buffer of the plan.
struct Address {
  BufferId buffer = -1;
  std::int64_t offset = 0;
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
    group_start,
    group_end,
    kernel,  // a launch of the project's own
    event_record,
    stream_wait_event,
  };
  Function function = Function::kernel;
  StreamId stream = -1;  // of group_start and group_end, as comm: of the transfers that they hold together
  std::int64_t launch = -1;      // which launch of the executor made it, from 0; -1 for events
  std::string_view kernel = {};  // operation_name() of a kernel
  GroupId comm = -1;
  Address send_buffer = {}, recv_buffer = {};
  // Elements, as NCCL counts: of what one member gives (all_gather) or gets (reduce_scatter).
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::optional<ReduceOp> reduction = {};
  std::int32_t peer = -1;  // of send and recv; the root of broadcast
  EventId event = -1;
  bool operator==(const NcclCall&) const = default;
};

// One launch of a step.
struct NcclLaunch {
  StreamId stream = 0;
  std::int64_t number = 0;     // which launch of the executor, from 0
  std::int64_t iteration = 0;  // of the enclosing Repeat
};

// Appends the calls of one launch of a collective of the plan: the only place that decides on them.
void add_nccl_calls(const Plan& plan, const Collective& collective, const NcclLaunch& launch,
                    std::vector<NcclCall>& calls);

// All of the plan, as the executor launches it.
std::vector<NcclCall> nccl_calls(const Plan& plan);

// The records that the calls amount to, one for each launch of a collective. Sequence numbers count per
// communicator, from those in `next_sequences` (by group) on, which move on.
std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan,
                                       std::vector<std::int64_t>& next_sequences);
std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan);  // from 0

// One line a call: "ncclAllGather(x+0, y+0, 256, ncclFloat32, tp, comm)".
std::string to_text(const std::vector<NcclCall>& calls, const Plan& plan);

}  // namespace cp::runtime
