// The parts of a step's time, and what the report's bars are of.
//
// Everything that sums, compares or chooses uses these types. Their texts are made at the edge: the screen,
// --csv, --json and the page all say name(), and the headline of what a step is bound by says bound_text().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/transformer/group_axis.h"

namespace cp::sim {

// In the order of the page's legend. An exposed transfer is one that no kernel hides.
enum class TimePart : std::uint8_t {
  attention,
  products,
  other_kernels,
  bubble,  // of a pipeline
  exposed_tp,
  exposed_cp,
  exposed_fsdp,
  exposed_dp,
  exposed_ep,
  exposed_pp,
  exposed_offload,     // copies from and to the host's memory, and what the host computes
  host,                // nothing runs: the next step is not issued yet
  host_between_steps,  // aggregated serving
  prompts_of_others    // aggregated serving: prompts that are read between two tokens
};
inline constexpr std::size_t kNumTimeParts = static_cast<std::size_t>(TimePart::prompts_of_others) + 1;
std::array<TimePart, kNumTimeParts> all_time_parts();

// The axis whose transfers the part is. Nothing for parts that are no transfers between ranks.
std::optional<GroupAxis> axis_of(TimePart part);
TimePart exposed(GroupAxis axis);
// True for transfers that no kernel hides, including those from and to the host's memory.
bool is_exposed(TimePart part);

// "attention", "other kernels", "exposed tp", "host between steps", ...
std::string_view name(TimePart part);
// What bounds a step in which this is the largest part: "attention kernels", "tensor-parallel transfers", ...
std::string_view bound_text(TimePart part);

// What a bar of the report's timeline shows: a kernel, a transfer of an axis or of the host's memory, or a
// pass of a pipeline's stage.
enum class SpanKind : std::uint8_t {
  attention,
  product,
  kernel,
  tp,
  cp,
  fsdp,
  dp,
  pp,
  ep,
  offload,
  forward,
  backward
};
inline constexpr std::size_t kNumSpanKinds = static_cast<std::size_t>(SpanKind::backward) + 1;
std::array<SpanKind, kNumSpanKinds> all_span_kinds();

SpanKind span_kind(GroupAxis axis);
// "attention", "product", "tp", ...
std::string_view name(SpanKind kind);

}  // namespace cp::sim
