#include "shared/transformer/group_axis.h"

#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::pair<std::string_view, GroupAxis> kGroups[] = {
    {"tp", GroupAxis::tp},
    {"tp_kv", GroupAxis::tp},
    {"norm_tp", GroupAxis::tp},
    // As attention calls its own.
    {"ring", GroupAxis::cp},
    {"inner_ring", GroupAxis::cp},
    {"outer_ring", GroupAxis::cp},
    {"ulysses", GroupAxis::cp},
    {"ep", GroupAxis::ep},
    {"fsdp", GroupAxis::fsdp},
    {"fsdp_reduce", GroupAxis::fsdp},
    {"fsdp_experts", GroupAxis::fsdp},
    {"fsdp_experts_reduce", GroupAxis::fsdp},
    {"norm_shards", GroupAxis::fsdp},
    {"replicas", GroupAxis::dp},
    {"replicas_experts", GroupAxis::dp},
    {"pp", GroupAxis::pp},
    {"tied", GroupAxis::pp},  // the stages with the embedding and the head
    {"norm_pp", GroupAxis::pp},
};

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
  for (const auto& [known, axis] : kGroups) {
    if (group == known) return axis;
  }
  CP_INVARIANT(false, "a step's plan has the group ", group,
               ", of which shared/transformer/group_axis.cc knows no axis");
}

}  // namespace cp
