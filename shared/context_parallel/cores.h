// What the rest of the project knows about each core is one row of facts, which stands at the end of the
// core's own file. Names, the writer of plans, memory, the search, its bound and the emitters for other
// frameworks read it. The oracles of sim/proof (expected_traffic, peak_bound) do not: what they expect of a
// core is derived separately, so that they can find a row wrong.
//
// To add a core, see docs/extending.md.
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

// Which blocks go round the ring axis and are met one after the other. Nothing: a rank gets what it lacks at
// once, from its home.
enum class Rotates : std::uint8_t { nothing, keys, queries };

// One way to use a core: with a balance, a rotation, and a place beside Ulysses.
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

// The sizes of one rank's data, for a ring axis of more than one rank.
struct CoreSizes {
  int ring;                 // ranks
  std::int64_t kv;          // elements of its keys and values together
  std::int64_t size_bytes;  // bytes of an element of the problem's dtype
  bool backward;            // there is a backward pass, too
};

// What a pass over a whole causal triangle moves over the ring axis at the very least.
struct LeastTraffic {
  double gathered_bytes = 0;  // arrive from each other rank before anything is computed
  int hops = 0;               // blocks that travel one after the other, while others are computed on
  double hop_bytes = 0;       // bytes of each of these blocks
};

// If a framework has no word for a core: the core that it runs instead, and how that one differs.
struct CoreInstead {
  Core core;
  std::string_view how;  // follows the framework's word: "brings every rank all keys and values instead"
};

struct CoreFacts {
  Core core;
  std::string_view name;  // "ring": of the command line, of texts, and of plan digests
  // The name of the strategy with Strategy::inner_ring: "double_ring". Empty: inner_ring means nothing to
  // this core.
  std::string_view name_of_inner_rings = {};
  Rotates rotates = Rotates::nothing;
  bool has_rotation = false;  // whether Strategy::rotation means something to it

  // What is compared if all strategies are asked for. A hybrid among them is called "ulysses_NAME".
  // per_document is compared if there are documents; the block of `cost` is chosen by the length.
  std::span<const CoreVariant> compared;
  // What a search tries; and which balances it tries for a strategy that the user has fixed, in this order.
  std::span<const CoreVariant> searched;
  std::span<const Balance::Kind> balances;

  // Nothing: every framework with a choice of cores has a word for it.
  std::optional<CoreInstead> instead = std::nullopt;

  // The writers of its plans (core.h).
  void (*forward)(detail::AttentionWriter&, const detail::ForwardTensors&) = nullptr;
  void (*backward)(detail::AttentionWriter&, const detail::BackwardTensors&) = nullptr;

  // Bytes that its plans have at one moment for the ring axis at least, in addition to the tensors that they
  // are given and return, whatever the mask. Unset: nothing is claimed, and a search that is short of memory
  // writes more plans of layouts that do not fit.
  std::int64_t (*least_workspace_bytes)(const Strategy&, const CoreSizes&) = nullptr;
  // For the bound of the search; q_bytes and kv_bytes are those of one rank. To claim nothing is correct,
  // too: the search then looks at more layouts.
  LeastTraffic (*least_traffic)(const Strategy&, int ring, double q_bytes, double kv_bytes) = nullptr;
  // Whether attention takes no longer when it is replayed alone than within a step, so that its time alone
  // bounds that within a step. Not so if ranks wait for others that may be late: alone, more of such waiting
  // shows.
  bool is_least_alone = true;
};

// In the order of the enumeration Core.
std::span<const CoreFacts* const> all_cores();
const CoreFacts& facts(Core core);
Core parse_core(std::string_view text);  // throws InvalidInput that names the nearest

// Whether blocks arrive one after the other, so that Strategy::slots means something: of a ring or pass_q, on
// several ranks of the ring axis.
bool arrives_in_turn(const Strategy& strategy, int cp);

}  // namespace cp
