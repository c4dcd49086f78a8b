#include "shared/plan/target.h"

#include "shared/plan/operations.h"

namespace cp {

const Target& host_target() {
  static const Target target = {
      .name = "host",
      .collectives = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "exchange"},
      .kernels = {"copy", "cast", "fill", "accumulate", "scale", "matmul", "attention_forward",
                  "attention_backward", "attention_delta", "attention_merge"},
      .dtypes = {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64},
      .alignment_bytes = 1};
  return target;
}

const Target& shape_target() {
  static const Target target = [] {
    Target made = host_target();
    made.name = "shape";
    for (const auto& [operation, text] : kRowOperations) made.kernels.emplace(text);
    return made;
  }();
  return target;
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
  return hasher.add(fused.window).add(fused.packed).add(fused.sm_count);
}

}  // namespace cp
