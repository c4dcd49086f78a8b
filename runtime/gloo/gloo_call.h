// GlooCall: the arguments of one call of the library, as it got them. The observed records of a trace are
// made of these alone, never of the step that led to them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::runtime {

struct GlooCall {
  // `allgather`, `allreduce` and `reduce` are no calls of Gloo's, but what its transfers led to: blocks that
  // came from every member, sums of which every member has all, and the sum of blocks that were sent and
  // received, which are noted beside it.
  enum class Function : std::uint8_t { allgather, allreduce, alltoall, broadcast, send, recv, reduce };
  Function function = Function::send;
  DType dtype = DType::f32;
  std::int64_t count = 0;                  // elements for each peer
  std::int32_t peer = -1;                  // of send and recv; the root of broadcast
  std::optional<ReduceOp> reduction = {};  // of allreduce and reduce
};

// The one collective that the calls amount to, on the member `index` of the group. No calls: an exchange of
// nothing.
OpRecord observed_record(const std::vector<GlooCall>& calls, const Group& group, std::int32_t index);

}  // namespace cp::runtime
