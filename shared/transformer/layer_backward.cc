#include "shared/transformer/layer_backward.h"

#include <utility>

namespace cp {

void LayerBackward::write(const LayerPlace& place, const LayerPieces& weights,
                          const LayerGradients& gradients, const View& x, const View& dx) {
  if (place.recomputed) {
    again_.write(place, weights, x, writer_.working_rows("x again", context_.tokens_tp, context_.hidden));
  }
  if (context_.model.parallel_blocks) {
    parallel_block(place, weights, gradients, x, dx);
    return add_up_replicated(place, gradients.layer);
  }
  if (place.parts.mlp != Mlp::none) {
    const bool alone = place.parts.mixer == Mixer::none;
    mlp(place, weights, gradients,
        alone ? x : activations_.rows(A::mid, place, context_.tokens_tp, context_.hidden), dx);
  }
  if (place.parts.mixer != Mixer::none) mix(place, weights.layer, gradients.layer, x, dx);
  add_up_replicated(place, gradients.layer);
}

View LayerBackward::own_norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight,
                                  const Window& weights) {
  if (weight.numel() == 0) return x;  // the layer has no such norm
  View norm = activations_.rows(what, place, x.shape[0], x.shape[1]);
  if (!place.recomputed && !activations_.keeps(what, place)) {
    writer_.kernel({RowOperation::rms_norm,
                    {x, weight.flat(weights)},
                    {norm},
                    {},
                    norm_rule(context_.model, weight.numel())},
                   "norm again");
  }
  return norm;
}

View LayerBackward::norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight,
                              const Window& weights) {
  return writer_.gather_rows(own_norm_rows(what, place, x, weight, weights), "gathered", "gather rows again");
}

void LayerBackward::close_region(const View& partial, const View& x, const Weight& weight,
                                 const Window& weights, const GradientPlace& gradients, const View& dx,
                                 const std::string& label) {
  const View d_norm = writer_.working_rows("d norm", context_.tokens_tp, context_.hidden);
  writer_.scatter_rows(partial, d_norm, label);
  norm_backward(d_norm, x, weight, weights, gradients, dx);
}

void LayerBackward::norm_backward(const View& d_norm, const View& x, const Weight& weight,
                                  const Window& weights, const GradientPlace& gradients, const View& dx) {
  if (weight.numel() == 0) return writer_.accumulate(d_norm, dx, "d input");
  writer_.kernel_with_gradients({RowOperation::rms_norm_backward,
                                 {x, weight.flat(weights), d_norm},
                                 {},
                                 {dx},
                                 norm_rule(context_.model, weight.numel())},
                                {weight}, gradients, "norm backward");
}

View LayerBackward::before_norm_behind(A what, const LayerPlace& place, const Weight& weight,
                                       const Window& weights, const GradientPlace& gradients,
                                       const View& dx) {
  if (!context_.model.norms_behind) return dx;
  const View output = activations_.rows(what, place, context_.tokens_tp, context_.hidden);
  View d_output = writer_.working_rows("d before norm", context_.tokens_tp, context_.hidden);
  writer_.kernel_with_gradients({RowOperation::rms_norm_backward,
                                 {output, weight.flat(weights), dx},
                                 {d_output},
                                 {},
                                 norm_rule(context_.model, weight.numel())},
                                {weight}, gradients, "norm behind backward");
  return d_output;
}

// ---- MLP ----

void LayerBackward::mlp(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
                        const View& mid, const View& dx) {
  const Weight& norm = layer(place).norm2;
  const View d_own = before_norm_behind(A::mlp_out, place, layer(place).norm2_behind, weights.layer,
                                        gradients.layer, dx),
             d_out = writer_.gather_rows(d_own, "d gathered", "gather d mlp");
  const View rows = norm_rows(A::norm2, place, mid, norm, weights.layer);
  const View d_norm = writer_.working_rows("d norm", context_.tokens_tp, context_.hidden);
  const View d_rows = writer_.partial_rows(d_norm, "d partial");
  mlp_of_rows(place, weights, gradients, rows, d_out, d_rows);
  close_region(d_rows, mid, norm, weights.layer, gradients.layer, dx, "scatter d mlp");
}

