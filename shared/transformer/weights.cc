#include "shared/transformer/weights.h"

namespace cp {
namespace {

// Lays tensors one behind the other.
class Placing {
 public:
  Weight matrix(std::int64_t rows, std::int64_t columns) {
    const Weight weight{end_, rows, columns};
    end_ = weight.end();
    return weight;
  }
  Weight vector(std::int64_t numel) { return matrix(1, numel); }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

}  // namespace

LayerWeights::LayerWeights(const Transformer& model, const LocalSizes& sizes, Mlp mlp) {
  const std::int64_t hidden = model.hidden, qkv_width = sizes.q_width + 2 * sizes.kv_width;
  Placing placing;
  const Latent latent = model.latent.value_or(Latent{});
  norm1 = placing.vector(hidden);
  const std::int64_t behind = model.norms_behind ? hidden : 0;
  norm1_behind = placing.vector(behind), norm2_behind = placing.vector(behind);
  q_down = placing.matrix(latent.q_rank, hidden), q_latent_norm = placing.vector(latent.q_rank);
  kv_down = placing.matrix(latent.kv_row(), hidden), kv_latent_norm = placing.vector(latent.kv_rank);
  norm2 = placing.vector(hidden);
  q_norm = placing.vector(model.qk_norm ? model.head_dim : 0);
  k_norm = placing.vector(model.qk_norm ? model.head_dim : 0);
  router = placing.matrix(mlp == Mlp::experts ? model.experts->count : 0, hidden);
  replicated = placing.end();
  qkv = placing.matrix(model.latent ? 0 : qkv_width, hidden);
  qkv_bias = placing.vector(model.qkv_bias ? qkv_width : 0);
  q_up = placing.matrix(model.latent ? sizes.q_width : 0, latent.q_rank > 0 ? latent.q_rank : hidden);
  kv_up = placing.matrix(sizes.up_width, latent.kv_rank);
  out = placing.matrix(hidden, sizes.out_width);
  gate_up = placing.matrix(2 * sizes.columns[mlp], hidden);
  down = placing.matrix(hidden, sizes.columns[mlp]);
  numel = placing.end();
}

ExpertWeights::ExpertWeights(const Transformer& model, const LocalSizes& sizes)
    : hidden_(model.hidden), columns_(sizes.expert_columns) {
  Placing placing;
  gate_up_ = placing.matrix(sizes.experts * 2 * columns_, hidden_);
  down_ = placing.matrix(sizes.experts * hidden_, columns_);
  numel = placing.end();
}

HeadWeights::HeadWeights(const Transformer& model, const LocalSizes& sizes, bool own_table) {
  Placing placing;
  norm = placing.vector(model.hidden);
  table = placing.matrix(own_table ? sizes.vocab : 0, model.hidden);
  numel = placing.end();
}

}  // namespace cp
