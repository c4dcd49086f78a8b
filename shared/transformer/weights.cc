#include "shared/transformer/weights.h"

#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/placing.h"

namespace cp {
namespace {

// Calls lay(placing) to lay all tensors; once more if some are small, since others begin behind these. Sets
// how many elements they have, and those that are small.
template <class Lay>
void lay_all(std::int64_t threshold, std::int64_t& numel, std::int64_t& small, const Lay& lay) {
  Placing placing(threshold, 0);
  lay(placing);
  small = placing.end().small, numel = small + placing.end().other;
  if (small == 0) return;
  Placing again(threshold, small);
  lay(again);
}

}  // namespace

LayerWeights::LayerWeights(const Transformer& model, const LocalSizes& sizes, LayerParts parts,
                           std::int64_t threshold) {
  const std::int64_t hidden = model.hidden, qkv_width = sizes.q_width + 2 * sizes.kv_width + sizes.gate_width;
  const bool attends = parts.mixer == Mixer::attention;
  const MixerFacts* beside_attention = facts_of(parts.mixer);
  const bool has_out_bias =
      beside_attention != nullptr ? beside_attention->has_out_bias(model) : attends && model.out_bias;
  const bool mixes = parts.mixer != Mixer::none, has_mlp = parts.mlp != Mlp::none;
  const Latent latent = attends ? model.latent.value_or(Latent{}) : Latent{};
  const bool is_latent = attends && model.latent, is_usual = attends && !model.latent;
  lay_all(threshold, numel, small, [&](Placing& placing) {
    norm1 = placing.vector(mixes && model.norms_before ? hidden : 0);
    norm1_behind = placing.vector(mixes && model.norms_behind ? hidden : 0);
    norm2_behind = placing.vector(has_mlp && model.norms_behind ? hidden : 0);
    out_bias = placing.vector(has_out_bias ? hidden : 0);
    q_down = placing.matrix(latent.q_rank, hidden), q_latent_norm = placing.vector(latent.q_rank);
    kv_down = placing.matrix(latent.kv_row(), hidden), kv_latent_norm = placing.vector(latent.kv_rank);
    norm2 = placing.vector(has_mlp && model.norms_before && !model.parallel_blocks ? hidden : 0);
    const Placing::Ends behind_norms = placing.end();
    const bool norms = is_usual && model.qk_norm && !model.qk_norm_behind_rotary,
               of_all_heads = norms && model.qk_norm_of_all_heads;
    if (!of_all_heads) {
      q_norm = placing.vector(norms ? model.head_dim : 0);
      k_norm = placing.vector(norms ? model.head_dim : 0);
    }
    if (beside_attention != nullptr) beside_attention->lay_alike(model, sizes, placing, *this);
    const Experts experts = parts.mlp == Mlp::experts ? *model.experts : Experts{};
    router = placing.matrix(experts.count, hidden);
    router_bias = placing.vector(experts.biases ? experts.count : 0);
    shared_gate = placing.vector(experts.shared_gate ? hidden : 0);
    replicated = Placing::between(placing.begin(), placing.end());
    replicated_behind_norms = Placing::between(behind_norms, placing.end());
    qkv = placing.matrix(is_usual ? qkv_width : 0, hidden);
    qkv_bias = placing.vector(is_usual && model.qkv_bias ? qkv_width : 0);
    if (of_all_heads) q_norm = placing.vector(sizes.q_width), k_norm = placing.vector(sizes.kv_width);
    sinks = placing.vector(attends && model.sinks ? sizes.q_heads : 0);
    q_up = placing.matrix(is_latent ? sizes.q_width : 0, latent.q_rank > 0 ? latent.q_rank : hidden);
    kv_up = placing.matrix(is_latent ? sizes.up_width : 0, latent.kv_rank);
    if (attends) out = placing.matrix(hidden, sizes.out_width);
    if (beside_attention != nullptr) beside_attention->lay(model, sizes, placing, *this);
    gate_up = placing.matrix(model.up_matrices() * sizes.columns(parts.mlp), hidden);
    down = placing.matrix(has_mlp ? hidden : 0, sizes.columns(parts.mlp));
  });
}

ExpertWeights::ExpertWeights(const Transformer& model, const LocalSizes& sizes, std::int64_t threshold)
    : hidden_(model.hidden), ups_(model.up_matrices() * sizes.expert_columns) {
  lay_all(threshold, numel, small, [&](Placing& placing) {
    gate_up_ = placing.matrix(sizes.experts * ups_, hidden_);
    down_ = placing.matrix(sizes.experts * hidden_, sizes.expert_columns);
    const std::int64_t with_bias = model.experts && model.experts->biases ? sizes.experts : 0;
    gate_up_biases = placing.matrix(with_bias, ups_);
    down_biases = placing.matrix(with_bias, sizes.expert_bias_columns);
  });
}

HeadWeights::HeadWeights(const Transformer& model, const LocalSizes& sizes, bool own_table,
                         std::int64_t threshold) {
  lay_all(threshold, numel, small, [&](Placing& placing) {
    norm = placing.vector(model.hidden);
    table = placing.matrix(own_table ? sizes.vocab : 0, model.hidden);
  });
}

PredictionWeights::PredictionWeights(const Transformer& model, std::int64_t threshold) {
  lay_all(threshold, numel, small, [&](Placing& placing) {
    hidden_norm = placing.vector(model.hidden), embedding_norm = placing.vector(model.hidden);
    join = placing.matrix(model.hidden, 2 * model.hidden);
    norm = placing.vector(model.hidden);
  });
}

}  // namespace cp
