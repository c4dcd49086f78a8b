// LayerForward: the steps of one layer's forward pass, which a backward pass may take again.
#pragma once

#include <vector>

#include "shared/transformer/activations.h"
#include "shared/transformer/expert_writer.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// The parameters of a layer.
struct LayerPieces {
  Window layer, experts;  // experts: meaningless without
};

// Rows that a dense MLP computes at once.
struct RowChunk {
  std::int64_t first = 0, count = 0;
};
std::vector<RowChunk> mlp_chunks(const StepContext& context);
// Some rows of what the MLP makes on its way, which lie where those of the first chunk do.
View of_chunk(const View& rows, const RowChunk& chunk);

class LayerForward {
 public:
  // `cache`: of serving, else null.
  LayerForward(StepWriter& writer, Activations& activations, KvCache* cache)
      : writer_(writer),
        context_(writer.context()),
        activations_(activations),
        cache_(cache),
        experts_(writer, activations) {}

  // From x to x_next, both [tokens_tp, hidden].
  void write(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& x_next);

 private:
  using A = Activation;

  void attention(const LayerPlace& place, const Window& weights, const View& x, const View& mid);
  // q, k and v as attention takes them, from the gathered rows of the norm.
  void project(const LayerPlace& place, const Window& weights, const View& rows);
  void project_with_norms(const LayerPlace& place, const Window& weights, const View& rows);
  // q, k and v as attention takes them, from what the products or the norms of q and k gave.
  void rotate(const LayerPlace& place, std::vector<View> products, const View& q);
  void attend(const LayerPlace& place);
  void mlp(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& next);
  void dense_mlp(const LayerPlace& place, const Window& weights, const View& rows, const View& partial);
  // next = x + what the region's tp ranks add up to.
  void close_region(const View& partial, const View& x, const View& next, const std::string& label);

  View k_rows(const LayerPlace&place), v_rows(const LayerPlace&place);

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  KvCache* cache_;
  ExpertWriter experts_;
};

}  // namespace cp
