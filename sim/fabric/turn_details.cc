// What a turn would do, for choosers that care (FabricDevice::details).
#include <variant>

#include "shared/base/error.h"
#include "shared/plan/byte_map.h"
#include "shared/plan/operations.h"
#include "sim/fabric/fabric_device.h"

namespace cp::sim {
namespace {

using Memory = TurnDetails::Memory;

void add_call(const Call& call, std::int64_t group_size, std::vector<Memory>& memory) {
  const auto add = [&](const std::byte* data, std::int64_t numel, DType dtype, bool writes) {
    if (data != nullptr && numel > 0) memory.push_back({data, data + numel * size_bytes(dtype), writes});
  };
  const std::int64_t block = call.count, all = call.count * group_size;
  switch (call.operation) {
    case Operation::all_gather:
      return add(call.in, block, call.dtype, false), add(call.out, all, call.dtype, true);
    case Operation::reduce_scatter:
      return add(call.in, all, call.dtype, false), add(call.out, block, call.dtype, true);
    case Operation::all_to_all:
      return add(call.in, all, call.dtype, false), add(call.out, all, call.dtype, true);
    case Operation::all_reduce:
    case Operation::broadcast:
      return add(call.in, block, call.dtype, false), add(call.out, block, call.dtype, true);
    case Operation::exchange:
      for (const TransferCall& send : call.exchange->sends) add(send.data, send.numel, send.dtype, false);
      for (const TransferCall& recv : call.exchange->recvs) add(recv.data, recv.numel, recv.dtype, true);
  }
}

}  // namespace

void FabricDevice::ready_streams(std::vector<StreamId>& streams) const {
  streams.clear();
  for (std::size_t id = 0; id < streams_.size(); ++id) {
    if (is_ready(streams_[id])) streams.push_back(static_cast<StreamId>(id));
  }
}

TurnDetails FabricDevice::details(StreamId id) const {
  const Stream& stream = stream_at(id);
  const Item& item = stream.items[stream.head];
  TurnDetails details;
  details.item = stream.finished;
  details.batch = batch_;
  if (item.step == nullptr) {
    details.kind = TurnDetails::Kind::event;
    details.awaited_stream = stream_of(item.event);
    details.awaited_items = launched_of(item.event);
    return details;
  }
  if (const auto* kernel = std::get_if<Kernel>(&item.step->work)) {
    std::vector<ByteRange> ranges;
    for_each_access(*item.prepared->plan, Work(*kernel), [&](const Access& access) {
      ranges.clear();
      byte_ranges(*access.view, 0, size_bytes(item.version->memory.dtype(*access.view)), ranges);
      const std::byte* first = item.version->memory.at(*access.view, item.iteration);
      for (const ByteRange& range : ranges)
        details.memory.push_back({first + range.begin, first + range.end, access.writes});
    });
    return details;
  }
  // A member that arrives only writes its slot; the bytes move in the turn of the last member, or, when the
  // work is split, in the turns in which members leave for the next round. Only such turns touch memory.
  const auto& collective = std::get<Collective>(item.step->work);
  const Membership& membership = item.prepared->membership(collective);
  Communicator& communicator = *membership.communicator;
  const std::int32_t size = communicator.size();
  details.communicator = &communicator;
  const bool arrives = stream.phase == Phase::none;
  details.kind = arrives ? TurnDetails::Kind::arrival : TurnDetails::Kind::leaving;
  details.round = arrives ? communicator.slot(membership.index).rounds.load(std::memory_order_relaxed)
                          : stream.ticket.round;
  details.completes = arrives && static_cast<std::int32_t>(communicator.arrived().size()) + 1 == size;
  details.leaves_to_next_round =
      stream.phase == Phase::gathering && communicator.outcome().parts > 1 && !communicator.outcome().failed;
  if (!details.completes && !details.leaves_to_next_round) return details;
  for (std::int32_t index = 0; index < size; ++index) {
    if (!arrives || index != membership.index) add_call(communicator.slot(index).call, size, details.memory);
  }
  if (arrives) {  // this member's call is not in its slot yet
    ExchangeCall exchange;
    add_call(resolve(collective, item.iteration, item.version->memory, membership.index, size, exchange),
             size, details.memory);
  }
  return details;
}

}  // namespace cp::sim
