#include <string_view>

#include "runtime/nccl/nccl_calls.h"

namespace cp::runtime {
namespace {

using Function = NcclCall::Function;

std::string_view operation_of(Function function) {
  switch (function) {
    case Function::all_gather:
      return "all_gather";
    case Function::reduce_scatter:
      return "reduce_scatter";
    case Function::all_reduce:
      return "all_reduce";
    case Function::broadcast:
      return "broadcast";
    case Function::all_to_all:
      return "all_to_all";
    default:
      return "exchange";  // a group of transfers, until one with the rank itself shows
  }
}

class RecordBuilder {
 public:
  RecordBuilder(const Plan& plan, const NcclCall& first, std::int64_t sequence)
      : self_(index_in_group(plan, first.comm)) {
    record_.stream = first.stream;
    record_.operation = operation_of(first.function);
    record_.group = plan.groups[static_cast<std::size_t>(first.comm)];
    record_.sequence = sequence;
    record_.sent.resize(record_.group.ranks.size());
    record_.received.resize(record_.group.ranks.size());
  }

  void add(const NcclCall& call) {
    if (call.function == Function::group_start || call.function == Function::group_end) return;
    // What says that memory is free carries no data.
    if (call.function == Function::signal ||
        (call.function == Function::wait_signal && call.recv_buffer.buffer < 0))
      return;
    if (!typed_) record_.dtype = call.dtype;
    typed_ = true;
    if (call.reduction) record_.reduction = call.reduction;
    const std::int64_t bytes = call.count * size_bytes(call.dtype);
    switch (call.function) {
      case Function::send:
        if (call.peer == self_) record_.operation = "all_to_all";
        record_.sent[static_cast<std::size_t>(call.peer)] += bytes;
        break;
      case Function::put_signal:
        record_.sent[static_cast<std::size_t>(call.peer)] += bytes;
        break;
      // A wait counts signals and knows no bytes; those are of the put that it waits for, which the peer's
      // record has of its own call.
      case Function::wait_signal:
      case Function::recv:
        record_.received[static_cast<std::size_t>(call.peer)] += bytes;
        break;
      case Function::broadcast:
        record_.root = call.peer;
        if (call.peer == self_) {
          add_everywhere(record_.sent, bytes);
        } else {
          record_.received[static_cast<std::size_t>(call.peer)] += bytes;
        }
        break;
      default:
        add_everywhere(record_.sent, bytes);
        add_everywhere(record_.received, bytes);
    }
  }

  OpRecord take() {
    record_.sent[static_cast<std::size_t>(self_)] = record_.received[static_cast<std::size_t>(self_)] = 0;
    return std::move(record_);
  }

 private:
  static void add_everywhere(std::vector<std::int64_t>& by_peer, std::int64_t bytes) {
    for (std::int64_t& of_peer : by_peer) of_peer += bytes;
  }

  std::int32_t self_;
  OpRecord record_;
  bool typed_ = false;
};

}  // namespace

std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan,
                                       std::vector<std::int64_t>& next_sequences) {
  std::vector<OpRecord> records;
  for (std::size_t begin = 0; begin < calls.size();) {
    std::size_t end = begin + 1;
    while (end < calls.size() && calls[end].launch >= 0 && calls[end].launch == calls[begin].launch) ++end;
    if (calls[begin].comm >= 0) {
      RecordBuilder record(plan, calls[begin],
                           next_sequences.at(static_cast<std::size_t>(calls[begin].comm))++);
      for (std::size_t at = begin; at < end; ++at) record.add(calls[at]);
      records.push_back(record.take());
    }
    begin = end;
  }
  return records;
}

std::vector<OpRecord> observed_records(const std::vector<NcclCall>& calls, const Plan& plan) {
  std::vector<std::int64_t> next_sequences(plan.groups.size());
  return observed_records(calls, plan, next_sequences);
}

}  // namespace cp::runtime
