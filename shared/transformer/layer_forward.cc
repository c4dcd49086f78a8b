#include "shared/transformer/layer_forward.h"

#include <algorithm>
#include <utility>

namespace cp {

// A rank may have no rows: then one chunk of none.
std::vector<RowChunk> mlp_chunks(const StepContext& context) {
  std::vector<RowChunk> chunks;
  const std::int64_t tokens = context.tokens, each = std::max<std::int64_t>(1, context.mlp_rows());
  for (std::int64_t first = 0; first == 0 || first < tokens; first += each)
    chunks.push_back({first, std::min(each, tokens - first)});
  return chunks;
}

MlpActivations mlp_activations(const LayerPlace& place) {
  if (place.parts.mlp == Mlp::dense) return {Activation::gate_up, Activation::activated};
  return {Activation::shared_gate_up, Activation::shared_activated};
}

SharedGate shared_gate_of(StepWriter& writer, const View& logits) {
  const std::int64_t tokens = logits.shape[0];
  const SharedGate gate{writer.working("shared weights", DType::f32, tokens).dense(0, {tokens, 1}),
                        writer.working("shared route", DType::i32, tokens).dense(0, {tokens, 1})};
  writer.kernel({RowOperation::route, {logits}, {gate.weights, gate.chosen}, {}, shared_gate_rule()},
                "shared weights");
  return gate;
}

View of_chunk(const View& rows, const RowChunk& chunk) { return rows_of(rows, 0, chunk.count); }

MixerWriters mixer_writers(StepWriter& writer, Activations& activations, KvCache* cache) {
  MixerWriters writers;
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!writer.context().model.has(facts->mixer)) continue;
    writers[static_cast<std::size_t>(facts->mixer)] = facts->writer(writer, activations, cache);
  }
  return writers;
}

void LayerForward::write(const LayerPlace& place, const LayerPieces& weights, const View& x,
                         const View& x_next) {
  if (place.parts.mlp == Mlp::none) return mix(place, weights.layer, x, x_next);
  if (place.parts.mixer == Mixer::none) return mlp(place, weights, x, x_next);
  if (context_.model.parallel_blocks) return parallel_block(place, weights, x, x_next);
  const View mid = activations_.rows(A::mid, place, context_.tokens_tp, context_.hidden);
  mix(place, weights.layer, x, mid);
  mlp(place, weights, mid, x_next);
}

View LayerForward::normed(A what, const LayerPlace& place, const View& x, const View& weight,
                          const std::string& label) {
  if (!context_.model.norms_before) return x;
  View norm = activations_.rows(what, place, context_.tokens_tp, context_.hidden);
  writer_.kernel(
      {RowOperation::rms_norm, {x, weight}, {norm}, {}, norm_rule(context_.model, context_.hidden)}, label);
  return norm;
}

View LayerForward::region_output(const LayerPlace& place, A before_norm, const View& next) {
  if (!context_.model.norms_behind) return next;
  return activations_.rows(before_norm, place, context_.tokens_tp, context_.hidden);
}

void LayerForward::close_region(const Region& region, const View& partial, const View& x, const View& next) {
  writer_.scatter_rows(partial, region.output, region.label);
  if (!is_absent(region.bias) && region.bias.numel() > 0)
    writer_.kernel({RowOperation::add_bias, {region.bias}, {}, {region.output}}, "bias");
  if (context_.model.norms_behind)
    writer_.kernel({RowOperation::rms_norm,
                    {region.output, region.norm_behind},
                    {next},
                    {},
                    norm_rule(context_.model, context_.hidden)},
                   "norm behind");
  writer_.accumulate(x, next, "residual");
}

// ---- mixers ----

void LayerForward::mix(const LayerPlace& place, const Window& weights, const View& x, const View& mid) {
  const Mixer mixer = place.parts.mixer;
  const bool attends = mixer == Mixer::attention;
  const View norm = normed(A::norm1, place, x, layer(place).norm1.flat(weights), str(name(mixer), " norm"));
  const auto rows = [&] { return writer_.gather_rows(norm, "gathered", "gather rows"); };
  const View out = !attends ? mixers_[static_cast<std::size_t>(mixer)]->forward(place, weights, rows())
                   : context_.model.latent ? latent_attention(place, weights, norm)
                                           : attention(place, weights, rows());
  const Region region{region_output(place, A::attended, mid), layer(place).norm1_behind.flat(weights),
                      layer(place).out_bias.flat(weights), str("scatter ", name(mixer))};
  const View partial = writer_.partial_rows(region.output, "partial");
  writer_.matmul(out, layer(place).out.transposed(weights), partial, "out projection");
  close_region(region, partial, x, mid);
}

