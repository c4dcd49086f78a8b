// KvCache: the cached keys and values of a rank's layers: kv_cache/k and kv_cache/v, [layer, batch, rows, kv
// heads x head_dim].
//
// A cp rank's rows are as many as its attention strategy gives it at home. The new ones stay where they were
// computed, behind those that were cached; which positions of the sequence its cached rows are, earlier
// requests have decided.
#pragma once

#include "shared/transformer/step_writer.h"

namespace cp {

class KvCache {
 public:
  explicit KvCache(StepWriter& writer);

  // Where the new rows of a layer are written, [batch, rows, width]: in the cache, unless its dtype is
  // another one.
  View new_k(StackIndex layer) { return new_rows(k_, layer, "k"); }
  View new_v(StackIndex layer) { return new_rows(v_, layer, "v"); }
  // Puts them into the cache where they are not.
  void store(StackIndex layer);
  // All rows in the dtype of attention.
  Window k(StackIndex layer) { return all_rows(k_, layer, "k"); }
  Window v(StackIndex layer) { return all_rows(v_, layer, "v"); }

 private:
  bool converts() const;
  std::int64_t numel() const;  // of a layer
  View cached_rows(BufferId buffer, StackIndex layer) const;
  View new_rows(BufferId buffer, StackIndex layer, const char* name);
  Window all_rows(BufferId buffer, StackIndex layer, const char* name);

  StepWriter& writer_;
  std::int64_t new_rows_;  // of a sequence
  BufferId k_, v_;
};

}  // namespace cp
