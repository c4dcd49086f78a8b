// AttentionContext is what the plans of all ranks of one request share. Internal to shared/context_parallel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/tensor.h"

namespace cp::detail {

// The mask between some queries and some keys, in neighbouring batch entries that share it. Without slices no
// pair is allowed.
struct EntryMask {
  Range batches;
  std::vector<MaskSlice> slices;
};
// The masks of all batch entries, in order, and the global rows that they are between.
struct Masks {
  IndexSet q_rows, k_rows;
  std::vector<EntryMask> of_entries;

  auto begin() const { return of_entries.begin(); }
  auto end() const { return of_entries.end(); }
};
inline bool has_pairs(const Masks& masks) {
  return std::any_of(masks.begin(), masks.end(), [](const EntryMask& mask) { return !mask.slices.empty(); });
}

// What the plans of all ranks of one request share: who computes on which rows, whose blocks meet, and what
// travels.
class AttentionContext {
 public:
  explicit AttentionContext(const AttentionRequest& request);

  const AttentionRequest request;
  const AttentionSharding sharding;

  // Of a problem with latent rows: what travels in place of K and V, heads or latent (travelling_keys.h); of
  // others heads.
  Strategy::Keys keys() const { return keys_; }

  // Whether the queries of ring index `q` have an allowed pair with the keys of ring index `kv`.
  bool meets(int q, int kv) const {
    return meets_[static_cast<std::size_t>(q) * static_cast<std::size_t>(sharding.ring_size()) +
                  static_cast<std::size_t>(kv)];
  }
  // The rows that a ring index computes on.
  const IndexSet& q_rows(int ring_index) const { return q_rows_[static_cast<std::size_t>(ring_index)]; }
  const IndexSet& kv_rows(int ring_index) const { return kv_rows_[static_cast<std::size_t>(ring_index)]; }
  // The groups of batch entries that share a mask.
  const std::vector<MaskGroup>& mask_groups() const { return mask_groups_; }
  Masks masks(const IndexSet& q_rows, const IndexSet& k_rows) const;
  bool any_pair(const IndexSet& q_rows, const IndexSet& k_rows) const;
  std::int64_t num_q_rows(int ring_index) const { return size(q_rows(ring_index)); }
  std::int64_t num_kv_rows(int ring_index) const { return size(kv_rows(ring_index)); }

 private:
  const std::vector<MaskGroup> mask_groups_;
  std::vector<IndexSet> q_rows_, kv_rows_;  // by ring index
  std::vector<bool> meets_;
  Strategy::Keys keys_ = Strategy::Keys::heads;
};

}  // namespace cp::detail
