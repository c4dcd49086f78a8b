// What attention kernels of other systems take and no kernel here does: masks of arbitrary form, biases,
// functions of scores, other outputs. Each is a word of its own, so that a program or a scenario
// that needs one is told so by that name, with the reason and the nearest thing that works, instead of being
// computed without it. The names are those of PyTorch's scaled_dot_product_attention and flex_attention, of
// flash-attention and of Ascend's fused attention.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cp {

enum class KernelOption : std::uint8_t {
  bias,
  attn_mask,
  block_mask,
  score_mod,
  alibi_slopes,
  pse,
  sink_tokens,
  prefix,
  window_right,
  sparse_mode,
  return_weights,
  skip_lse,
};

struct KernelOptionInfo {
  KernelOption option;
  std::string_view name;     // as in the enumeration; a flag has - for _
  std::string_view type;     // of its value: "P", "TOKENS", ...
  std::string_view aliases;  // what the references call it, where that is another word
  std::string_view reason;
  std::string_view instead;
};

// In the order of the enumeration.
std::span<const KernelOptionInfo> kernel_options();
const KernelOptionInfo& info(KernelOption option);

}  // namespace cp
