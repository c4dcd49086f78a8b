// What cuDNN can do since which version: the one table of it. Plans are made for the figures of
// fused_attention.h, which are those of a recent cuDNN; a run may find an older one, and then says which call
// it cannot do, and since when it could. Nothing here asks the library, so that it can be asked without one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/fused_attention.h"
#include "shared/plan/fused_bucket.h"

namespace cp {

// As cudnnGetVersion() counts: 91501 is 9.15.1.
using CudnnVersion = std::int64_t;
std::string cudnn_version_text(CudnnVersion version);  // "9.15.1"

// What a call may need, beside what every version here can do. cudnn_facts() says of each what it is.
enum class CudnnAbility : std::uint8_t {
  attention,
  forward,
  backward_of_any_key_count,
  packed_backward,
  left_bound_alone,
  left_bound_alone_above_1024_keys,
  masked_single_query,
  single_query_of_wide_heads_sm100,
  wide_heads_forward_sm80,
  wide_heads_forward_sm100,
  wide_heads_forward_sm120,
  uneven_heads_backward_sm90,
  deterministic_backward_sm100,
};

struct CudnnFact {
  CudnnAbility ability;
  CudnnVersion since = 0;
  std::vector<CudnnVersion> but_not;  // later versions that lost it again
  // What needs it, and what does instead: "backward over keys whose number 128 does not divide", "a ...".
  std::string_view what, instead;
  // An older cuDNN does worse than to refuse the call, so the call is refused before cuDNN is asked.
  bool is_defect = false;
};
// In the order of CudnnAbility.
std::span<const CudnnFact> cudnn_facts();

// Whether this version can do it. Everything but `attention` itself is asked of versions that can do that.
bool cudnn_can(CudnnVersion version, CudnnAbility ability);

// What the call needs on a GPU of this compute capability (90: 9.0), in the order of CudnnAbility.
// `deterministic`: the backward pass sums dq up in a fixed order.
std::vector<CudnnAbility> cudnn_needs(const FusedShape& shape, int sm_version, bool deterministic = false);
// The same for the graph of a call: its graph_shape(), and its bucket if it is packed.
std::vector<CudnnAbility> cudnn_needs(const FusedShape& graph_shape, const std::optional<FusedBucket>& bucket,
                                      int sm_version, bool deterministic = false);

// What of these the version cannot do.
std::vector<const CudnnFact*> cudnn_lacks(CudnnVersion version, std::span<const CudnnAbility> needs);

// "backward over keys whose number 128 does not divide needs cuDNN 9.15.1 or later, and this is 9.8.0; ..."
std::string to_text(const CudnnFact& fact, CudnnVersion version);

}  // namespace cp