// The MLP writes its partial sums, and attention adds to them, so that both travel as one.
void LayerForward::parallel_block(const LayerPlace& place, const LayerPieces& weights, const View& x,
                                  const View& next) {
  const View norm = normed(A::norm1, place, x, layer(place).norm1.flat(weights.layer), "block norm"),
             rows = writer_.gather_rows(norm, "gathered", "gather rows"),
             partial = writer_.partial_rows(next, "partial");
  mlp_of_rows(place, weights, rows, partial);
  const View out = attention(place, weights.layer, rows);
  writer_.matmul(out, layer(place).out.transposed(weights.layer), partial, "out projection", true);
  close_region({next, {}, layer(place).out_bias.flat(weights.layer), "scatter block"}, partial, x, next);
}

View LayerForward::latent_attention(const LayerPlace& place, const Window& weights, const View& norm) {
  project_latent(place, weights, norm);
  attend(place, weights);
  if (context_.latent == LatentUse::absorbed) return expand_output(place, weights);
  return activations_.rows(A::out, place, context_.tokens, context_.sizes.out_width);
}

View LayerForward::attention(const LayerPlace& place, const Window& weights, const View& rows) {
  context_.model.qk_norm ? project_with_norms(place, weights, rows) : project(place, weights, rows);
  attend(place, weights);
  return gated(place, activations_.rows(A::out, place, context_.tokens, context_.sizes.out_width));
}

View LayerForward::gated(const LayerPlace& place, const View& out) {
  const std::int64_t width = context_.sizes.gate_width;
  if (width == 0) return out;
  View gated = activations_.rows(A::gated_out, place, context_.tokens, width);
  writer_.kernel({RowOperation::output_gate,
                  {out, activations_.rows(A::gates, place, context_.tokens, width)},
                  {gated},
                  {}},
                 "gates of attention");
  return gated;
}

View LayerForward::k_rows(const LayerPlace& place) {
  if (cache_ != nullptr) return cache_->new_k(place);
  return activations_.rows(A::k, place, context_.tokens, context_.sizes.kv_width);
}
View LayerForward::v_rows(const LayerPlace& place) {
  if (cache_ != nullptr) return cache_->new_v(place);
  return activations_.rows(A::v, place, context_.tokens, context_.sizes.v_width);
}

View LayerForward::latent_rows(const LayerPlace& place) {
  if (cache_ != nullptr) return cache_->new_latent(place);
  return activations_.rows(A::latent, place, context_.tokens, context_.model.latent->kv_row());
}

void LayerForward::project(const LayerPlace& place, const Window& weights, const View& rows) {
  const std::int64_t tokens = context_.tokens, q_width = context_.sizes.q_width,
                     kv_width = context_.sizes.kv_width;
  const View qkv = writer_.working_rows("qkv", tokens, q_width + 2 * kv_width);
  writer_.matmul(rows, layer(place).qkv.part(0, q_width + 2 * kv_width).transposed(weights), qkv, "qkv");
  if (context_.model.qkv_bias) {
    const View bias = weights.flat(layer(place).qkv_bias.begin, q_width + 2 * kv_width);
    writer_.kernel({RowOperation::add_bias, {bias}, {}, {qkv}}, "qkv bias");
  }
  project_gates(place, weights, rows);
  const View q = activations_.rows(A::q, place, tokens, q_width);
  rotate(place, RotaryForm::qkv, {qkv}, {q, k_rows(place), v_rows(place)});
}

void LayerForward::project_gates(const LayerPlace& place, const Window& weights, const View& rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t width = context_.sizes.gate_width,
                     first = context_.sizes.q_width + 2 * context_.sizes.kv_width;
  if (width == 0) return;
  const View gates = activations_.rows(A::gates, place, context_.tokens, width);
  writer_.matmul(rows, layer.qkv.part(first, width).transposed(weights), gates, "gates");
  if (context_.model.qkv_bias)
    writer_.kernel({RowOperation::add_bias, {weights.flat(layer.qkv_bias.begin + first, width)}, {}, {gates}},
                   "gates' bias");
}

