// KvCache writes the steps that fill and read the cached keys and values of a rank's layers: the buffers
// kv_cache/k and kv_cache/v, [layer, batch, rows, kv heads x head_dim].
//
// A cp rank caches as many rows as its attention strategy gives it at home. New rows stay on the rank that
// computed them, behind the cached ones. Which positions of the sequence the cached rows are was decided by
// earlier requests.
#pragma once

#include "shared/transformer/step_writer.h"

namespace cp {

class KvCache {
 public:
  explicit KvCache(StepWriter& writer);

  // Where a layer writes its new rows, [batch, rows, width]: in the cache itself, or in a temporary if the
  // cache has another dtype.
  View new_k(StackIndex layer) { return new_rows(k_, layer, "k"); }
  View new_v(StackIndex layer) { return new_rows(v_, layer, "v"); }
  // Converts the new rows into the cache, if they are not there already.
  void store(StackIndex layer);
  // All rows of a layer, cached and new, in the dtype in which attention computes.
  Window k(StackIndex layer) { return all_rows(k_, layer, "k"); }
  Window v(StackIndex layer) { return all_rows(v_, layer, "v"); }

 private:
  bool converts() const;
  std::int64_t numel() const;  // elements of one layer
  View cached_rows(BufferId buffer, StackIndex layer) const;
  View new_rows(BufferId buffer, StackIndex layer, const char* name);
  Window all_rows(BufferId buffer, StackIndex layer, const char* name);

  StepWriter& writer_;
  std::int64_t new_rows_;  // rows that are new, of one sequence
  BufferId k_, v_;
};

}  // namespace cp
