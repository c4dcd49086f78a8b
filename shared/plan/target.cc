#include "shared/plan/target.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/cudnn_target.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

constexpr std::array<std::string_view, 4> kGpuGenerations = {"sm80", "sm90", "sm100", "sm120"};
// Later versions of a generation: A10 and A40, Orin, L4 and L40S; Thor as CUDA 12 calls it, B300; GB10. Its
// kernels run on them, and cuDNN takes the same calls with no more workspace (tests/cudnn).
constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
    {"sm86", "sm80"},   {"sm87", "sm80"},   {"sm88", "sm80"},  {"sm89", "sm80"},
    {"sm101", "sm100"}, {"sm103", "sm100"}, {"sm121", "sm120"}};

std::string_view generation_of(std::string_view gpu) {
  for (const auto& [other, generation] : kOthers) {
    if (gpu == other) return generation;
  }
  return gpu;
}

// The greatest generation that is not later than the GPU, whose instructions it has; else the first. Numbers
// are in order, so that this is no matter of spelling.
std::string_view generation_before(std::string_view gpu) {
  const auto number = [](std::string_view text) {
    int value = 0;
    const auto end = text.data() + text.size();
    const auto [rest, error] =
        std::from_chars(text.data() + std::min<std::size_t>(2, text.size()), end, value);
    return error == std::errc() && rest == end && text.starts_with("sm") ? value : -1;
  };
  std::string_view best;
  if (number(gpu) < 0) return best;
  best = kGpuGenerations.front();
  for (const std::string_view generation : kGpuGenerations) {
    if (number(generation) <= number(gpu)) best = generation;
  }
  return best;
}

}  // namespace

const Target& host_target() {
  static const Target target = [] {
    Target made = {
        .name = "host",
        .collectives = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "exchange"},
        .kernels = {"copy", "cast", "fill", "accumulate", "scale", "matmul", "attention_forward",
                    "attention_backward", "attention_delta", "attention_sink_gradient", "attention_merge",
                    "recurrence_forward", "recurrence_summary", "recurrence_summary_gradient",
                    "recurrence_join", "recurrence_backward"},
        .dtypes = {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64},
        .alignment_bytes = 1};
    for (const auto& [operation, text] : kRowOperations) made.kernels.emplace(text);
    return made;
  }();
  return target;
}

const Target& common_target() { return host_target(); }

const Target& shape_target() {
  static const Target target = [] {
    Target made = host_target();
    made.name = "shape";
    made.kernels.emplace(kShapesOnly);
    return made;
  }();
  return target;
}

const Target& gpu_target(std::string_view gpu) {
  static const std::map<std::string_view, Target> targets = [] {
    std::map<std::string_view, Target> made;
    for (const std::string_view name : kGpuGenerations) {
      Target& target = made.emplace(name, common_target()).first->second;
      target.name = name;
      target.alignment_bytes = 256;  // what cudaMalloc guarantees, and so what libraries may expect
      target.fused_attention = cudnn_attention(name);
    }
    return made;
  }();
  const auto found = targets.find(generation_of(gpu));
  if (found != targets.end()) return found->second;
  if (const NamedCudnn named = split_target_name(gpu); named.version > 0)
    return gpu_target(named.gpu, std::array{named.version});
  const std::string_view near = generation_before(gpu);
  throw InvalidInput(str("there is no target for GPUs of ", gpu, "; use one of ", join(kGpuGenerations, ", "),
                         near.empty() ? "" : str("; the nearest is ", near)));
}

const Target& target_by_name(std::string_view name) {
  if (name == host_target().name) return host_target();
  const std::string_view generation = generation_of(split_target_name(name).gpu);
  if (std::find(kGpuGenerations.begin(), kGpuGenerations.end(), generation) != kGpuGenerations.end())
    return gpu_target(name);
  throw InvalidInput(str("target '", name, "' is unknown; use one of ", host_target().name, ", ",
                         join(kGpuGenerations, ", ")));
}

Hasher& hash(Hasher& hasher, const Target& target) {
  hasher.add(std::string_view(target.name));
  hasher.add_all(target.collectives).add_all(target.kernels);
  hasher.add(target.dtypes.size());
  for (const DType dtype : target.dtypes) hasher.add(name(dtype));
  hasher.add(target.alignment_bytes);
  if (!target.fused_attention) return hasher;
  const FusedAttention& fused = *target.fused_attention;
  hasher.add(std::string_view("fused_attention")).add(fused.dtypes.size());
  for (const DType dtype : fused.dtypes) hasher.add(name(dtype));
  hasher.add(fused.head_dim_multiple).add(fused.max_head_dim_forward).add(fused.max_head_dim_backward);
  return hasher.add(fused.window).add(fused.window_tail).add(fused.packed).add(fused.sm_count);
}

}  // namespace cp
