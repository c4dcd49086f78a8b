#include "shared/transformer/sizes.h"

#include <algorithm>
#include <cmath>

#include "shared/context_parallel/sharding.h"
#include "shared/transformer/weights.h"

namespace cp {
namespace {

// Of balances that deal rows by their number alone.
std::int64_t most_ring_rows(std::int64_t length, int ring, const Balance& balance) {
  if (balance.kind == Balance::Kind::head_tail) {
    // Of 2 * ring parts the first `longer` ones have a row more; rank 0 has parts 0 and 2 * ring - 1, and so
    // on.
    const std::int64_t parts = 2 * std::int64_t{ring}, longer = length % parts;
    return 2 * (length / parts) + (longer == 0 ? 0 : longer <= ring ? 1 : 2);
  }
  if (balance.kind == Balance::Kind::striped) {
    const std::int64_t whole = length / balance.block, turns = whole / ring, left = whole % ring;
    return turns * balance.block + (left > 0 ? balance.block : length % balance.block);
  }
  return ceil_div(length, ring);
}

}  // namespace

std::int64_t most_home_rows(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  if (cp == 1) return problem.q_len;
  // The mask says who gets how many, or documents do.
  if (strategy.balance.kind == Balance::Kind::cost || strategy.balance.per_document) {
    const AttentionSharding sharding(problem, cp, strategy);
    std::int64_t most = 0;
    for (int index = 0; index < cp; ++index) most = std::max(most, sharding.home_q(index).num_rows());
    return most;
  }
  return ceil_div(most_ring_rows(problem.q_len, cp / strategy.ulysses_degree, strategy.balance),
                  strategy.ulysses_degree);
}

RecurrentCache recurrent_cache(const Recurrence& r, DType dtype) {
  return {r.value_heads * r.key_dim * r.value_dim * size_bytes(DType::f32),
          (r.convolution - 1) * r.convolved() * size_bytes(dtype)};
}

LocalSizes local_sizes(const Transformer& model, const Workload& workload, const ParallelLayout& layout) {
  LocalSizes sizes;
  const int tp = layout.tp;
  sizes.rows = most_home_rows(attention_problem(model, workload, layout, first_attention(model)), layout.cp,
                              layout.strategy);
  sizes.tokens = layout.micro_batch * sizes.rows;
  sizes.tokens_tp = ceil_div(sizes.tokens, layout.row_ranks());
  sizes.chunk_tokens = ceil_div(sizes.tokens, layout.loss_chunks);
  sizes.mlp_tokens = ceil_div(sizes.tokens, layout.mlp_chunks);

  const std::int64_t hidden = model.hidden;
  sizes.q_heads = model.q_heads / tp, sizes.kv_heads = std::max<std::int64_t>(1, model.kv_heads / tp);
  sizes.q_width = sizes.q_heads * model.head_dim, sizes.out_width = sizes.q_heads * model.v_head_dim();
  sizes.kv_width = sizes.kv_heads * model.head_dim, sizes.v_width = sizes.kv_heads * model.v_head_dim();
  sizes.vocab = ceil_div(model.vocab, tp);
  if (model.latent) sizes.up_width = sizes.kv_heads * model.up_head_dim();
  if (model.gated_attention) sizes.gate_width = sizes.out_width;
  sizes.channels = hidden / tp;
  if (model.recurrence) {
    sizes.recurrence = *model.recurrence;
    sizes.recurrence.key_heads /= tp, sizes.recurrence.value_heads /= tp;
  }
  if (model.has(Mlp::dense)) sizes.dense_columns = model.intermediate / tp;
  if (model.experts) {
    sizes.shared_columns = model.experts->shared / tp;
    sizes.expert_columns = model.experts->intermediate / tp;
    if (model.experts->biases) sizes.expert_bias_columns = hidden / tp;
    sizes.experts = model.experts->count / layout.ep;
    const double share = static_cast<double>(sizes.tokens * model.experts->top_k) / layout.ep;
    sizes.expert_tokens = layout.ep * static_cast<std::int64_t>(std::ceil(share * workload.expert_imbalance));
  }
  const std::int64_t threshold = layout.threshold;
  for (const LayerParts parts : kLayerParts) {
    if (!model.has(parts)) continue;
    const LayerWeights weights(model, sizes, parts, threshold);
    sizes.layer[parts] = weights.numel, sizes.small_layer[parts] = weights.small;
  }
  const ExpertWeights experts(model, sizes, threshold);
  sizes.expert_layer = experts.numel, sizes.small_experts = experts.small;
  sizes.embedding = sizes.vocab * hidden;
  if (sizes.embedding < threshold) sizes.small_embedding = sizes.embedding;
  sizes.head = model.tied_embeddings ? 0 : sizes.vocab * hidden;
  sizes.final_norm = hidden;
  sizes.small_head = HeadWeights(model, sizes, !model.tied_embeddings, threshold).small;
  if (model.prediction_layers > 0) {
    const PredictionWeights prediction(model, threshold);
    sizes.prediction = prediction.numel, sizes.small_prediction = prediction.small;
  }
  return sizes;
}

}  // namespace cp
