// Damages a right set of plans at one place. The checker, the fabric, a ledger or a comparison of results has
// to notice it.
//
// A mutation is three numbers: its kind, its place (which of the places where these plans can be damaged so,
// in the order of ranks, steps and fields), and a seed for what is drawn there. The same three numbers give
// the same damage on every machine.
//
// What is damaged is one field of one rank's plan, as a slip in a builder's arithmetic would do it. If ranks
// would only disagree then, it is the same slip on all ranks of one collective (the kinds "..._everywhere",
// and swap_receivers), so that the plans agree on what is wrong. Steps that are left out, doubled or moved
// keep the plan's bookkeeping right: edges name the same steps as before, and the declared uses of
// temporaries are those that remain.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

enum class MutationKind : std::uint8_t {
  // steps and their order
  drop_step,
  repeat_step,    // once more, right after itself
  reorder_steps,  // two steps of one stream trade places
  drop_edge,
  change_stream,
  change_repeat,  // one iteration more or less
  // messages
  swap_peers,                // of two transfers; or another peer for one
  swap_receivers,            // two members of a group get what the other one should, on all ranks
  drop_transfer,             // of one rank
  drop_transfer_everywhere,  // the send, its receive, and their count
  shorten_transfer_everywhere,
  change_root,
  change_root_everywhere,
  change_group,
  change_members,  // order, number or name of a group
  // memory
  swap_views,  // two operands of one shape
  swap_dk_dv,
  other_buffer,  // of one type and large enough: a stale block
  other_phase,   // of a buffer with slots
  shift_offset,
  move_buffer,    // a temporary, in the arena
  change_stride,  // two dimensions trade their strides
  change_count,   // an extent, or the digest of the counts
  shorten_step,   // a row less, read and written
  change_dtype,
  // arithmetic
  change_reduction,
  change_reduction_everywhere,
  overwrite_sum,  // a copy instead of an addition
  flip_accumulate,
  drop_operand,  // of a merge
  change_scale,  // of scores, of a Scale; the value of a Fill
  change_mask_range,
  change_mask_rule,  // full, causal or window; diagonal; width
  drop_slice,
  repeat_slice,
};
struct MutationInfo {
  MutationKind kind;
  std::string_view name;   // "drop_step": so it is called in PlanMutation.kind and on the command line
  std::string_view words;  // "drop a step"
};
std::span<const MutationInfo> all_mutations();  // in the order of the enumeration
std::string_view name(MutationKind kind);
// The kind with this name. Throws InvalidInput that names the nearest kind.
MutationKind parse_mutation_kind(std::string_view name);

struct Mutation {
  MutationKind kind{};
  std::string text;  // what was changed where: "rank 1, step 4 exchange "rotate": sends 0, peer: 1 -> 2"
  // Whether the result may be another legal program: consistent in itself, but computing something else.
  // Examples are a step that reads the neighbouring element, sums instead of maxima, or as many elements sent
  // to another peer. No rule about plans can object then; only who knows the right result can.
  bool may_change_meaning = false;
};

// How many places the plans have for damage of this kind.
std::int64_t mutation_places(const std::vector<Plan>& plans, MutationKind kind);

// Damages the plans at the place number `place` % mutation_places(). Returns nothing, and leaves the plans
// unchanged, if there is no place. The plans must be right ones (they pass check()), and `place` not
// negative.
std::optional<Mutation> mutate(std::vector<Plan>& plans, MutationKind kind, std::int64_t place,
                               std::uint64_t seed);

}  // namespace cp::sim
