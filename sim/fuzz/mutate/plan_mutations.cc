#include "sim/fuzz/mutate/plan_mutations.h"

#include <algorithm>
#include <array>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "sim/fuzz/mutate/mutation_sites.h"

namespace cp::sim {
namespace {

using Kind = MutationKind;

constexpr std::array kMutations = {
    MutationInfo{Kind::drop_step, "drop_step", "drop a step"},
    MutationInfo{Kind::repeat_step, "repeat_step", "repeat a step"},
    MutationInfo{Kind::reorder_steps, "reorder_steps", "reorder two steps"},
    MutationInfo{Kind::drop_edge, "drop_edge", "drop an edge"},
    MutationInfo{Kind::change_stream, "change_stream", "change a stream"},
    MutationInfo{Kind::change_repeat, "change_repeat", "change a Repeat's count"},
    MutationInfo{Kind::swap_peers, "swap_peers", "swap peers"},
    MutationInfo{Kind::swap_receivers, "swap_receivers", "swap two receivers on all ranks"},
    MutationInfo{Kind::drop_transfer, "drop_transfer", "drop a transfer"},
    MutationInfo{Kind::drop_transfer_everywhere, "drop_transfer_everywhere", "drop a transfer at both ends"},
    MutationInfo{Kind::shorten_transfer_everywhere, "shorten_transfer_everywhere",
                 "shorten a transfer at both ends"},
    MutationInfo{Kind::change_root, "change_root", "change a root"},
    MutationInfo{Kind::change_root_everywhere, "change_root_everywhere", "change a root on all ranks"},
    MutationInfo{Kind::change_group, "change_group", "change a group"},
    MutationInfo{Kind::change_members, "change_members", "change a group's members"},
    MutationInfo{Kind::swap_views, "swap_views", "swap two views"},
    MutationInfo{Kind::swap_dk_dv, "swap_dk_dv", "swap dk and dv"},
    MutationInfo{Kind::other_buffer, "other_buffer", "use another buffer"},
    MutationInfo{Kind::other_phase, "other_phase", "use another phase of a rotating buffer"},
    MutationInfo{Kind::shift_offset, "shift_offset", "shift an offset"},
    MutationInfo{Kind::move_buffer, "move_buffer", "move a buffer in the arena"},
    MutationInfo{Kind::change_stride, "change_stride", "swap two strides"},
    MutationInfo{Kind::change_count, "change_count", "change a count"},
    MutationInfo{Kind::shorten_step, "shorten_step", "leave out a row of a step"},
    MutationInfo{Kind::change_dtype, "change_dtype", "change a dtype"},
    MutationInfo{Kind::change_reduction, "change_reduction", "change a reduction"},
    MutationInfo{Kind::change_reduction_everywhere, "change_reduction_everywhere",
                 "change a reduction on all ranks"},
    MutationInfo{Kind::overwrite_sum, "overwrite_sum", "copy instead of adding"},
    MutationInfo{Kind::flip_accumulate, "flip_accumulate", "write instead of adding, or the other way"},
    MutationInfo{Kind::drop_operand, "drop_operand", "drop an operand of a merge"},
    MutationInfo{Kind::change_scale, "change_scale", "change a scale"},
    MutationInfo{Kind::change_mask_range, "change_mask_range", "change the range of a mask"},
    MutationInfo{Kind::change_mask_rule, "change_mask_rule", "change the rule of a mask"},
    MutationInfo{Kind::drop_slice, "drop_slice", "drop a slice of a mask"},
    MutationInfo{Kind::repeat_slice, "repeat_slice", "repeat a slice of a mask"},
};
static_assert([] {
  for (std::size_t i = 0; i < kMutations.size(); ++i) {
    if (static_cast<std::size_t>(kMutations[i].kind) != i) return false;
  }
  return static_cast<std::size_t>(Kind::repeat_slice) + 1 == kMutations.size();
}());

Sites find_sites(std::vector<Plan>& plans, MutationKind kind, std::int64_t wanted) {
  Sites sites(plans, wanted);
  step_sites(sites, kind);
  message_sites(sites, kind);
  memory_sites(sites, kind);
  arithmetic_sites(sites, kind);
  return sites;
}

}  // namespace

std::span<const MutationInfo> all_mutations() { return kMutations; }

std::string_view name(MutationKind kind) { return kMutations[static_cast<std::size_t>(kind)].name; }

MutationKind parse_mutation_kind(std::string_view word) {
  std::vector<std::string> known;
  for (const MutationInfo& info : kMutations) {
    if (info.name == word) return info.kind;
    known.emplace_back(info.name);
  }
  const std::string near = nearest(word, known);
  throw InvalidInput(
      str("mutation '", word, "' is unknown; ",
          near.empty() ? str("use one of: ", join(known, ", ")) : str("did you mean ", near, "?")));
}

std::int64_t mutation_places(const std::vector<Plan>& plans, MutationKind kind) {
  // Nothing is wanted, so nothing is changed.
  return find_sites(const_cast<std::vector<Plan>&>(plans), kind, -1).count();
}

std::optional<Mutation> mutate(std::vector<Plan>& plans, MutationKind kind, std::int64_t place,
                               std::uint64_t seed) {
  const std::int64_t places = mutation_places(plans, kind);
  if (places == 0) return std::nullopt;
  const Sites sites = find_sites(plans, kind, place % places);
  Numbers draws(seed);
  const std::string change = sites.chosen().damage(draws);
  return Mutation{kind, str(sites.chosen().where, ": ", change), sites.chosen().may_change_meaning};
}

}  // namespace cp::sim
