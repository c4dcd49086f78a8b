// How a recurrence over a sequence that is split across ranks is computed.
//
// A rank has chunks of the sequence: runs of neighbouring rows (chunks.h). The state before a chunk is that
// behind the chunk before it, on another rank as a rule. Each chunk alone gives the state that its rows write
// and the transition that they apply to whatever comes in; a scan of these pairs over the chunks gives every
// chunk the state that comes in, and then all ranks compute their outputs at once. The strategies differ in
// the scan:
//
//   sequential           From chunk to chunk: each adds its own to what comes in and hands it on. One state
//                        to each rank, and as many hops one after the other as there are chunks, less one.
//   recursive_doubling   Pairs are joined over 1, 2, 4, ... chunks (Hillis and Steele 1986): log2 hops, each
//                        of a state and a transition.
//   all_gather           Each chunk gets, at once, the pairs of all chunks of its document before it, and
//                        joins them itself: one hop, and the most bytes (LASP-2, Sun et al. 2025).
//   heads                No scan: an all-to-all trades rows for heads, and each rank has the whole sequence
//                        for some heads, as Ulysses does for attention. It takes any balance.
//
// The backward pass does the same with the gradient of the state, from the last chunk to the first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/types.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/target.h"
#include "shared/recurrence/problem.h"

namespace cp {

enum class StateScan : std::uint8_t { sequential, recursive_doubling, all_gather, heads };
std::string_view name(StateScan scan);

struct RecurrenceStrategy {
  StateScan scan = StateScan::all_gather;
  Balance balance;  // contiguous, head_tail or striped, also per document
  // Rows may lie where attention layers of the same model have them at home (context_parallel/sharding.h):
  // the balance splits the sequence over cp / ulysses_degree ranks, and what each got is split evenly again.
  int ulysses_degree = 1;
  bool ulysses_inner = true;  // ranks of one such part are neighbours
  bool operator==(const RecurrenceStrategy&) const = default;
};

// "all_gather contiguous"
std::string to_string(const RecurrenceStrategy& strategy);
Hasher& hash(Hasher& hasher, const RecurrenceStrategy& strategy);

// Throws InvalidInput that names the nearest.
StateScan parse_state_scan(std::string_view text);
// Every scan, in the order above.
const std::vector<StateScan>& state_scans();

// Why a strategy cannot run, and the nearest one that can.
struct RecurrenceRefusal {
  std::string reason;
  RecurrenceStrategy strategy;
};

// The one answer to "is this legal?". It refuses
//   - balances that are made for masks: cost and head_tail_exchange;
//   - for scans, a balance that gives a rank more than two chunks of one document, as striped does: a state
//     would travel for each of them, where heads moves every row once;
//   - for heads, ranks that do not divide key_heads;
//   - a dtype or a kernel that the target lacks.
// Throws InvalidInput if the problem itself makes no sense, and if cp < 1.
std::optional<RecurrenceRefusal> refuse(const RecurrenceProblem& problem, int cp,
                                        const RecurrenceStrategy& strategy,
                                        const Target& target = host_target());

}  // namespace cp