// The norms' backward pass needs q and k as they were before. Where some layers alone have norms, the others
// leave q and k in the same place.
void LayerForward::project_with_norms(const LayerPlace& place, const Window& weights, const View& rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, q_width = context_.sizes.q_width,
                     kv_width = context_.sizes.kv_width, qk_width = q_width + kv_width;
  const View qk = activations_.rows(A::qk, place, tokens, qk_width),
             v = writer_.working_rows("v before", tokens, kv_width);
  writer_.matmul(rows, layer.qkv.part(0, qk_width).transposed(weights), qk, "qk");
  writer_.matmul(rows, layer.qkv.part(qk_width, kv_width).transposed(weights), v, "v");
  if (context_.model.qkv_bias) {
    const View bias = layer.qkv_bias.flat(weights);
    const auto part = [&](std::int64_t begin, std::int64_t numel) {
      return View{bias.buffer, bias.offset + begin, {numel}, {1}, bias.advance};
    };
    writer_.kernel({RowOperation::add_bias, {part(0, qk_width)}, {}, {qk}}, "qk bias");
    writer_.kernel({RowOperation::add_bias, {part(qk_width, kv_width)}, {}, {v}}, "v bias");
  }
  project_gates(place, weights, rows);
  const View q = activations_.rows(A::q, place, tokens, q_width);
  if (!context_.normalizes_qk(place.kind))
    return rotate(place, RotaryForm::qk_and_v, {qk, v}, {q, k_rows(place), v_rows(place)});
  const View normed = writer_.working_rows("normed qk", tokens, qk_width);
  std::vector<View> reads = qk_norm_operands(layer, qk, weights);
  if (context_.norms_cross_ranks()) reads.push_back(norm_squares(place, qk));
  writer_.kernel({RowOperation::rms_norm, std::move(reads), {normed}, {}, qk_norm_rule(context_)},
                 "qk norms");
  rotate(place, RotaryForm::qk_and_v, {normed, v}, {q, k_rows(place), v_rows(place)});
}

std::vector<View> qk_norm_operands(const LayerWeights& layer, const View& qk, const Window& weights) {
  if (layer.q_norm.numel() == 0) return {qk};
  return {qk, layer.q_norm.flat(weights), layer.k_norm.flat(weights)};
}

View LayerForward::norm_squares(const LayerPlace& place, const View& qk) {
  View squares = activations_.rows(A::qk_squares, place, context_.tokens, 2);
  writer_.kernel({RowOperation::norm_sums, {qk}, {squares}, {}, qk_norm_rule(context_)}, "qk squares");
  writer_.add_up_norm_sums(squares, "add up qk squares");
  return squares;
}

// ---- latent attention ----

View gather_q_latents(StepWriter& writer, Activations& activations, const LayerPlace& place,
                      const View& norm) {
  const StepContext& context = writer.context();
  const std::int64_t rank = context.model.latent->q_rank;
  if (rank == 0) return writer.gather_rows(norm, "gathered", "gather rows");
  return writer.gather_rows(activations.rows(Activation::normed_q_latent, place, context.tokens_tp, rank),
                            "gathered q latent", "gather q latents");
}

View gather_kv_latents(StepWriter& writer, Activations& activations, const LayerPlace& place) {
  const StepContext& context = writer.context();
  return writer.gather_rows(activations.rows(Activation::normed_kv_latent, place, context.tokens_tp,
                                             context.model.latent->kv_row()),
                            "gathered kv latent", "gather kv latents");
}

