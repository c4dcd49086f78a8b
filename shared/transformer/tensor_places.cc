#include "shared/transformer/tensor_places.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/step_writer.h"
#include "shared/transformer/tensor_blocks.h"
#include "shared/transformer/update_writer.h"

namespace cp {
namespace {

// Lists the blocks of one piece after the other.
class Places : TensorBlocks {
 public:
  explicit Places(const StepContext& context)
      : TensorBlocks(context.groups.tp()),
        context_(context),
        model_(context.model),
        sizes_(context.sizes),
        tp_(context.groups.tp()) {}

  // `layer` counts the model's layers, and prediction layers behind them.
  std::vector<TensorBlock> layer(std::int64_t layer, LayerParts parts) {
    begin(layer);
    const LayerWeights& weights = context_.layer[parts];
    vector(weights.norm1, "input_layernorm.weight");
    vector(weights.norm1_behind, "post_attention_layernorm.weight");
    vector(weights.norm2_behind, "post_feedforward_layernorm.weight");
    vector(weights.norm2,
           model_.norms_behind ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
    if (const MixerFacts* facts = facts_of(parts.mixer); facts != nullptr)
      facts->name_tensors(*this, context_, weights);
    else
      attention(weights);
    matrix(weights.router, "mlp.gate.weight", 0);
    vector(weights.router_bias, "mlp.gate.bias");
    matrix(weights.shared_gate, "mlp.shared_expert_gate.weight", 0);
    const bool shared = parts.mlp == Mlp::experts;
    mlp(weights.gate_up, weights.down, shared ? "mlp.shared_experts." : "mlp.", sizes_.columns(parts.mlp));
    return take();
  }

  std::vector<TensorBlock> experts(std::int64_t layer) {
    begin(layer);
    const std::vector<Rank> ep = context_.groups.ep_group();
    const std::int64_t place = std::find(ep.begin(), ep.end(), context_.self) - ep.begin();
    for (std::int64_t expert = 0; expert < sizes_.experts; ++expert) {
      const std::string name = str("mlp.experts.", place * sizes_.experts + expert, ".");
      mlp(context_.experts.gate_up(expert), context_.experts.down(expert), name, sizes_.expert_columns);
      if (model_.experts->biases) biases_of_expert(expert, name);
    }
    return take();
  }

  std::vector<TensorBlock> score_correction(std::int64_t layer) {
    begin(layer);
    vector({0, 1, model_.experts->count}, "mlp.gate.e_score_correction_bias");
    return take();
  }

  std::vector<TensorBlock> embedding() {
    begin();
    table(context_.embedding, kEmbeddingTensor);
    return take();
  }

  std::vector<TensorBlock> head() {
    begin();
    vector(context_.head.norm, "model.norm.weight");
    table(context_.head.table, model_.tied_embeddings ? kEmbeddingTensor : "lm_head.weight");
    return take();
  }

  std::vector<TensorBlock> prediction(std::int64_t depth) {
    begin(model_.layers + depth - 1);
    const PredictionWeights& weights = context_.prediction;
    vector(weights.hidden_norm, "hnorm.weight"), vector(weights.embedding_norm, "enorm.weight");
    matrix(weights.join, "eh_proj.weight", 0);
    vector(weights.norm, "shared_head.norm.weight");
    return take();
  }

 private:
  using TensorBlocks::begin;
  void begin() { begin(std::string()); }
  void begin(std::int64_t layer) { begin(str("model.layers.", layer, ".")); }

  // The last tp ranks may have fewer tokens than there is room for, or none.
  void table(const Weight& weight, const std::string& name) {
    const std::int64_t first = tp_ * sizes_.vocab,
                       count = std::clamp<std::int64_t>(model_.vocab - first, 0, weight.rows);
    matrix(weight.part(0, count), name, first);
  }

  void attention(const LayerWeights& weights) {
    const std::int64_t q = sizes_.q_width, kv = sizes_.kv_width;
    // With fewer kv heads than tp ranks neighbours have the same one.
    const std::int64_t first_kv = model_.kv_heads * tp_ / context_.layout.tp * model_.head_dim;
    vector(weights.q_latent_norm, "self_attn.q_a_layernorm.weight");
    matrix(weights.q_down, "self_attn.q_a_proj.weight", 0);
    matrix(weights.kv_down, "self_attn.kv_a_proj_with_mqa.weight", 0);
    vector(weights.kv_latent_norm, "self_attn.kv_a_layernorm.weight");
    if (model_.latent)
      rows(weights.q_up, model_.latent->q_rank > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight");
    rows(weights.kv_up, "self_attn.kv_b_proj.weight");
    const bool of_all_heads = model_.qk_norm_of_all_heads;
    vector(weights.q_norm, "self_attn.q_norm.weight", of_all_heads ? tp_ * q : 0);
    vector(weights.k_norm, "self_attn.k_norm.weight", of_all_heads ? first_kv : 0);
    if (weights.qkv.rows > 0) {
      const Weight &all = weights.qkv, &bias = weights.qkv_bias;
      const auto part = [&](std::int64_t first, std::int64_t count, const char* name, std::int64_t row) {
        matrix(all.part(first, count), str("self_attn.", name, ".weight"), row);
        if (bias.numel() > 0) vector({bias.begin + first, 1, count}, str("self_attn.", name, ".bias"), row);
      };
      part(0, q, "q_proj", tp_ * q);
      part(q, kv, "k_proj", first_kv), part(q + kv, kv, "v_proj", first_kv);
      part(q + 2 * kv, sizes_.gate_width, "gate_proj", tp_ * sizes_.gate_width);
    }
    vector(weights.sinks, "self_attn.sinks", tp_ * sizes_.q_heads);
    vector(weights.out_bias, "self_attn.o_proj.bias");
    columns(weights.out, "self_attn.o_proj.weight");
  }

  // gate_up has the rows of the gate, then those of up; or of up alone.
  void mlp(const Weight& gate_up, const Weight& down, const std::string& name, std::int64_t width) {
    std::int64_t first = 0;
    if (model_.gated_mlp) rows(gate_up.part(std::exchange(first, width), width), name + "gate_proj.weight");
    rows(gate_up.part(first, width), name + "up_proj.weight");
    columns(down, name + "down_proj.weight");
  }

  void biases_of_expert(std::int64_t expert, const std::string& name) {
    const std::int64_t width = sizes_.expert_columns, each = sizes_.expert_bias_columns;
    const Weight ups = context_.experts.gate_up_biases.part(expert, 1);
    std::int64_t first = 0;
    const auto part = [&](const std::string& projection) {
      vector({ups.begin + std::exchange(first, first + width), 1, width}, name + projection, tp_ * width);
    };
    if (model_.gated_mlp) part("gate_proj.bias");
    part("up_proj.bias");
    vector(context_.experts.down_biases.part(expert, 1), name + "down_proj.bias", tp_ * each);
  }

  const StepContext& context_;
  const Transformer& model_;
  const LocalSizes& sizes_;
  const std::int64_t tp_;
};

// What routers add to their scores, whole on each rank that has the layers: the others of its tp rank are its
// replicas.
ShardedUnit correction_unit(const StepContext& context) {
  ShardedUnit unit;
  unit.name = kScoreCorrection;
  unit.numel = context.model.experts->count;
  unit.pieces = count_of(context.layers_with, Mlp::experts);
  unit.ranks = {context.self};
  unit.replicas = context.groups.replicas();
  unit.dtype = DType::f32;
  return unit;
}

}  // namespace

UnitTensors::Element UnitTensors::owned(std::int64_t index_in_shard) const {
  if (unit.shares_all_pieces()) {
    // All pieces are shared as one.
    const std::int64_t at = index * num_owned() + index_in_shard;
    return {at / unit.numel, at % unit.numel};
  }
  const std::int64_t bucket = index_in_shard / unit.owned_numel(unit.bucket),
                     in_bucket = index_in_shard % unit.owned_numel(unit.bucket), first = bucket * unit.bucket,
                     count = unit.pieces_of(bucket);
  if (in_bucket < count * unit.replicated)
    return {first + in_bucket / unit.replicated, in_bucket % unit.replicated};
  const std::int64_t at = index * unit.shard_numel(count) + in_bucket - count * unit.replicated,
                     piece = std::min(count - 1, at / std::max<std::int64_t>(1, unit.sharded_numel()));
  return {first + piece, unit.replicated + at - piece * unit.sharded_numel()};
}

std::int64_t UnitTensors::num_following(std::int64_t index_in_shard) const {
  const Element element = owned(index_in_shard);
  if (unit.shares_all_pieces()) return std::min(unit.numel - element.at, num_owned() - index_in_shard);
  if (element.at < unit.replicated) return unit.replicated - element.at;
  // Up to the end of the rank's part of the bucket, or of the piece; padding is behind the last of these.
  const std::int64_t of_bucket = unit.owned_numel(unit.pieces_of(element.piece / unit.bucket)),
                     rest = of_bucket - index_in_shard % unit.owned_numel(unit.bucket);
  return element.at < unit.numel ? std::min(rest, unit.numel - element.at) : rest;
}

void UnitTensors::for_each_owned(
    const std::function<void(const TensorRun& run, std::int64_t index)>& use) const {
  for (std::int64_t done = 0; done < num_owned();) {
    const Element element = owned(done);
    if (element.piece >= unit.pieces) return;
    const std::int64_t count = num_following(done);
    for (const TensorBlock& block : pieces[idx(element.piece)]) {
      const std::int64_t from = std::max(element.at, block.begin),
                         to = std::min(element.at + count, block.begin + block.rows * block.columns);
      if (from < to) use({block, from - block.begin, to - from}, done + from - element.at);
    }
    done += count;
  }
}

std::vector<TensorShape> tensors_of_model(const Transformer& model) {
  // One rank has all of each.
  StepRequest request{model, {}, {}};
  request.workload.seq_len = 1;
  std::map<std::string, TensorShape> shapes;
  for (const UnitTensors& unit : tensors_of_stage(request, 0, 0)) {
    for (const std::vector<TensorBlock>& piece : unit.pieces) {
      for (const TensorBlock& block : piece) {
        TensorShape& shape = shapes[block.tensor];
        shape.tensor = block.tensor;
        shape.rows = std::max(shape.rows, block.first_row + block.rows);
        shape.columns = std::max(shape.columns, block.first_column + block.columns);
        shape.trained = unit.trained;
      }
    }
  }
  std::vector<TensorShape> all;
  for (auto& [name, shape] : shapes) all.push_back(std::move(shape));
  return all;
}

std::vector<UnitTensors> tensors_of_stage(const StepRequest& request, int stage, Rank self) {
  const bool training = request.workload.phase == Phase::training;
  MixerPlanCache cache(2);
  const StepContext context(request, training ? StepPart::update : parts_of(request).front(), stage, self,
                            cache);
  if (context.groups.pp() != stage % request.layout.pp)
    throw InvalidInput(str("rank ", self, " does not hold stage ", stage, "; it holds stages ",
                           context.groups.pp(), " + i * ", request.layout.pp));
  const StepUnits units(context);
  std::vector<UnitTensors> all;
  const auto open = [&](const StepUnit& unit) -> UnitTensors& {
    const std::vector<Rank>& ranks = unit.sharded.ranks;
    return all.emplace_back(
        UnitTensors{unit.sharded, std::find(ranks.begin(), ranks.end(), self) - ranks.begin(), {}});
  };
  Places places(context);
  // The model's layers of the stage, and prediction layers, which are of the last kind.
  std::vector<std::pair<std::int64_t, LayerParts>> layers;
  const std::int64_t first = layers_of_stage(request.model, request.layout, stage).first;
  for (std::int64_t layer = 0; layer < context.layers; ++layer)
    layers.emplace_back(first + layer, context.parts[idx(context.kinds[idx(layer)])]);
  for (std::int64_t depth = 0; depth < context.predictions; ++depth)
    layers.emplace_back(request.model.layers + depth, context.parts[idx(request.model.last_kind())]);
  for (const LayerParts parts : kLayerParts) {
    if (units.layers[parts].sharded.numel == 0) continue;
    UnitTensors& unit = open(units.layers[parts]);
    for (const auto& [layer, of] : layers) {
      if (of == parts) unit.pieces.push_back(places.layer(layer, parts));
    }
  }
  if (units.experts.sharded.numel > 0) {
    UnitTensors& unit = open(units.experts);
    for (const auto& [layer, of] : layers) {
      if (of.mlp == Mlp::experts) unit.pieces.push_back(places.experts(layer));
    }
  }
  if (units.embedding.sharded.numel > 0) open(units.embedding).pieces.push_back(places.embedding());
  if (units.prediction.sharded.numel > 0) {
    UnitTensors& unit = open(units.prediction);
    for (std::int64_t depth = 1; depth <= context.predictions; ++depth)
      unit.pieces.push_back(places.prediction(depth));
  }
  if (units.head.sharded.numel > 0) open(units.head).pieces.push_back(places.head());
  if (request.model.experts && request.model.experts->corrects_scores) {
    UnitTensors correction{correction_unit(context), 0, {}, false};
    for (const auto& [layer, of] : layers) {
      if (of.mlp == Mlp::experts) correction.pieces.push_back(places.score_correction(layer));
    }
    if (correction.unit.pieces > 0) all.push_back(std::move(correction));
  }
  return all;
}

}  // namespace cp