void LayerBackward::mlp_of_rows(const LayerPlace& place, const LayerPieces& weights,
                                const LayerGradients& gradients, const View& rows, const View& d_out,
                                const View& d_rows) {
  if (place.parts.mlp == Mlp::experts) {
    experts_.backward(place, weights.layer, weights.experts, gradients.layer, gradients.experts, rows, d_out,
                      d_rows);
  }
  if (context_.sizes.columns(place.parts.mlp) > 0)
    dense_mlp(place, weights.layer, gradients.layer, rows, d_out, d_rows);
}

void LayerBackward::dense_mlp(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                              const View& rows, const View& d_out, const View& d_rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t at_once = context_.mlp_rows(), columns = context_.sizes.columns(place.parts.mlp),
                     ups = context_.model.up_matrices() * columns;
  const auto [of_gate_up, of_activated] = mlp_activations(place);
  const View gate_ups = activations_.rows(of_gate_up, place, at_once, ups),
             activateds = activations_.rows(of_activated, place, at_once, columns),
             d_activateds = writer_.working_rows("d activated", at_once, columns),
             d_gate_ups = writer_.working_rows("d gate_up", at_once, ups);
  // Where the layer was computed again, that of the last chunk alone is still there.
  const bool chunks = context_.layout.mlp_chunks > 1;
  const bool activates = chunks || (!place.recomputed && !activations_.keeps(of_activated, place));
  const bool adds = place.parts.mlp == Mlp::experts, gated = layer.shared_gate.numel() > 0;
  SharedGate gate;
  View logits, d_gate;
  if (gated) {
    logits = activations_.rows(A::shared_gate, place, context_.tokens, 1);
    gate = shared_gate_of(writer_, logits);
    d_gate = writer_.working("d shared weights", DType::f32, context_.tokens).dense(0, {context_.tokens, 1});
  }
  GradientPlace sums = gradients;
  for (const RowChunk& chunk : mlp_chunks(context_)) {
    const View gate_up = of_chunk(gate_ups, chunk), activated = of_chunk(activateds, chunk),
               d_activated = of_chunk(d_activateds, chunk), d_gate_up = of_chunk(d_gate_ups, chunk),
               in = rows_of(rows, chunk.first, chunk.count), d = rows_of(d_out, chunk.first, chunk.count);
    if (chunks) writer_.matmul(in, layer.gate_up.transposed(weights), gate_up, "gate, up again");
    std::vector<View> reads{gate_up}, writes{d_gate_up};
    if (gated) {
      reads.push_back(rows_of(gate.weights, chunk.first, chunk.count));
      writes.push_back(rows_of(d_gate, chunk.first, chunk.count));
    }
    if (activates)
      writer_.kernel(
          {RowOperation::gated_activation, reads, {activated}, {}, activation_rule(context_.model)},
          "activation again");
    writer_.matmul(d, layer.down.matrix(weights), d_activated, "down, dgrad");
    writer_.weight_gradient(transposed(d), activated, layer.down, sums, "down, wgrad");
    reads.push_back(d_activated);
    writer_.kernel({RowOperation::gated_activation_backward,
                    std::move(reads),
                    std::move(writes),
                    {},
                    activation_rule(context_.model)},
                   "activation backward");
    writer_.matmul(d_gate_up, layer.gate_up.matrix(weights), rows_of(d_rows, chunk.first, chunk.count),
                   "gate, up, dgrad", adds);
    writer_.weight_gradient(transposed(d_gate_up), in, layer.gate_up, sums, "gate, up, wgrad");
    sums.adds = true;  // to what the first chunk wrote
  }
  if (!gated) return;
  const View d_logits = writer_.working_rows("d shared gate", context_.tokens, 1);
  writer_.kernel(
      {RowOperation::route_backward, {logits, gate.chosen, d_gate}, {d_logits}, {}, shared_gate_rule()},
      "shared weights backward");
  writer_.weight_gradient(transposed(d_logits), rows, layer.shared_gate, gradients, "shared gate, wgrad");
  writer_.matmul(d_logits, layer.shared_gate.matrix(weights), d_rows, "shared gate, dgrad", true);
}

