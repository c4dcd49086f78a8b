// Transfers: the collectives of a group done transfer by transfer, where their payloads are to be digested or
// something is to go wrong with them. Moves the same bytes as move_part() of movement.h when nothing goes
// wrong, but all of a collective at once, by one member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shared/plan/transfer_check.h"
#include "sim/fabric/communicator.h"
#include "sim/fabric/faults.h"

namespace cp::sim {

// A fault of the collective under way, between members of the group.
struct TransferFaultPlace {
  FaultKind kind = FaultKind::none;
  std::int32_t from = 0, to = 0;  // indices
  std::int64_t amount = 0;
};

class Transfers {
 public:
  Transfers(std::int32_t size, bool checksums);

  // By the last member, with all calls in their slots and matched. Returns for each of the faults whether it
  // took place.
  std::vector<bool> move(Communicator& communicator, std::span<const TransferFaultPlace> faults);

  // By a member, before it leaves the round: false while something that it is to receive is delayed, one of
  // its turns for each call.
  bool arrived(std::int32_t member);

  // What arrived at the member and is not what was sent to it. `place`: of the collective, without the
  // sender.
  std::optional<TransferFault> find_fault(std::int32_t member, TransferPlace place) const;

  // What the member sent to and received from each, of the last collective; checksums where they were asked
  // for.
  std::vector<std::int64_t> sent_bytes(std::int32_t member) const;
  std::vector<std::int64_t> received_bytes(std::int32_t member) const;
  std::optional<PayloadChecksums> checksums(std::int32_t member) const;

 private:
  struct Transfer {
    std::int32_t from = 0, to = 0;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::int64_t bytes = 0;
  };
  // What reaches a receiver: a part of the payload, or other bytes.
  struct Arrival {
    std::span<const std::byte> bytes;
    std::int64_t counted = 0;  // bytes that arrived in all
    std::int64_t turns = 0;    // > 0: so many turns later
  };
  // Of a delayed transfer: sent, and not there yet.
  struct Late {
    Transfer transfer;
    std::vector<std::byte> bytes;
    std::int64_t turns = 0, counted = 0;
  };
  // One for each pair of members.
  struct Entry {
    std::int64_t sent_bytes = 0, received_bytes = 0;
    std::uint64_t sent = 0, received = 0;
  };
  using Link = std::pair<std::int32_t, std::int32_t>;  // from, to

  Entry& entry(std::int32_t from, std::int32_t to) {
    return entries_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) +
                    static_cast<std::size_t>(to)];
  }
  const Entry& entry(std::int32_t from, std::int32_t to) const {
    return const_cast<Transfers*>(this)->entry(from, to);
  }

  std::vector<Transfer> copies_of(const Communicator& communicator) const;
  void reorder(std::vector<Transfer>& transfers, std::int64_t seed) const;
  void copy(const Transfer& transfer);
  void reduce_scatter(const Communicator& communicator);
  void all_reduce(const Communicator& communicator);
  const std::byte* addend(const Transfer& transfer, std::vector<std::byte>& room);

  void note_sent(const Transfer& transfer);
  void note_received(const Transfer& transfer, std::span<const std::byte> found, std::int64_t arrived_bytes);
  Arrival arrive(const Transfer& transfer);
  const TransferFaultPlace* take_fault(const Transfer& transfer);

  std::int32_t size_;
  bool checksums_;
  std::vector<Entry> entries_;          // of the last collective
  std::vector<std::uint64_t> results_;  // the same: of all_reduce, by member
  std::vector<std::vector<Late>>
      late_;  // by receiver, each touched by that member alone once the round is released
  // From a duplicate on: what the link delivers before anything that is sent later.
  std::map<Link, std::deque<std::vector<std::byte>>> behind_;
  std::span<const TransferFaultPlace> faults_;  // of the collective under way
  std::vector<bool> took_place_;
  std::vector<std::byte> damaged_;  // what arrive() returns a part of
};

}  // namespace cp::sim
