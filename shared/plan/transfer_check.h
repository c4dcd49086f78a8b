// Checks that what was sent arrived. It compares the traces of all ranks of one run with each other, transfer
// by transfer:
//
//   bytes      what a rank observed from a peer is what the peer issued, no less and no more
//   checksums  the payload has the same checksum where it was sent and where it arrived; the outputs of an
//              all_reduce have the same on all members
//
// A device takes checksums (PayloadChecksums) of the transfers that it sees itself:
//
//   fabric  every collective: what member i gives to member j, and what j read of it, also in reductions
//   gloo    every collective: each message between two members, as it passes between memory and socket. A
//           broadcast goes through other members, so each hop is compared, and the sender named is the one
//           that passed it on wrong
//   nccl    none: its kernels send and reduce out of sight, and payloads are on the GPU
//
// If a damaged payload is passed on, only the first transfer is reported: from there on sender and receiver
// agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/plan/trace.h"

namespace cp {

// Whether checksums are taken of payloads, at the sender and at the receiver of each transfer.
enum class Checksums : std::uint8_t {
  off,
  end,   // into the observed records, for find_transfer_fault() when a run has ended
  each,  // also compared at once: the receiver of what differs throws TransferFault
};
std::string_view name(Checksums checksums);        // "end"
Checksums parse_checksums(std::string_view text);  // throws InvalidInput that lists the names

// Its facts are the sender, the receiver, the operation, the group and the sequence number of the transfer;
// or, if outputs differ, the ranks whose outputs do.
class TransferFault : public CheckFailure {
 public:
  using CheckFailure::CheckFailure;
};

// A transfer of a collective, between two members of its group.
struct TransferPlace {
  std::string operation = {};
  const Group* group = nullptr;
  std::int64_t sequence = 0;
  std::size_t from = 0, to = 0;  // indices in the group
};
TransferFault wrong_bytes(const TransferPlace& place, std::int64_t arrived, std::int64_t sent);
TransferFault changed_payload(const TransferPlace& place, std::uint64_t sent, std::uint64_t received);

// Compares outputs that must be equal to the bit, by rank; returns nothing if they are. `place` names only
// the collective.
std::optional<TransferFault> unequal_results(const TransferPlace& place,
                                             const std::map<Rank, std::uint64_t>& results);

// The first transfer that is wrong: the one with the lowest sequence number on its group. The fault names
// operation, group, sequence number, sender, receiver, and bytes or checksums; if outputs differ, the ranks
// that have others than most. Returns nothing if all that can be compared agrees.
std::optional<TransferFault> find_transfer_fault(std::span<const RankTrace> traces);

}  // namespace cp