// ---- mixers ----

void LayerBackward::mix(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                        const View& x, const View& dx) {
  const LayerWeights& layer = this->layer(place);
  const Mixer mixer = place.parts.mixer;
  const bool attends = mixer == Mixer::attention;
  MixerWriter* beside_attention = mixers_[static_cast<std::size_t>(mixer)].get();
  const View d_own = before_norm_behind(A::attended, place, layer.norm1_behind, weights, gradients, dx),
             d_projected = writer_.gather_rows(d_own, "d gathered", str("gather d ", name(mixer)));
  out_bias(d_own, layer, gradients);
  const View out = attends ? attention_output(place) : beside_attention->output(place, weights),
             d_out = out_projection(place, weights, gradients, d_projected, out);
  View d_qkv;
  if (attends) {
    attention(place, weights, gradients, d_out);
    if (context_.model.latent) return latent(place, weights, gradients, x, dx);
    d_qkv = unrotate(place, weights, gradients);
  }
  const View rows = norm_rows(A::norm1, place, x, layer.norm1, weights);
  const View d_norm = writer_.working_rows("d norm", context_.tokens_tp, context_.hidden),
             d_rows = writer_.partial_rows(d_norm, "d partial");
  attends ? projections(place, weights, gradients, rows, d_qkv, d_rows, false)
          : beside_attention->backward(place, weights, gradients, rows, d_out, d_rows);
  close_region(d_rows, x, layer.norm1, weights, gradients, dx, str("scatter d ", name(mixer)));
}

// The gradient of what both gave is dx, which is gathered once; each has a part of that of the norm's rows.
void LayerBackward::parallel_block(const LayerPlace& place, const LayerPieces& weights,
                                   const LayerGradients& gradients, const View& x, const View& dx) {
  const LayerWeights& layer = this->layer(place);
  const View d_out = writer_.gather_rows(dx, "d gathered", "gather d block"),
             rows = norm_rows(A::norm1, place, x, layer.norm1, weights.layer);
  const View d_norm = writer_.working_rows("d norm", context_.tokens_tp, context_.hidden),
             d_rows = writer_.partial_rows(d_norm, "d partial");
  mlp_of_rows(place, weights, gradients, rows, d_out, d_rows);
  out_bias(dx, layer, gradients.layer);
  attention(place, weights.layer, gradients.layer,
            out_projection(place, weights.layer, gradients.layer, d_out, attention_output(place)));
  projections(place, weights.layer, gradients.layer, rows, unrotate(place, weights.layer, gradients.layer),
              d_rows, true);
  close_region(d_rows, x, layer.norm1, weights.layer, gradients.layer, dx, "scatter d block");
}

void LayerBackward::out_bias(const View& d_out, const LayerWeights& layer, const GradientPlace& gradients) {
  if (layer.out_bias.numel() == 0) return;
  writer_.kernel_with_gradients({RowOperation::add_bias, {d_out}, {}, {}}, {layer.out_bias}, gradients,
                                "bias backward");
}

View LayerBackward::out_projection(const LayerPlace& place, const Window& weights,
                                   const GradientPlace& gradients, const View& d_projected, const View& out) {
  const LayerWeights& layer = this->layer(place);
  View d_out = writer_.working_rows("d out", context_.tokens, out.shape[1]);
  writer_.matmul(d_projected, layer.out.matrix(weights), d_out, "out projection, dgrad");
  writer_.weight_gradient(transposed(d_projected), out, layer.out, gradients, "out projection, wgrad");
  return d_out;
}

View LayerBackward::attention_output(const LayerPlace& place) {
  const View out = activations_.rows(A::out, place, context_.tokens, context_.sizes.out_width);
  if (place.recomputed || activations_.keeps(A::gated_out, place)) {
    const std::int64_t width = context_.sizes.gate_width;
    return width == 0 ? out : activations_.rows(A::gated_out, place, context_.tokens, width);
  }
  return again_.gated(place, out);
}

View LayerBackward::d_projections() {
  return writer_.working_rows(
      "d qkv", context_.tokens,
      context_.sizes.q_width + 2 * context_.sizes.kv_width + context_.sizes.gate_width);
}