// Latent rows are made of the rank's own rows, by weights that all tp ranks have, and are gathered then: they
// are narrower than the layer's rows.
void LayerForward::project_latent(const LayerPlace& place, const Window& weights, const View& norm) {
  const LayerWeights& layer = this->layer(place);
  const Latent& latent = *context_.model.latent;
  const std::int64_t tokens = context_.tokens, rows = context_.tokens_tp;
  if (latent.q_rank > 0) {
    const View row = activations_.rows(A::q_latent, place, rows, latent.q_rank);
    writer_.matmul(norm, layer.q_down.transposed(weights), row, "q down");
    writer_.kernel({RowOperation::rms_norm,
                    {row, layer.q_latent_norm.flat(weights)},
                    {activations_.rows(A::normed_q_latent, place, rows, latent.q_rank)},
                    {},
                    norm_rule(context_.model, latent.q_rank)},
                   "q latent norm");
  }
  const View kv_row = activations_.rows(A::kv_latent, place, rows, latent.kv_row());
  writer_.matmul(norm, layer.kv_down.transposed(weights), kv_row, "kv down");
  writer_.kernel({RowOperation::rms_norm,
                  {kv_row, layer.kv_latent_norm.flat(weights)},
                  {activations_.rows(A::normed_kv_latent, place, rows, latent.kv_row())},
                  {},
                  norm_rule(context_.model, latent.kv_rank)},
                 "kv latent norm");
  const View of_q = gather_q_latents(writer_, activations_, place, norm),
             of_kv = gather_kv_latents(writer_, activations_, place);
  const View q = writer_.working_rows("q before", tokens, context_.sizes.q_width);
  writer_.matmul(of_q, layer.q_up.transposed(weights), q, "q up");
  if (context_.latent == LatentUse::absorbed) return absorb_queries(place, weights, q, of_kv);
  const View rotated_q = activations_.rows(A::q, place, tokens, context_.sizes.q_width);
  if (context_.latent == LatentUse::rows)
    return rotate(place, RotaryForm::latent_rows, {q, of_kv}, {rotated_q, latent_rows(place)});
  const View kv = writer_.working_rows("kv before", tokens, context_.sizes.up_width);
  writer_.matmul(columns_of(of_kv, 0, latent.kv_rank), layer.kv_up.transposed(weights), kv, "kv up");
  rotate(place, RotaryForm::expanded, {q, kv, columns_of(of_kv, latent.kv_rank, latent.rope_dim)},
         {rotated_q, k_rows(place), v_rows(place)});
}

namespace {

// Of rows that have `width` elements for each of some heads: elements first .. first + count - 1 of each, as
// a matrix for each head, [heads, rows, count]; and by rows, [rows, heads, count].
View matrices_of_heads(const View& rows, std::int64_t width, std::int64_t first, std::int64_t count) {
  const std::int64_t heads = rows.shape[1] / width;
  return {rows.buffer,
          rows.offset + first,
          {heads, rows.shape[0], count},
          {width, rows.strides[0], 1},
          rows.advance};
}
View rows_of_heads(const View& rows, std::int64_t width, std::int64_t first, std::int64_t count) {
  View view = matrices_of_heads(rows, width, first, count);
  std::swap(view.shape[0], view.shape[1]), std::swap(view.strides[0], view.strides[1]);
  return view;
}
// Rows first .. first + count - 1 of those that a weight has for each head: [heads, count, columns].
View matrices_of_weight(const View& weight, std::int64_t heads, std::int64_t first, std::int64_t count) {
  const std::int64_t columns = weight.shape[1], of_head = weight.shape[0] / heads;
  return {weight.buffer,
          weight.offset + first * columns,
          {heads, count, columns},
          {of_head * columns, columns, 1},
          weight.advance};
}

}  // namespace

void LayerForward::absorb_queries(const LayerPlace& place, const Window& weights, const View& q,
                                  const View& of_kv) {
  const Latent& latent = *context_.model.latent;
  const std::int64_t heads = context_.sizes.q_heads, dim = context_.model.head_dim, row = latent.kv_row(),
                     nope = dim - latent.rope_dim;
  const View absorbed = activations_.rows(A::q, place, context_.tokens, heads * row);
  writer_.matmul(matrices_of_heads(q, dim, 0, nope),
                 matrices_of_weight(layer(place).kv_up.matrix(weights), heads, 0, nope),
                 matrices_of_heads(absorbed, row, 0, latent.kv_rank), "absorb queries");
  rotate(place, RotaryForm::latent_rows, {rows_of_heads(q, dim, nope, latent.rope_dim), of_kv},
         {rows_of_heads(absorbed, row, latent.kv_rank, latent.rope_dim), latent_rows(place)});
}

View LayerForward::expand_output(const LayerPlace& place, const Window& weights) {
  const Latent& latent = *context_.model.latent;
  const std::int64_t heads = context_.sizes.q_heads, nope = context_.model.head_dim - latent.rope_dim;
  const View out = activations_.rows(A::out, place, context_.tokens, heads * latent.kv_rank);
  View values = writer_.working_rows("values", context_.tokens, context_.sizes.out_width);
  writer_.matmul(
      matrices_of_heads(out, latent.kv_rank, 0, latent.kv_rank),
      transposed(matrices_of_weight(layer(place).kv_up.matrix(weights), heads, nope, latent.v_head_dim)),
      matrices_of_heads(values, latent.v_head_dim, 0, latent.v_head_dim), "expand output");
  return values;
}

