#include "shared/transformer/prediction_writer.h"

#include <vector>

#include "shared/transformer/row_rules_of.h"

namespace cp {
namespace {

// Alone in its stacks, and behind the stage's layers.
LayerPlace place_of(const StepContext& context, std::int64_t depth) {
  const std::vector<int> alone{context.model.last_kind()}, homes(2, context.homes.back());
  LayerPlace place =
      forward_loops({alone, context.parts, homes}, context.layout.recompute).front().body.front();
  place.layer.first = context.layers + depth - 1;
  return place;
}

}  // namespace

PredictionWriter::PredictionWriter(StepWriter& writer, std::int64_t depth)
    : writer_(writer),
      context_(writer.context()),
      depth_(depth),
      place_(place_of(context_, depth)),
      activations_(writer, place_),
      embedding_(writer, depth) {}

View PredictionWriter::joined() {
  return activations_.rows(Activation::joined, place_, context_.tokens_tp, 2 * context_.hidden);
}

void PredictionWriter::normalize(const Window& weights, const View& before) {
  const PredictionWeights& own = context_.prediction;
  const std::int64_t hidden = context_.hidden;
  writer_.kernel({RowOperation::rms_norm,
                  {before, own.hidden_norm.flat(weights)},
                  {columns_of(joined(), 0, hidden)},
                  {},
                  norm_rule(context_.model, hidden)},
                 "norm of rows before");
  writer_.kernel({RowOperation::rms_norm,
                  {embedded_, own.embedding_norm.flat(weights)},
                  {columns_of(joined(), hidden, hidden)},
                  {},
                  norm_rule(context_.model, hidden)},
                 "norm of embedded rows");
}

void PredictionWriter::forward(const Window& table, const Window& weights, const View& before) {
  const std::int64_t rows = context_.tokens_tp, hidden = context_.hidden;
  embedded_ = dense_view(writer_.builder().temporary("activations/embedded", writer_.dtype(), rows * hidden),
                         0, {rows, hidden});
  embedding_.forward(table, embedded_);
  normalize(weights, before);
  writer_.matmul(joined(), context_.prediction.join.transposed(weights), input(), "join");
}

void PredictionWriter::backward(const Window& weights, const GradientPlace& gradients,
                                const Window& table_gradient, const View& before, const View& dx,
                                const View& d_before) {
  const PredictionWeights& own = context_.prediction;
  const std::int64_t rows = context_.tokens_tp, hidden = context_.hidden;
  if (!activations_.keeps(Activation::joined, place_)) normalize(weights, before);
  const View d_joined = writer_.working_rows("d joined", rows, 2 * hidden),
             d_embedded = writer_.working_rows("d embedded", rows, hidden);
  writer_.matmul(dx, own.join.matrix(weights), d_joined, "join, dgrad");
  writer_.weight_gradient(transposed(dx), joined(), own.join, gradients, "join, wgrad");
  writer_.kernel_with_gradients({RowOperation::rms_norm_backward,
                                 {before, own.hidden_norm.flat(weights), columns_of(d_joined, 0, hidden)},
                                 {d_before},
                                 {},
                                 norm_rule(context_.model, hidden)},
                                {own.hidden_norm}, gradients, "norm of rows before, backward");
  writer_.kernel_with_gradients(
      {RowOperation::rms_norm_backward,
       {embedded_, own.embedding_norm.flat(weights), columns_of(d_joined, hidden, hidden)},
       {d_embedded},
       {},
       norm_rule(context_.model, hidden)},
      {own.embedding_norm}, gradients, "norm of embedded rows, backward");
  embedding_.backward(d_embedded, table_gradient);
}

}  // namespace cp
