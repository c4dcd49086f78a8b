#include "shared/transformer/mixers/recurrence_writer.h"

#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/row_rules_of.h"

namespace cp {
RecurrenceWriter::RecurrenceWriter(StepWriter& writer, Activations& activations, KvCache* cache)
    : writer_(writer),
      context_(writer.context()),
      activations_(activations),
      cache_(cache),
      r_(context_.sizes.recurrence),
      halo_(writer, cache,
            {chunks_of(*context_.recurrence), context_.recurrence->problem.document_starts(), r_.convolution,
             r_.convolved()}) {}

RecurrenceWriter::Projected RecurrenceWriter::cut(const View& all) const {
  const std::int64_t convolved = r_.convolved(), values = r_.value_width();
  return {all, columns_of(all, 0, convolved), columns_of(all, convolved, values),
          columns_of(all, convolved + values, r_.numbers())};
}

std::vector<Weight> RecurrenceWriter::norm_weights(const LayerPlace& place) const {
  const LayerWeights& layer = this->layer(place);
  std::vector<Weight> weights{skips() ? layer.row_norm : layer.head_norm};
  if (skips()) weights.push_back(layer.skip);
  return weights;
}

// ---- forward ----

View RecurrenceWriter::forward(const LayerPlace& place, const Window& weights, const View& rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, keys = r_.key_width(), values = r_.value_width();
  const Projected projected = cut(activations_.rows(A::projected, place, tokens, r_.projected()));
  writer_.matmul(rows, layer.projection.transposed(weights), projected.all, "recurrence projection");
  const View halo = this->halo(place);
  halo_.fetch(place, projected.convolved, halo);
  std::vector<View> seen = convolved_views(place, weights, projected.convolved);
  writer_.kernel({RowOperation::short_convolution,
                  std::move(seen),
                  {activations_.rows(A::recurrent_q, place, tokens, keys),
                   activations_.rows(A::recurrent_k, place, tokens, keys),
                   activations_.rows(A::recurrent_v, place, tokens, values)},
                  halo_.cached(place),
                  convolution_rule()},
                 "short convolution");
  halo_.cache_last_rows(place, projected.convolved, halo);
  writer_.kernel({RowOperation::decay_and_beta,
                  {projected.numbers, layer.numbers.flat(weights)},
                  {activations_.rows(A::log_decay, place, tokens, r_.value_heads),
                   activations_.rows(A::beta, place, tokens, r_.value_heads)},
                  {}},
                 "decay and beta");
  writer_.recurrence(RecurrencePass::forward, [&](std::string_view name, std::int64_t numel) {
    if (cache_ != nullptr && name == "state") return cache_->state(place);
    return activations_.recurrence_operand(name, place, numel);
  });
  View normed = activations_.rows(A::normed_out, place, tokens, values);
  normalize(place, weights, normed, "recurrence norm and gates");
  return normed;
}

void RecurrenceWriter::normalize(const LayerPlace& place, const Window& weights, const View& normed,
                                 const std::string& label) {
  const std::int64_t tokens = context_.tokens, values = r_.value_width();
  std::vector<View> reads{activations_.rows(A::recurrent_out, place, tokens, values),
                          cut(activations_.rows(A::projected, place, tokens, r_.projected())).gates};
  if (skips()) reads.push_back(activations_.rows(A::recurrent_v, place, tokens, values));
  for (const Weight& weight : norm_weights(place)) reads.push_back(weight.flat(weights));
  writer_.kernel({RowOperation::gated_norm, std::move(reads), {normed}, {}, gated_norm_rule(context_)},
                 label);
}

std::vector<View> RecurrenceWriter::convolved_views(const LayerPlace& place, const Window& weights,
                                                    const View& x) {
  const LayerWeights& layer = this->layer(place);
  std::vector<View> views{x, layer.convolution.flat(weights)};
  if (r_.convolution_bias) views.push_back(layer.convolution_bias.flat(weights));
  if (halo_.rows() > 0) views.push_back(halo(place));
  return views;
}

RowRule RecurrenceWriter::convolution_rule() const {
  if (cache_ != nullptr) return {};
  ConvolutionRule rule = halo_.rule();
  if (r_.rule == RecurrenceRule::delta) rule.normalized = r_.key_dim;
  return rule;
}

// ---- backward ----

View RecurrenceWriter::output(const LayerPlace& place, const Window& weights) {
  View normed = activations_.rows(A::normed_out, place, context_.tokens, r_.value_width());
  if (!place.recomputed && !activations_.keeps(A::normed_out, place))
    normalize(place, weights, normed, "recurrence norm and gates again");
  return normed;
}

void RecurrenceWriter::backward(const LayerPlace& place, const Window& weights,
                                const GradientPlace& gradients, const View& rows, const View& d_out,
                                const View& d_rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, keys = r_.key_width(), values = r_.value_width();
  const Projected projected = cut(activations_.rows(A::projected, place, tokens, r_.projected())),
                  d_projected = cut(writer_.working_rows("d projected", tokens, r_.projected()));
  const auto numbers_of_heads = [&](const char* name) {
    return writer_.working(name, DType::f32, tokens * r_.value_heads).dense(0, {tokens, r_.value_heads});
  };
  const View d_recurrent_out = writer_.working_rows("d recurrent out", tokens, values),
             d_q = writer_.working_rows("d recurrent q", tokens, keys),
             d_k = writer_.working_rows("d recurrent k", tokens, keys),
             d_v = writer_.working_rows("d recurrent v", tokens, values),
             d_log_decay = numbers_of_heads("d log decay"), d_beta = numbers_of_heads("d beta");
  std::vector<View> reads{d_out, activations_.rows(A::recurrent_out, place, tokens, values), projected.gates};
  std::vector<View> writes{d_recurrent_out, d_projected.gates};
  if (skips()) {
    reads.push_back(activations_.rows(A::recurrent_v, place, tokens, values));
    writes.push_back(writer_.working_rows("d v of the skip", tokens, values));
  }
  for (const Weight& weight : norm_weights(place)) reads.push_back(weight.flat(weights));
  writer_.kernel_with_gradients(
      {RowOperation::gated_norm_backward, std::move(reads), std::move(writes), {}, gated_norm_rule(context_)},
      norm_weights(place), gradients, "recurrence norm and gates, backward");
  writer_.recurrence(RecurrencePass::backward, [&](std::string_view name, std::int64_t numel) {
    for (const auto& [known, view] : {std::pair<std::string_view, const View&>{"dout", d_recurrent_out},
                                      {"dq", d_q},
                                      {"dk", d_k},
                                      {"dv", d_v},
                                      {"dlog_decay", d_log_decay},
                                      {"dbeta", d_beta}}) {
      if (name == known) return flat_view(view.buffer, view.offset, numel);
    }
    return activations_.recurrence_operand(name, place, numel);
  });
  if (skips()) writer_.accumulate(writer_.working_rows("d v of the skip", tokens, values), d_v, "d v");
  writer_.kernel_with_gradients({RowOperation::decay_and_beta_backward,
                                 {projected.numbers, layer.numbers.flat(weights), d_log_decay, d_beta},
                                 {d_projected.numbers},
                                 {}},
                                {layer.numbers}, gradients, "decay and beta, backward");
  // The gradients of the halo go back to the ranks that its rows came from.
  const View d_halo = writer_.working_rows("d halo", halo_.rows(), r_.convolved());
  std::vector<View> seen = convolved_views(place, weights, projected.convolved);
  seen.insert(seen.end(), {d_q, d_k, d_v});
  std::vector<View> made{d_projected.convolved};
  if (halo_.rows() > 0) made.push_back(d_halo);
  std::vector<Weight> learnt{layer.convolution};
  if (r_.convolution_bias) learnt.push_back(layer.convolution_bias);
  writer_.kernel_with_gradients(
      {RowOperation::short_convolution_backward, std::move(seen), std::move(made), {}, convolution_rule()},
      learnt, gradients, "short convolution, backward");
  halo_.give_back(d_halo, d_projected.convolved);
  writer_.matmul(d_projected.all, layer.projection.matrix(weights), d_rows, "recurrence projection, dgrad");
  writer_.weight_gradient(transposed(d_projected.all), rows, layer.projection, gradients,
                          "recurrence projection, wgrad");
}

View RecurrenceWriter::halo(const LayerPlace& place) {
  return activations_.rows(A::halo, place, halo_.rows(), r_.convolved());
}

}  // namespace cp
