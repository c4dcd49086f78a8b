// KvCache writes the steps that fill and read the cached keys and values of a rank's layers: the buffers
// kv_cache/k and kv_cache/v, [layer, batch, rows, kv heads x head_dim]. A model whose layers differ has two
// for each kind, "kv_cache/k of kind 1": the rows are those in the window, where a token is written.
// Latent attention has kv_cache/latent in place of both, [layer, batch, rows, kv_rank + rope_dim], which all
// tp ranks hold alike.
//
// A cp rank caches as many rows as its attention strategy gives it at home. New rows stay on the rank that
// computed them, behind the cached ones. Which positions of the sequence the cached rows are was decided by
// earlier requests.
//
// Layers with a recurrence cache as much however much has been read, and nothing is added to it: each step
// replaces it. kv_cache/state, [layer, batch, value heads x key_dim x value_dim], is f32: SGLang's default
// (SGLANG_MAMBA_SSM_DTYPE), what Qwen3.5's config.json asks for (mamba_ssm_dtype), and what NVIDIA's Nemotron
// models are served with on vLLM (--mamba-ssm-cache-dtype float32); vLLM's own choice for Qwen3-Next is the
// model's dtype, half as much. kv_cache/convolved, [layer, batch, convolution - 1, q and k and v], has the
// rows that the short convolution saw last, in the workload's dtype; layers with a gated convolution alone
// have that alone, as wide as a tp rank's columns. Which cp ranks hold the state
// cached_state_numel() says; the convolved rows are on the rank of the first new row.
#pragma once

#include <string>
#include <vector>

#include "shared/base/index.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/mixers/mixer.h"
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

  // The state of a layer with a recurrence, all its elements, and the rows that its convolution saw last,
  // [batch, convolution - 1, q and k and v]. Only a rank that holds them may ask.
  View state(const LayerPlace& layer) const;
  View convolved(const LayerPlace& layer) const;

 private:
  bool converts() const;
  struct OfKind {
    BufferId k = -1, v = -1, latent = -1, state = -1, convolved = -1;
    MixerCache cache;  // beside attention
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
