#include "shared/plan/cudnn_abilities.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp {
namespace {

// Wider heads are those whose support differs by version.
constexpr std::int64_t kWide = 128;

constexpr std::string_view kExact = "plan with the exact engine";

bool is_wide(const FusedShape& shape) { return std::max(shape.head_dim, shape.v_head_dim) > kWide; }

// Mask::full sets no bound at all (cudnn_attention.cc).
bool is_bounded(const FusedShape& shape) { return shape.mask != FusedShape::Mask::full; }

}  // namespace

std::string cudnn_version_text(CudnnVersion version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::span<const CudnnFact> cudnn_facts() {
  using Ability = CudnnAbility;
  // Sources: what cudnn-frontend 1.32 asks of the library's version, in node/sdpa_support_surface.h (forward)
  // and node/scaled_dot_product_flash_attention.h (backward), if nothing else is said. tests/cudnn asks the
  // library that is there about each line.
  static const std::vector<CudnnFact> kFacts = {
      // Chosen: the oldest version that tests/cudnn has run with (scripts/versions). The frontend asks for
      // 9.6 in several places that are not in this table.
      {Ability::attention, 90800, {}, "fused attention", kExact},
      {Ability::forward, 90800, {91000, 91001}, "forward attention", kExact},
      // The frontend's work-around for 9.15.0 and older pads, and copies lengths from the host whenever the
      // call runs: the host waits for it. Packed calls bring their lengths along, so a call of one document
      // might be packed instead. It is not: tests/cudnn can ask whether a graph is built, but not whether its
      // gradients are right, and with these versions that is not measured on a GPU.
      {Ability::backward_of_any_key_count,
       91501,
       {},
       "backward over a number of keys that 128 does not divide",
       "make the number of keys of each call a multiple of 128, or plan with the exact engine",
       true},
      // Measured: asked for engines of any such call, 9.8 and 9.9 end the process by a null pointer inside
      // libcudnn_engines_runtime_compiled.so.9; 9.10.2 does not. That was seen without a GPU.
      {Ability::packed_backward,
       91002,
       {},
       "backward over several documents",
       "make a call for each document, or plan with the exact engine",
       true},
      {Ability::left_bound_alone, 91002, {}, "a window without a right bound", kExact},
      {Ability::left_bound_alone_above_1024_keys,
       91002,
       {91400},
       "a window without a right bound over more than 1024 keys",
       kExact},
      {Ability::masked_single_query, 91000, {}, "a single query under a causal mask or a window", kExact},
      {Ability::single_query_of_wide_heads_sm100,
       91000,
       {},
       "a single query with head dimensions above 128 at sm100",
       kExact},
      {Ability::wide_heads_forward_sm80, 91000, {}, "forward with head dimensions above 128 at sm80", kExact},
      {Ability::wide_heads_forward_sm100,
       90900,
       {},
       "forward with head dimensions above 128 at sm100",
       kExact},
      // Measured: 9.8 and 9.9 say that they have no engine for it, 9.10.2 has one.
      {Ability::wide_heads_forward_sm120,
       91002,
       {},
       "forward with head dimensions above 128 at sm120",
       kExact},
      // 9.11 and 9.12 have them, but for these.
      {Ability::uneven_heads_backward_sm90,
       90800,
       {91100, 91101, 91102, 91103, 91104, 91200},
       "backward at sm90 with a head_dim of 136 to 184 and a v_head_dim of 72 to 120",
       "use head_dim 192 or v_head_dim 128, or plan with the exact engine"},
      {Ability::deterministic_backward_sm100,
       91800,
       {},
       "backward that sums dq up in a fixed order at sm100",
       "let the order be free"},
  };
  return kFacts;
}

bool cudnn_can(CudnnVersion version, CudnnAbility ability) {
  const CudnnFact& fact = cudnn_facts()[static_cast<std::size_t>(ability)];
  return version >= fact.since && std::ranges::find(fact.but_not, version) == fact.but_not.end();
}

std::vector<CudnnAbility> cudnn_needs(const FusedShape& shape, int sm_version, bool deterministic) {
  return cudnn_needs(graph_shape(shape), bucket_of(shape), sm_version, deterministic);
}

std::vector<CudnnAbility> cudnn_needs(const FusedShape& shape, const std::optional<FusedBucket>& bucket,
                                      int sm_version, bool deterministic) {
  const int generation = sm_version / 10;
  std::vector<CudnnAbility> needs = {CudnnAbility::attention};
  const auto add = [&needs](bool needed, CudnnAbility ability) {
    if (needed) needs.push_back(ability);
  };
  const bool tail = shape.mask == FusedShape::Mask::window_tail;
  add(tail, CudnnAbility::left_bound_alone);
  add(tail && (bucket ? bucket->longest_k : shape.k_len) > 1024,
      CudnnAbility::left_bound_alone_above_1024_keys);
  if (shape.backward) {
    add(!bucket && shape.k_len % 128 != 0, CudnnAbility::backward_of_any_key_count);
    add(bucket.has_value(), CudnnAbility::packed_backward);
    add(generation == 9 && shape.head_dim > 128 && shape.head_dim < 192 && shape.v_head_dim > 64 &&
            shape.v_head_dim < 128,
        CudnnAbility::uneven_heads_backward_sm90);
    add(generation == 10 && deterministic, CudnnAbility::deterministic_backward_sm100);
    return needs;
  }
  const bool single = (bucket ? bucket->longest_q : shape.q_len) == 1;
  add(true, CudnnAbility::forward);
  add(single && is_bounded(shape), CudnnAbility::masked_single_query);
  add(single && is_wide(shape) && generation == 10, CudnnAbility::single_query_of_wide_heads_sm100);
  add(is_wide(shape) && generation == 8, CudnnAbility::wide_heads_forward_sm80);
  add(is_wide(shape) && generation == 10, CudnnAbility::wide_heads_forward_sm100);
  add(is_wide(shape) && generation == 12, CudnnAbility::wide_heads_forward_sm120);
  return needs;
}

std::vector<const CudnnFact*> cudnn_lacks(CudnnVersion version, std::span<const CudnnAbility> needs) {
  std::vector<const CudnnFact*> lacks;
  for (const CudnnAbility ability : needs)
    if (!cudnn_can(version, ability)) lacks.push_back(&cudnn_facts()[static_cast<std::size_t>(ability)]);
  return lacks;
}

std::string to_text(const CudnnFact& fact, CudnnVersion version) {
  std::vector<std::string> without;
  for (const CudnnVersion lost : fact.but_not) without.push_back(cudnn_version_text(lost));
  return str(fact.what, " needs cuDNN ", cudnn_version_text(fact.since), " or later",
             without.empty() ? "" : str(" without ", join(without, ", ")), ", and this is ",
             cudnn_version_text(version), "; put the folder of another one first in LD_LIBRARY_PATH, or ",
             fact.instead);
}

}  // namespace cp
