// Target: what a back end can do, as plain data.
//
// Builders take a Target, so that a plan is complete before it meets a device. The Target is part of the
// plan's digest. A device can run a plan for another Target too, if it has all of its operations (contract
// 7).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"

namespace cp {

// What the fused attention kernels of a library support; the rules are in shared/plan/fused_attention.h.
struct FusedAttention {
  std::set<DType> dtypes;
  std::int64_t head_dim_multiple = 8;
  // Limits of the head sizes of q, k and v.
  std::int64_t max_head_dim_forward = 0, max_head_dim_backward = 0;
  // Whether it has windows beside full and causal masks; windows whose last keys are in another call, as they
  // are on other ranks; and takes several documents in one call.
  bool window = false, window_tail = false, packed = false;
  std::int64_t sm_count = 0;  // multiprocessors; the workspace of some calls depends on them
  bool operator==(const FusedAttention&) const = default;
};

// Stands among the kernels of a target that also takes kernels which have shapes only (row_operations.h).
inline constexpr std::string_view kShapesOnly = "shapes";

struct Target {
  std::string name;
  std::set<std::string> collectives;  // operation_name() of the collectives it has
  std::set<std::string> kernels;      // operation_name() of the kernels it has
  std::set<DType> dtypes;
  std::int64_t alignment_bytes = 1;  // of every temporary in the arena; 1: only that of the element
  // What its attention library supports, beside the kernels above; absent if there is no such library.
  std::optional<FusedAttention> fused_attention = {};
  // Collectives that its library cannot give to copy engines, although groups with copy_engine may have them.
  // It limits what builders may choose. What they chose stands in the plan, so that this is no part of its
  // digest.
  std::set<std::string> sm_only = {};

  bool has_collective(std::string_view operation) const {
    return collectives.contains(std::string(operation));
  }
  bool has_kernel(std::string_view operation) const { return kernels.contains(std::string(operation)); }
  bool operator==(const Target&) const = default;
};

// Everything that the host kernels and collectives can do: the fabric's target and Gloo's.
const Target& host_target();

// What hosts and all GPUs have, which is all that hosts have. It is that of plans for GPUs of several
// generations.
const Target& common_target();

// The same with kernels that have shapes only: some of serving. Plans for it are made, checked and timed; a
// device runs those that have no such kernel.
const Target& shape_target();

// The target of GPUs of a generation ("sm80", "sm90", "sm100", "sm120") with NCCL and cuDNN. It has the
// host's operations, arenas that are aligned as these libraries like it, and cudnn_attention()
// (fused_attention.h). `gpu` is a generation, or a compute capability that belongs to one: sm86 and sm89 have
// the target sm80. Throws InvalidInput for any other text, and names the nearest.
const Target& gpu_target(std::string_view gpu);

// The target that a scenario names: "host", or a GPU as above. Throws InvalidInput that lists them.
const Target& target_by_name(std::string_view name);

Hasher& hash(Hasher& hasher, const Target& target);

}  // namespace cp