void LayerBackward::attention(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                              const View& d_gated) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, q_width = context_.sizes.q_width,
                     kv_width = context_.sizes.kv_width, v_width = context_.sizes.v_width,
                     gate_width = context_.sizes.gate_width;
  View d_out = d_gated;
  if (gate_width > 0) {
    d_out = writer_.working_rows("d ungated", tokens, gate_width);
    writer_.kernel({RowOperation::output_gate_backward,
                    {d_gated, activations_.rows(A::out, place, tokens, gate_width),
                     activations_.rows(A::gates, place, tokens, gate_width)},
                    {d_out, columns_of(d_projections(), q_width + 2 * kv_width, gate_width)},
                    {}},
                   "gates of attention, backward");
  }

  const View sinks = sinks_of_attention(writer_, place, weights);
  const std::int64_t heads = layer.sinks.numel();
  const View d_sinks = heads == 0 ? View{} : writer_.working("d sinks", DType::f32, heads).flat(0, heads);
  writer_.attention(AttentionPass::backward, place, [&](std::string_view name, std::int64_t numel) {
    if (name == "dout") return flat_view(d_out.buffer, d_out.offset, numel);
    if (name == "dq") return writer_.working("d q", writer_.dtype(), tokens * q_width).flat(0, numel);
    if (name == "dk") return writer_.working("d k", writer_.dtype(), tokens * kv_width).flat(0, numel);
    if (name == "dv") return writer_.working("d v", writer_.dtype(), tokens * v_width).flat(0, numel);
    if (name == "dlatent") return writer_.working("d latent", writer_.dtype(), numel).flat(0, numel);
    if (name == "dkv_up") return writer_.working("d kv up", DType::f32, numel).flat(0, numel);
    if (name == "kv_up") return layer.kv_up.flat(weights);
    if (name == "sinks") return View(sinks);
    if (name == "dsinks") return View(d_sinks);
    return activations_.attention_operand(name, place, numel);
  });
  if (heads > 0) writer_.weight_gradient(d_sinks, layer.sinks, gradients, "d sinks");
}

void LayerBackward::projections(const LayerPlace& place, const Window& weights,
                                const GradientPlace& gradients, const View& rows, const View& d_qkv,
                                const View& d_rows, bool adds) {
  const LayerWeights& layer = this->layer(place);
  if (context_.model.qkv_bias) {
    writer_.kernel_with_gradients({RowOperation::add_bias, {d_qkv}, {}, {}}, {layer.qkv_bias}, gradients,
                                  "qkv bias backward");
  }
  writer_.matmul(d_qkv, layer.qkv.matrix(weights), d_rows, "qkv, dgrad", adds);
  writer_.weight_gradient(transposed(d_qkv), rows, layer.qkv, gradients, "qkv, wgrad");
}

