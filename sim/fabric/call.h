// Call: the arguments that one member of a group passes to a collective, resolved to addresses.
//
// A call is to the fabric what an NCCL call is to a GPU: all that is compared, moved and recorded comes from
// the calls of the members, never from the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp::sim {

enum class Operation : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  exchange
};

std::string_view name(Operation operation);  // as operation_name() of the step

// One transfer of an exchange, as its sender or its receiver states it.
struct TransferCall {
  std::int32_t peer = -1;  // index in the group
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  std::byte* data = nullptr;
  TransferCall* partner = nullptr;   // of a receive: the send that belongs to it; find_mismatch() sets it
  std::int64_t delivered_bytes = 0;  // set at both ends when the bytes have moved
};

struct ExchangeCall {
  std::vector<TransferCall> sends, recvs;  // ascending by peer; for one peer, in the order of the step
  Digest counts;                           // of the whole count matrix, which all members must have alike
};

struct Call {
  Operation operation = Operation::all_gather;
  DType dtype = DType::f32;                // exchange: that of the first transfer, or f32 if it has none
  std::optional<ReduceOp> reduction = {};  // all_reduce, reduce_scatter
  std::int32_t root = -1;                  // broadcast: index in the group
  // Elements, as NCCL counts them: all_gather: of `in`; reduce_scatter: of `out`; all_to_all: for each peer;
  // all_reduce and broadcast: of the whole buffer; exchange: 0.
  std::int64_t count = 0;
  const std::byte* in = nullptr;  // broadcast: null except at the root
  std::byte* out = nullptr;
  ExchangeCall* exchange = nullptr;  // exchange only
  Digest inputs = {};                // what the plan was made from: equal on all ranks (contract 2)
  std::int64_t number = 0;           // its place among all collectives that the rank launched (faults.h)
};

// Returns the call that a step makes on member `index` of a group of `group_size`. For an exchange, the
// transfers are written into `exchange`, to which the call then points; the caller keeps it alive.
Call resolve(const Collective& collective, std::int64_t iteration, const HostMemory& memory,
             std::int32_t index, std::int32_t group_size, ExchangeCall& exchange);

}  // namespace cp::sim
