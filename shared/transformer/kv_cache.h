// KvCache writes the steps that fill and read the cached keys and values of a rank's layers: the buffers
// kv_cache/k and kv_cache/v, [layer, batch, rows, kv heads x head_dim]. A model whose layers differ has two
// for each kind, "kv_cache/k of kind 1": the rows are those in the window, where a token is written.
// Latent attention has kv_cache/latent in place of both, [layer, batch, rows, kv_rank + rope_dim], which all
// tp ranks hold alike.
//
// A cp rank caches as many rows as its attention strategy gives it at home. New rows stay on the rank that
// computed them, behind the cached ones. Which positions of the sequence the cached rows are was decided by
// earlier requests.
#pragma once

#include <string>
#include <vector>

#include "shared/base/index.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class KvCache {
 public:
  explicit KvCache(StepWriter& writer);

  // Where a layer writes its new rows, [batch, rows, width]: in the cache itself, or in a temporary if the
  // cache has another dtype.
  View new_k(const LayerPlace& layer) { return new_rows(kinds_[idx(layer.kind)].k, layer, "k"); }
  View new_v(const LayerPlace& layer) { return new_rows(kinds_[idx(layer.kind)].v, layer, "v"); }
  View new_latent(const LayerPlace& layer) {
    return new_rows(kinds_[idx(layer.kind)].latent, layer, "latent");
  }
  // Converts the new rows into the cache, if they are not there already.
  void store(const LayerPlace& layer);
  // All rows of a layer, cached and new, in the dtype in which attention computes.
  Window k(const LayerPlace& layer) { return all_rows(kinds_[idx(layer.kind)].k, layer, "k"); }
  Window v(const LayerPlace& layer) { return all_rows(kinds_[idx(layer.kind)].v, layer, "v"); }
  Window latent(const LayerPlace& layer) { return all_rows(kinds_[idx(layer.kind)].latent, layer, "latent"); }

 private:
  bool converts() const;
  struct OfKind {
    BufferId k = -1, v = -1, latent = -1;
  };
  std::int64_t width() const;             // elements of a row of each buffer
  std::int64_t new_rows(int kind) const;  // of one sequence
  std::int64_t numel(int kind) const;     // elements of one layer
  View cached_rows(BufferId buffer, const LayerPlace& layer) const;
  View new_rows(BufferId buffer, const LayerPlace& layer, const char* name);
  Window all_rows(BufferId buffer, const LayerPlace& layer, const char* name);
  std::string name_of(const char* name, int kind) const;

  StepWriter& writer_;
  std::vector<OfKind> kinds_;
};

}  // namespace cp
