#include "sim/fabric/records.h"

#include <algorithm>

#include "sim/fabric/transfers.h"

namespace cp::sim {

void DeliveryLog::add(StreamId stream, const Communicator& communicator, std::int32_t index) {
  const Communicator::Slot& slot = communicator.slot(index);
  const Call& call = slot.call;
  Delivery delivery{.communicator = &communicator,
                    .sequence = slot.sequence,
                    .block_bytes = call.count * size_bytes(call.dtype),
                    .peers_begin = peers_.size(),
                    .stream = stream,
                    .index = index,
                    .root = call.root,
                    .operation = call.operation,
                    .dtype = call.dtype,
                    .reduction = call.reduction};
  if (const Transfers* transfers = communicator.transfers()) {
    delivery.tracked = tracked_.size();
    tracked_.push_back(
        {transfers->sent_bytes(index), transfers->received_bytes(index), transfers->checksums(index)});
    delivery.sends_end = delivery.recvs_end = delivery.peers_begin;
  } else if (call.exchange != nullptr) {
    const ExchangeCall& exchange = *call.exchange;
    for (const TransferCall& send : exchange.sends) peers_.emplace_back(send.peer, send.delivered_bytes);
    delivery.sends_end = peers_.size();
    for (const TransferCall& recv : exchange.recvs) peers_.emplace_back(recv.peer, recv.delivered_bytes);
    delivery.recvs_end = peers_.size();
  }
  deliveries_.push_back(delivery);
}

// The volumes of shared/plan/plan.h, from what was delivered.
void DeliveryLog::spell_out(const Delivery& delivery, OpRecord& record) {
  switch (delivery.operation) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::all_reduce:
    case Operation::all_to_all:
      std::fill(record.sent.begin(), record.sent.end(), delivery.block_bytes);
      std::fill(record.received.begin(), record.received.end(), delivery.block_bytes);
      break;
    case Operation::broadcast:
      if (delivery.index == delivery.root) {
        std::fill(record.sent.begin(), record.sent.end(), delivery.block_bytes);
      } else {
        record.received[static_cast<std::size_t>(delivery.root)] = delivery.block_bytes;
      }
      break;
    case Operation::exchange:
      break;
  }
  const auto self = static_cast<std::size_t>(delivery.index);
  record.sent[self] = record.received[self] = 0;
}

void DeliveryLog::flush_to(std::vector<OpRecord>& observed) {
  observed.reserve(observed.size() + deliveries_.size());
  for (const Delivery& delivery : deliveries_) {
    const auto size = static_cast<std::size_t>(delivery.communicator->size());
    OpRecord record{.stream = delivery.stream,
                    .operation = std::string(name(delivery.operation)),
                    .group = delivery.communicator->group(),
                    .sequence = delivery.sequence,
                    .dtype = delivery.dtype,
                    .reduction = delivery.reduction,
                    .root = delivery.root,
                    .sent = std::vector<std::int64_t>(size),
                    .received = std::vector<std::int64_t>(size)};
    spell_out(delivery, record);
    if (delivery.tracked != kNotTracked) {
      Tracked& tracked = tracked_[delivery.tracked];
      record.sent = std::move(tracked.sent), record.received = std::move(tracked.received);
      record.checksums = std::move(tracked.checksums);
    }
    for (std::size_t at = delivery.peers_begin; at < delivery.recvs_end; ++at) {
      auto& bytes = at < delivery.sends_end ? record.sent : record.received;
      bytes[static_cast<std::size_t>(peers_[at].first)] += peers_[at].second;
    }
    observed.push_back(std::move(record));
  }
  clear();
}

void DeliveryLog::clear() {
  deliveries_.clear();
  peers_.clear();
  tracked_.clear();
}

}  // namespace cp::sim
