// A GlooCall notes the arguments of one call of the library, as the library got them. The observed records of
// a trace are made of these alone, never of the step of the plan that led to them. So a trace shows what was
// really sent, even if the code between the plan and the library is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::runtime {

struct GlooCall {
  // Three of them are not calls of Gloo, but say what a number of its transfers amounted to:
  //   allgather  a block came from every member
  //   allreduce  the values were reduced, and every member has all results
  //   reduce     blocks that were sent and received were reduced here; the `send` and `recv` calls of these
  //              blocks are noted beside it
  enum class Function : std::uint8_t { allgather, allreduce, alltoall, broadcast, send, recv, reduce };
  Function function = Function::send;
  DType dtype = DType::f32;
  std::int64_t count = 0;                  // elements for each peer
  std::int32_t peer = -1;                  // index in the group: of send and recv; the root of broadcast
  std::optional<ReduceOp> reduction = {};  // of allreduce and reduce
};

// Returns the record of the one collective that the calls amount to, on the member `index` of the group. The
// bytes sent to and received from this member itself are 0. Without calls it is an exchange of nothing.
OpRecord observed_record(const std::vector<GlooCall>& calls, const Group& group, std::int32_t index);

}  // namespace cp::runtime
