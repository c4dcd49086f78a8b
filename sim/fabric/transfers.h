// Transfers: carries out the collectives of a group one transfer at a time. It is used if the payloads are to
// have checksums, or if faults are to be injected (faults.h). Without faults it moves the same bytes as
// move_part() of movement.h, but one member moves all of a collective.
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

// A fault of the current collective, between two members of the group.
struct TransferFaultPlace {
  FaultKind kind = FaultKind::none;
  std::int32_t from = 0, to = 0;  // indices in the group
  std::int64_t amount = 0;
};

class Transfers {
 public:
  Transfers(std::int32_t size, bool checksums);

  // The last member calls this when all calls are in their slots and match. Returns for each fault, in order,
  // whether it took place.
  std::vector<bool> move(Communicator& communicator, std::span<const TransferFaultPlace> faults);

  // A member calls this before it leaves the round. Returns false while something that it should receive is
  // delayed; each call counts as one turn of the delay.
  bool arrived(std::int32_t member);

  // Finds a transfer to the member in which not the bytes arrived that were sent. `place` names the
  // collective and the receiver; the sender is filled in here.
  std::optional<TransferFault> find_fault(std::int32_t member, TransferPlace place) const;

  // How many bytes the member sent to each member, and received from each, in the last collective, by index.
  // checksums() is empty if the constructor was not asked for them.
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
  // What reaches a receiver. With a fault it may be a part of the payload, or other bytes.
  struct Arrival {
    std::span<const std::byte> bytes;
    std::int64_t counted = 0;  // how many bytes arrived, duplicates included
    std::int64_t turns = 0;    // after how many of the receiver's turns it arrives; 0: now
  };
  // A delayed transfer, which was sent and has not arrived yet.
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
  std::vector<std::uint64_t> results_;  // of the last all_reduce: the digest of each member's result
  // By receiver. Once the round is released, only that member touches its entry.
  std::vector<std::vector<Late>> late_;
  // After a duplicate, the payloads that are still on a link. It delivers them before anything that is sent
  // later.
  std::map<Link, std::deque<std::vector<std::byte>>> behind_;
  std::span<const TransferFaultPlace> faults_;  // of the current collective
  std::vector<bool> took_place_;
  std::vector<std::byte> damaged_;  // holds the damaged bytes to which arrive()'s result points
};

}  // namespace cp::sim
