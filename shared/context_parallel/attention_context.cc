#include "shared/context_parallel/attention_context.h"

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/mask_slices.h"
#include "shared/context_parallel/travelling_keys.h"

namespace cp::detail {

AttentionContext::AttentionContext(const AttentionRequest& asked)
    : request(asked),
      sharding(asked.problem, static_cast<int>(asked.ranks.size()), asked.strategy),
      mask_groups_(cp::mask_groups(asked.problem)) {
  // Ranks of one Ulysses group compute on the same rows (of different heads), so one entry for each ring
  // index is enough.
  const int n = sharding.ring_size();
  for (int r = 0; r < n; ++r) {
    q_rows_.push_back(sharding.compute_q(sharding.index_at(r, 0)).rows);
    kv_rows_.push_back(sharding.compute_kv(sharding.index_at(r, 0)).rows);
  }
  // Whether two blocks have an allowed pair is asked again and again while trips and directions are chosen,
  // by cores that rotate; each pair of blocks is looked at once.
  if (facts(request.strategy.core).rotates != Rotates::nothing && n > 1) {
    meets_.reserve(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
    for (int q = 0; q < n; ++q) {
      for (int kv = 0; kv < n; ++kv) meets_.push_back(any_pair(q_rows(q), kv_rows(kv)));
    }
  }
  keys_ = travelling_keys(*this);
}

Masks AttentionContext::masks(const IndexSet& q_rows, const IndexSet& k_rows) const {
  Masks masks{q_rows, k_rows, {}};
  for (const MaskGroup& group : mask_groups_) {
    masks.of_entries.push_back(
        {{group.first, group.problem.batch}, mask_slices(group.problem, q_rows, k_rows)});
  }
  return masks;
}

bool AttentionContext::any_pair(const IndexSet& q_rows, const IndexSet& k_rows) const {
  return std::any_of(mask_groups_.begin(), mask_groups_.end(),
                     [&](const MaskGroup& group) { return any_allowed(group.problem, q_rows, k_rows); });
}

}  // namespace cp::detail
