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

// One transfer of an exchange, at its sender or its receiver.
struct TransferCall {
  std::int32_t peer = -1;  // index in the group
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  std::byte* data = nullptr;
  TransferCall* partner = nullptr;   // a receive's send, found when the members were matched
  std::int64_t delivered_bytes = 0;  // written at both ends when the bytes have moved
};

struct ExchangeCall {
  std::vector<TransferCall> sends, recvs;  // ascending by peer; in the step's order for each peer
  Digest counts;
};

struct Call {
  Operation operation = Operation::all_gather;
  DType dtype = DType::f32;                // exchange: of the first transfer, or f32
  std::optional<ReduceOp> reduction = {};  // all_reduce, reduce_scatter
  std::int32_t root = -1;                  // broadcast: index in the group
  std::int64_t count = 0;  // elements of a block, as NCCL counts: all_gather: of in; reduce_scatter: of out;
                           // all_to_all: for each peer; all_reduce, broadcast: all; exchange: 0
  const std::byte* in = nullptr;  // broadcast: null but at the root
  std::byte* out = nullptr;
  ExchangeCall* exchange = nullptr;  // exchange only
  Digest inputs = {};                // of the plan: equal on all ranks (contract 2)
  std::int64_t number = 0;           // among all collectives that the rank launched (faults.h)
};

// The call that a step makes on the member `index` of its group of `group_size`. `exchange`: storage for the
// call's transfers.
Call resolve(const Collective& collective, std::int64_t iteration, const HostMemory& memory,
             std::int32_t index, std::int32_t group_size, ExchangeCall& exchange);

}  // namespace cp::sim