void LayerBackward::latent(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                           const View& x, const View& dx) {
  const LayerWeights& layer = this->layer(place);
  const Latent& latent = *context_.model.latent;
  const LocalSizes& sizes = context_.sizes;
  const std::int64_t tokens = context_.tokens, rows = context_.tokens_tp;
  // Whether attention expanded the rows, and has contracted their gradients and those of kv_up.
  const bool contracted = context_.latent == LatentUse::rows;
  const View norm = own_norm_rows(A::norm1, place, x, layer.norm1, weights);
  if (latent.q_rank > 0) {
    own_norm_rows(A::normed_q_latent, place, activations_.rows(A::q_latent, place, rows, latent.q_rank),
                  layer.q_latent_norm, weights);
  }
  if (!contracted) {
    own_norm_rows(A::normed_kv_latent, place, activations_.rows(A::kv_latent, place, rows, latent.kv_row()),
                  layer.kv_latent_norm, weights);
  }
  const View of_q = gather_q_latents(writer_, activations_, place, norm);
  const View of_kv = contracted ? View{} : gather_kv_latents(writer_, activations_, place);

  const View d_q = writer_.working_rows("d q before", tokens, sizes.q_width),
             d_kv_row = writer_.working_rows("d normed kv", rows, latent.kv_row()),
             d_kv_rows = writer_.partial_rows(d_kv_row, "d kv partial");
  const View d_kv = contracted ? View{} : writer_.working_rows("d kv before", tokens, sizes.up_width);
  std::vector<View> rotated{writer_.working_rows("d q", tokens, sizes.q_width)}, before{d_q};
  if (contracted) {
    rotated.push_back(writer_.working_rows("d latent", tokens, latent.kv_row()));
    before.push_back(d_kv_rows);
  } else {
    rotated.push_back(writer_.working_rows("d k", tokens, sizes.kv_width));
    rotated.push_back(writer_.working_rows("d v", tokens, sizes.v_width));
    before.insert(before.end(), {d_kv, columns_of(d_kv_rows, latent.kv_rank, latent.rope_dim)});
  }
  if (tokens > 0) rotated.push_back(writer_.positions(place.kind));
  const RotaryForm form = contracted ? RotaryForm::latent_rows : RotaryForm::expanded;
  writer_.kernel({RowOperation::rotary_backward,
                  std::move(rotated),
                  std::move(before),
                  {},
                  rotary_rule(context_, form, place.kind)},
                 "rotary backward");

  // The queries' part of the norm's gradient is written first, and the other one added.
  const View d_norm = writer_.working_rows("d norm", rows, context_.hidden);
  const View d_q_row = latent.q_rank > 0 ? writer_.working_rows("d normed q", rows, latent.q_rank) : d_norm,
             d_q_rows = writer_.partial_rows(d_q_row, latent.q_rank > 0 ? "d q partial" : "d partial");
  writer_.matmul(d_q, layer.q_up.matrix(weights), d_q_rows, "q up, dgrad");
  writer_.weight_gradient(transposed(d_q), of_q, layer.q_up, gradients, "q up, wgrad");
  writer_.scatter_rows(d_q_rows, d_q_row, "scatter d q latents");
  if (latent.q_rank > 0) {
    latent_row({A::q_latent, layer.q_latent_norm, layer.q_down, "q"}, place, weights, gradients, norm,
               d_q_row, d_norm, false);
  }
  if (contracted) {
    const std::int64_t numel = layer.kv_up.numel();
    writer_.weight_gradient(writer_.working("d kv up", DType::f32, numel).flat(0, numel), layer.kv_up,
                            gradients, "d kv up");
  } else {
    writer_.matmul(d_kv, layer.kv_up.matrix(weights), columns_of(d_kv_rows, 0, latent.kv_rank),
                   "kv up, dgrad");
    writer_.weight_gradient(transposed(d_kv), columns_of(of_kv, 0, latent.kv_rank), layer.kv_up, gradients,
                            "kv up, wgrad");
  }
  writer_.scatter_rows(d_kv_rows, d_kv_row, "scatter d kv latents");
  latent_row({A::kv_latent, layer.kv_latent_norm, layer.kv_down, "kv"}, place, weights, gradients, norm,
             d_kv_row, d_norm, true);
  norm_backward(d_norm, x, layer.norm1, weights, gradients, dx);
}

void LayerBackward::latent_row(const LatentRow& which, const LayerPlace& place, const Window& weights,
                               const GradientPlace& gradients, const View& norm, const View& d_normed,
                               const View& d_norm, bool adds) {
  const std::int64_t rows = d_normed.shape[0], width = d_normed.shape[1];
  const std::string name = which.name;
  const View row = activations_.rows(which.row, place, rows, width),
             d_row = writer_.working_rows("d " + name + " latent", rows, width);
  writer_.kernel_with_gradients({RowOperation::rms_norm_backward,
                                 {row, which.norm.flat(weights), d_normed},
                                 {d_row},
                                 {},
                                 norm_rule(context_.model, which.norm.numel())},
                                {which.norm}, gradients, name + " latent norm backward");
  writer_.matmul(d_row, which.down.matrix(weights), d_norm, name + " down, dgrad", adds);
  writer_.weight_gradient(transposed(d_row), norm, which.down, gradients, name + " down, wgrad");
}

