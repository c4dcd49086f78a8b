// What the rest of the project knows of each core: one row, which stands at the end of the core's own file,
// and which names, the writer of plans, memory, the search, its bound and the frameworks read. The oracles of
// sim/proof (expected_traffic, peak_bound) do not: what they say of a core is derived apart from it, so that
// they can find a row wrong.
//
// To add a core: docs/extending.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shared/base/dtype.h"
#include "shared/context_parallel/strategy.h"

namespace cp {

namespace detail {
class AttentionWriter;
struct ForwardTensors;
struct BackwardTensors;
}  // namespace detail

// Which blocks go round the ring axis and are met one after the other. Nothing: what a rank lacks comes at
// once, from its home.
enum class Rotates : std::uint8_t { nothing, keys, queries };

// A core with a balance and a choice of its own.
struct CoreVariant {
  enum class Place : std::uint8_t {
    any_degree,   // alone, and between Ulysses groups
    hybrid,       // between Ulysses groups
    alone,        // on all ranks
    inner_rings,  // on all ranks, as a ring of inner rings
  };
  Place place = Place::alone;
  Balance balance;
  Strategy::Rotation rotation = Strategy::Rotation::exchange;
  bool ulysses_inner = true;
};

// Of one rank of a ring axis of more than one.
struct CoreSizes {
  int ring;                 // ranks
  std::int64_t q;           // values of the rank's queries, as many as of its outputs
  std::int64_t kv;          // values of its keys and values together
  std::int64_t size_bytes;  // of a value of the problem's dtype
  bool backward;            // there is a backward pass, too
};

// What a pass over a whole causal triangle surely moves over the ring axis.
struct LeastTraffic {
  double gathered_bytes = 0;  // arrive from each other rank before anything is computed
  int hops = 0;               // one after the other, while others are computed on,
  double hop_bytes = 0;       // of so many bytes each
};

// For a framework that has no word for a core: the core that it runs instead, and how that one differs.
struct CoreInstead {
  Core core;
  std::string_view how;  // follows the framework's word: "brings every rank all keys and values instead"
};

struct CoreFacts {
  Core core;
  std::string_view name;  // "ring": of the command line, of texts, and of plan digests
  // "double_ring": the strategy with Strategy::inner_ring. Empty: inner_ring means nothing to it.
  std::string_view name_of_inner_rings = {};
  Rotates rotates = Rotates::nothing;
  bool has_rotation = false;  // Strategy::rotation means something to it

  // What is compared when all strategies are asked for. A hybrid among them has a name of its own,
  // "ulysses_NAME"; per_document is compared where there are documents, and the block of `cost` is chosen by
  // the length.
  std::span<const CoreVariant> compared;
  // What a search tries; and the balances that it tries of a strategy that the question fixes, the first of
  // which it takes first.
  std::span<const CoreVariant> searched;
  std::span<const Balance::Kind> balances;

  // None: every framework with a choice of cores has a word for it.
  std::optional<CoreInstead> instead = std::nullopt;

  // The writers of its plans (core.h).
  void (*forward)(detail::AttentionWriter&, const detail::ForwardTensors&) = nullptr;
  void (*backward)(detail::AttentionWriter&, const detail::BackwardTensors&) = nullptr;

  // What its plans allocate for the ring axis, beyond the tensors that they are given and return; the most
  // where the mask decides.
  std::int64_t (*workspace_bytes)(const Strategy&, const CoreSizes&) = nullptr;
  // For the search's bound; q_bytes and kv_bytes of a rank. Nothing is a bound, too: it only makes the search
  // look at more.
  LeastTraffic (*least_traffic)(const Strategy&, int ring, double q_bytes, double kv_bytes) = nullptr;
  // Whether attention replayed on its own takes no longer than within a step, so that it bounds that: not
  // where ranks wait for others who may be late, since alone they show more of it.
  bool is_least_alone = true;
};

// In the order of Core.
std::span<const CoreFacts* const> all_cores();
const CoreFacts& facts(Core core);

}  // namespace cp
