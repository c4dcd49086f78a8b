// Did what was sent arrive? Compares the traces of all ranks of one run with each other, transfer by
// transfer:
//
//   bytes      what a rank observed from a peer is what it issued, no less and no more
//   checksums  of a payload, where it was sent and where it arrived; of the outputs of an all_reduce, on all
//              members
//
// What the checksums are of (PayloadChecksums) is the transfers' own where a collective is made of transfers
// that the device sees:
//
//   fabric  every collective: what member i gives to member j, and what j read of it, of reductions too
//   gloo    every collective: each message between two members, as it passes between memory and socket. A
//           broadcast goes through other members: what is compared is each hop, so that the sender named is
//           the one who passed it on wrong
//   nccl    none: its kernels send and reduce out of sight, and payloads lie on the GPU
//
// A payload that was damaged and is then passed on is a fault of the first transfer alone: from there on
// sender and receiver agree.
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

// Whether payloads are digested, at the sender and at the receiver of each transfer.
enum class Checksums : std::uint8_t {
  off,
  end,   // they are in the observed records, for find_transfer_fault() when a run has ended
  each,  // and compared at once: the receiver of what differs throws the TransferFault
};
std::string_view name(Checksums checksums);        // "end"
Checksums parse_checksums(std::string_view text);  // throws InvalidInput that lists the names

// Its facts are the transfer's sender and receiver, its operation, group and sequence number; or whose
// outputs differ.
class TransferFault : public CheckFailure {
 public:
  using CheckFailure::CheckFailure;
};

// A transfer of a collective, between two members of its group.
struct TransferPlace {
  std::string operation = {};
  const Group* group = nullptr;
  std::int64_t sequence = 0;
  std::size_t from = 0, to = 0;  // indices
};
TransferFault wrong_bytes(const TransferPlace& place, std::int64_t arrived, std::int64_t sent);
TransferFault changed_payload(const TransferPlace& place, std::uint64_t sent, std::uint64_t received);

// Of outputs that must be equal bits, by rank; nothing where they are. `place`: of the collective alone.
std::optional<TransferFault> unequal_results(const TransferPlace& place,
                                             const std::map<Rank, std::uint64_t>& results);

// The first that is wrong: of the lowest sequence number on its group. It names operation, group, sequence
// number, sender and receiver, bytes or checksums; of outputs that differ those who have other ones than
// most. Nothing: all that can be compared agrees.
std::optional<TransferFault> find_transfer_fault(std::span<const RankTrace> traces);

}  // namespace cp
