#include "shared/transformer/group_axis.h"

#include <algorithm>
#include <iterator>

#include "shared/base/error.h"

namespace cp {
namespace {

struct NamedGroup {
  std::string_view name;
  GroupAxis axis;
  bool joins_regions = false;
};

constexpr NamedGroup kGroups[] = {
    {"tp", GroupAxis::tp, true},
    {"tp_kv", GroupAxis::tp},
    {"norm_tp", GroupAxis::tp},
    // As attention calls its own.
    {"ring", GroupAxis::cp},
    {"inner_ring", GroupAxis::cp},
    {"outer_ring", GroupAxis::cp},
    {"ulysses", GroupAxis::cp},
    {"ring_ce", GroupAxis::cp},  // ..._ce: what copy engines move (team.h)
    {"inner_ring_ce", GroupAxis::cp},
    {"outer_ring_ce", GroupAxis::cp},
    {"ulysses_ce", GroupAxis::cp},
    // Of recurrences and convolutions, whose rows may be cut twice.
    {"cp", GroupAxis::cp},
    {"ring_ulysses", GroupAxis::cp},
    {"ulysses_ring", GroupAxis::cp},
    {"homes", GroupAxis::cp},  // of rows that go from home to home, with their tp ranks (row_moves.h)
    {"ep", GroupAxis::ep},
    {"fsdp", GroupAxis::fsdp},
    {"fsdp_reduce", GroupAxis::fsdp},
    {"fsdp_kept", GroupAxis::fsdp},
    {"fsdp_experts", GroupAxis::fsdp},
    {"fsdp_experts_kept", GroupAxis::fsdp},
    {"fsdp_experts_reduce", GroupAxis::fsdp},
    {"norm_shards", GroupAxis::fsdp},
    {"replicas", GroupAxis::dp},
    {"replicas_whole", GroupAxis::dp},
    {"replicas_experts_whole", GroupAxis::dp},
    {"replicas_experts", GroupAxis::dp},
    {"pp", GroupAxis::pp},
    {"pp_gradients", GroupAxis::pp},
    {"tied", GroupAxis::pp},  // the stages with the embedding and the head
    {"norm_pp", GroupAxis::pp},
};

const NamedGroup* find_group(std::string_view name) {
  const auto* found = std::find_if(std::begin(kGroups), std::end(kGroups),
                                   [&](const NamedGroup& known) { return known.name == name; });
  return found == std::end(kGroups) ? nullptr : found;
}

}  // namespace

std::string_view name(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tp:
      return "tp";
    case GroupAxis::cp:
      return "cp";
    case GroupAxis::ep:
      return "ep";
    case GroupAxis::fsdp:
      return "fsdp";
    case GroupAxis::dp:
      return "dp";
    case GroupAxis::pp:
      return "pp";
  }
  return "";
}

GroupAxis axis_of_group(std::string_view group) {
  const NamedGroup* known = find_group(group);
  if (known != nullptr) return known->axis;
  CP_INVARIANT(false, "a step's plan has the group ", group,
               ", of which shared/transformer/group_axis.cc knows no axis");
}

bool joins_regions(std::string_view group) {
  const NamedGroup* known = find_group(group);
  return known != nullptr && known->joins_regions;
}

}  // namespace cp