// Serving has its positions' sines and cosines in the bytes that an implementation adds to a model.
void LayerForward::rotate(const LayerPlace& place, RotaryForm form, std::vector<View> products,
                          std::vector<View> operands) {
  if (context_.training && context_.tokens > 0) products.push_back(writer_.positions(place.kind));
  writer_.kernel({RowOperation::rotary,
                  std::move(products),
                  std::move(operands),
                  {},
                  rotary_rule(context_, form, place.kind)},
                 "rotary");
}

View sinks_of_attention(StepWriter& writer, const LayerPlace& place, const Window& weights) {
  View stored = writer.context().layer[place.parts].sinks.flat(weights);
  if (writer.dtype() == DType::f32 || stored.numel() == 0) return stored;
  View sinks = writer.working("sinks", DType::f32, stored.numel()).flat(0, stored.numel());
  writer.copy(stored, sinks, "sinks in f32");
  return sinks;
}

void LayerForward::attend(const LayerPlace& place, const Window& weights) {
  if (cache_ != nullptr) cache_->store(place);
  const View sinks = sinks_of_attention(writer_, place, weights);
  writer_.attention(AttentionPass::forward, place, [&](std::string_view name, std::int64_t numel) {
    if (cache_ != nullptr && name == "k") return cache_->k(place).flat(0, numel);
    if (cache_ != nullptr && name == "v") return cache_->v(place).flat(0, numel);
    if (cache_ != nullptr && name == "latent") return cache_->latent(place).flat(0, numel);
    if (name == "kv_up") return layer(place).kv_up.flat(weights);
    if (name == "sinks") return View(sinks);
    return activations_.attention_operand(name, place, numel);
  });
}

// ---- MLP ----

void LayerForward::mlp(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& next) {
  const View norm = normed(A::norm2, place, x, layer(place).norm2.flat(weights.layer), "mlp norm");
  const View rows = writer_.gather_rows(norm, "gathered", "gather rows");
  const Region region{region_output(place, A::mlp_out, next),
                      layer(place).norm2_behind.flat(weights.layer),
                      {},
                      "scatter mlp"};
  const View partial = writer_.partial_rows(region.output, "partial");
  mlp_of_rows(place, weights, rows, partial);
  close_region(region, partial, x, next);
}

void LayerForward::mlp_of_rows(const LayerPlace& place, const LayerPieces& weights, const View& rows,
                               const View& partial) {
  if (place.parts.mlp == Mlp::experts) experts_.forward(place, weights.layer, weights.experts, rows, partial);
  if (context_.sizes.columns(place.parts.mlp) > 0) dense_mlp(place, weights.layer, rows, partial);
}

void LayerForward::dense_mlp(const LayerPlace& place, const Window& weights, const View& rows,
                             const View& partial) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t at_once = context_.mlp_rows(), columns = context_.sizes.columns(place.parts.mlp),
                     ups = context_.model.up_matrices() * columns;
  const auto [of_gate_up, of_activated] = mlp_activations(place);
  const View gate_ups = activations_.rows(of_gate_up, place, at_once, ups),
             activateds = activations_.rows(of_activated, place, at_once, columns);
  const bool adds = place.parts.mlp == Mlp::experts, gated = layer.shared_gate.numel() > 0;
  SharedGate gate;
  if (gated) {
    const View logits = activations_.rows(A::shared_gate, place, context_.tokens, 1);
    writer_.matmul(rows, layer.shared_gate.transposed(weights), logits, "shared gate");
    gate = shared_gate_of(writer_, logits);
  }
  for (const RowChunk& chunk : mlp_chunks(context_)) {
    const View gate_up = of_chunk(gate_ups, chunk), activated = of_chunk(activateds, chunk);
    writer_.matmul(rows_of(rows, chunk.first, chunk.count), layer.gate_up.transposed(weights), gate_up,
                   "gate, up");
    std::vector<View> reads{gate_up};
    if (gated) reads.push_back(rows_of(gate.weights, chunk.first, chunk.count));
    writer_.kernel(
        {RowOperation::gated_activation, std::move(reads), {activated}, {}, activation_rule(context_.model)},
        "activation");
    writer_.matmul(activated, layer.down.transposed(weights), rows_of(partial, chunk.first, chunk.count),
                   "down", adds);
  }
}

}  // namespace cp