View LayerBackward::unrotate(const LayerPlace& place, const Window& weights, const GradientPlace& gradients) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, q_width = context_.sizes.q_width,
                     kv_width = context_.sizes.kv_width, qk_width = q_width + kv_width;
  const View dq = writer_.working_rows("d q", tokens, q_width),
             dk = writer_.working_rows("d k", tokens, kv_width),
             dv = writer_.working_rows("d v", tokens, kv_width);
  View d_all = d_projections();
  const View d_qkv = context_.sizes.gate_width == 0 ? d_all : columns_of(d_all, 0, qk_width + kv_width);
  std::vector<View> rotated{dq, dk, dv};
  if (tokens > 0) rotated.push_back(writer_.positions(place.kind));
  if (!context_.normalizes_qk(place.kind)) {
    writer_.kernel({RowOperation::rotary_backward,
                    std::move(rotated),
                    {d_qkv},
                    {},
                    rotary_rule(context_, RotaryForm::qkv, place.kind)},
                   "rotary backward");
    return d_all;
  }
  const View d_normed = writer_.working_rows("d normed qk", tokens, qk_width);
  writer_.kernel({RowOperation::rotary_backward,
                  std::move(rotated),
                  {d_normed, columns_of(d_qkv, qk_width, kv_width)},
                  {},
                  rotary_rule(context_, RotaryForm::qk_and_v, place.kind)},
                 "rotary backward");
  const View qk = activations_.rows(A::qk, place, tokens, qk_width);
  std::vector<View> reads = qk_norm_operands(layer, qk, weights);
  reads.push_back(d_normed);
  if (context_.norms_cross_ranks()) {
    // Of ranks that share a kv head each has a part of its gradient, so that the sum of these products is
    // that of one head, while its squares are counted by each of them.
    const View sums = writer_.working("norm sums", DType::f32, 2 * tokens).dense(0, {tokens, 2});
    writer_.kernel({RowOperation::norm_sums_backward, reads, {sums}, {}, qk_norm_rule(context_)},
                   "qk norm sums");
    writer_.add_up_norm_sums(sums, "add up qk norm sums");
    reads.insert(reads.end(), {activations_.rows(A::qk_squares, place, tokens, 2), sums});
  }
  std::vector<Weight> weighted;
  if (layer.q_norm.numel() > 0) weighted = {layer.q_norm, layer.k_norm};
  writer_.kernel_with_gradients({RowOperation::rms_norm_backward,
                                 std::move(reads),
                                 {columns_of(d_qkv, 0, qk_width)},
                                 {},
                                 qk_norm_rule(context_)},
                                weighted, gradients, "qk norms backward");
  return d_all;
}

// ---- gradients of replicated weights ----

void LayerBackward::add_up_replicated(const LayerPlace& place, const GradientPlace& where) {
  if (where.adds) return;  // the sums of all micro-batches are added up in the update
  const Window& gradients = where.window;
  const LayerWeights& layer = this->layer(place);
  const std::vector<Rank> tp = context_.groups.tp_group();
  for (const Weight& summed : context_.summed_over_tp(place.parts))
    writer_.all_reduce("tp", tp, ReduceOp::sum, summed.flat(gradients), "tp", "add up d norms");
  if (context_.model.kv_heads >= context_.layout.tp || place.parts.mixer != Mixer::attention) return;
  // Ranks that hold copies of one kv head have each the part of its gradient that came from their own query
  // heads.
  const std::vector<Rank> sharing = context_.groups.tp_group_of_kv_head(context_.model.kv_heads);
  const std::int64_t q_width = context_.sizes.q_width, kv_width = context_.sizes.kv_width;
  const Weight kv = layer.qkv.part(q_width, 2 * kv_width);
  writer_.all_reduce("tp_kv", sharing, ReduceOp::sum, kv.flat(gradients), "tp", "add up d k, v weights");
  if (context_.model.qkv_bias) {
    writer_.all_reduce("tp_kv", sharing, ReduceOp::sum,
                       gradients.flat(layer.qkv_bias.begin + q_width, 2 * kv_width), "tp",
                       "add up d k, v biases");
  }
  if (context_.model.qk_norm_of_all_heads)
    writer_.all_reduce("tp_kv", sharing, ReduceOp::sum, layer.k_norm.flat(gradients), "tp",
                       "add up d k norm");
}

}  // namespace cp
