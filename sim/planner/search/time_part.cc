#include "sim/planner/search/time_part.h"

namespace cp::sim {
namespace {

template <class Enum, std::size_t kCount>
std::array<Enum, kCount> all_of() {
  std::array<Enum, kCount> all{};
  for (std::size_t i = 0; i < kCount; ++i) all[i] = static_cast<Enum>(i);
  return all;
}

}  // namespace

std::array<TimePart, kNumTimeParts> all_time_parts() { return all_of<TimePart, kNumTimeParts>(); }
std::array<SpanKind, kNumSpanKinds> all_span_kinds() { return all_of<SpanKind, kNumSpanKinds>(); }

std::optional<GroupAxis> axis_of(TimePart part) {
  switch (part) {
    case TimePart::exposed_tp:
      return GroupAxis::tp;
    case TimePart::exposed_cp:
      return GroupAxis::cp;
    case TimePart::exposed_fsdp:
      return GroupAxis::fsdp;
    case TimePart::exposed_dp:
      return GroupAxis::dp;
    case TimePart::exposed_ep:
      return GroupAxis::ep;
    case TimePart::exposed_pp:
      return GroupAxis::pp;
    case TimePart::attention:
    case TimePart::products:
    case TimePart::other_kernels:
    case TimePart::bubble:
    case TimePart::exposed_offload:
    case TimePart::host:
    case TimePart::host_between_steps:
    case TimePart::prompts_of_others:
      return std::nullopt;
  }
  return std::nullopt;
}

TimePart exposed(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tp:
      return TimePart::exposed_tp;
    case GroupAxis::cp:
      return TimePart::exposed_cp;
    case GroupAxis::ep:
      return TimePart::exposed_ep;
    case GroupAxis::fsdp:
      return TimePart::exposed_fsdp;
    case GroupAxis::dp:
      return TimePart::exposed_dp;
    case GroupAxis::pp:
      return TimePart::exposed_pp;
  }
  return {};
}

bool is_exposed(TimePart part) { return part == TimePart::exposed_offload || axis_of(part).has_value(); }

std::string_view name(TimePart part) {
  switch (part) {
    case TimePart::attention:
      return "attention";
    case TimePart::products:
      return "products";
    case TimePart::other_kernels:
      return "other kernels";
    case TimePart::bubble:
      return "bubble";
    case TimePart::exposed_tp:
      return "exposed tp";
    case TimePart::exposed_cp:
      return "exposed cp";
    case TimePart::exposed_fsdp:
      return "exposed fsdp";
    case TimePart::exposed_dp:
      return "exposed dp";
    case TimePart::exposed_ep:
      return "exposed ep";
    case TimePart::exposed_pp:
      return "exposed pp";
    case TimePart::exposed_offload:
      return "exposed offload";
    case TimePart::host:
      return "host";
    case TimePart::host_between_steps:
      return "host between steps";
    case TimePart::prompts_of_others:
      return "prompts of others";
  }
  return "";
}

std::string_view bound_text(TimePart part) {
  switch (part) {
    case TimePart::attention:
      return "attention kernels";
    case TimePart::products:
      return "matrix products";
    case TimePart::other_kernels:
      return "memory-bound kernels";
    case TimePart::bubble:
      return "pipeline bubble";
    case TimePart::exposed_tp:
      return "tensor-parallel transfers";
    case TimePart::exposed_cp:
      return "context-parallel transfers";
    case TimePart::exposed_fsdp:
      return "transfers of parameters and gradients";
    case TimePart::exposed_dp:
      return "gradients that replicas add up";
    case TimePart::exposed_ep:
      return "expert-parallel transfers";
    case TimePart::exposed_pp:
      return "transfers between stages";
    case TimePart::exposed_offload:
      return "the host's memory";
    case TimePart::host:
      return "the host, which issues kernels";
    case TimePart::host_between_steps:
      return "the host, between two steps";
    case TimePart::prompts_of_others:
      return "prompts that are read between";
  }
  return "";
}

SpanKind span_kind(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tp:
      return SpanKind::tp;
    case GroupAxis::cp:
      return SpanKind::cp;
    case GroupAxis::ep:
      return SpanKind::ep;
    case GroupAxis::fsdp:
      return SpanKind::fsdp;
    case GroupAxis::dp:
      return SpanKind::dp;
    case GroupAxis::pp:
      return SpanKind::pp;
  }
  return {};
}

std::string_view name(SpanKind kind) {
  switch (kind) {
    case SpanKind::attention:
      return "attention";
    case SpanKind::product:
      return "product";
    case SpanKind::kernel:
      return "kernel";
    case SpanKind::tp:
      return "tp";
    case SpanKind::cp:
      return "cp";
    case SpanKind::fsdp:
      return "fsdp";
    case SpanKind::dp:
      return "dp";
    case SpanKind::ep:
      return "ep";
    case SpanKind::pp:
      return "pp";
    case SpanKind::offload:
      return "offload";
    case SpanKind::forward:
      return "forward";
    case SpanKind::backward:
      return "backward";
  }
  return "";
}

}  // namespace cp::sim
