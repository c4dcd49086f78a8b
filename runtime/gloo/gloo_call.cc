#include "runtime/gloo/gloo_call.h"

#include <algorithm>

namespace cp::runtime {
namespace {

using Function = GlooCall::Function;

std::string operation_of(const std::vector<GlooCall>& calls) {
  const auto made = [&](Function function) {
    return std::any_of(calls.begin(), calls.end(),
                       [&](const GlooCall& call) { return call.function == function; });
  };
  if (made(Function::allgather)) return "all_gather";
  if (made(Function::allreduce)) return "all_reduce";
  if (made(Function::alltoall)) return "all_to_all";
  if (made(Function::broadcast)) return "broadcast";
  return made(Function::reduce) ? "reduce_scatter" : "exchange";
}

void add_bytes(const GlooCall& call, std::int32_t index, OpRecord& record) {
  const std::int64_t bytes = call.count * size_bytes(call.dtype);
  const auto peer = static_cast<std::size_t>(call.peer);
  switch (call.function) {
    case Function::allgather:
    case Function::allreduce:
    case Function::alltoall:
      for (std::int64_t& sent : record.sent) sent += bytes;
      for (std::int64_t& received : record.received) received += bytes;
      break;
    case Function::broadcast:
      record.root = call.peer;
      if (call.peer == index) {
        for (std::int64_t& sent : record.sent) sent += bytes;
      } else {
        record.received[peer] += bytes;
      }
      break;
    case Function::send:
      record.sent[peer] += bytes;
      break;
    case Function::recv:
      record.received[peer] += bytes;
      break;
    case Function::reduce:
      break;
  }
}

}  // namespace

OpRecord observed_record(const std::vector<GlooCall>& calls, const Group& group, std::int32_t index) {
  const std::size_t size = group.ranks.size();
  OpRecord record;
  record.operation = operation_of(calls);
  record.group = group;
  record.sent.resize(size);
  record.received.resize(size);
  for (const GlooCall& call : calls) {
    add_bytes(call, index, record);
    if (call.reduction) record.reduction = call.reduction;
  }
  if (!calls.empty())
    record.dtype = calls.front().dtype;  // in an exchange: of the first send, or if none, the first receive
  record.sent[static_cast<std::size_t>(index)] = record.received[static_cast<std::size_t>(index)] = 0;
  return record;
}

}  // namespace cp::runtime
