// PredictionWriter writes what a prediction layer (model.h) has beside its layer and its loss: it joins the
// rows before it with the embeddings of later tokens, and takes gradients back to both.
//
// The tokens ahead are input data, as the labels are, so that ranks exchange nothing for them, however the
// sequence is split. Each tp rank joins its own rows between the tensor-parallel regions. Rows stay at the
// home of the model's last layer, whose kind a prediction layer has.
//
// The backward pass follows before that of the layers in front. What it needs is kept until then, as
// activations/...: the embedded rows; the joined ones, unless they are computed again, as the outputs of
// norms are; what the layer keeps; and the rows that the layer hands on.
#pragma once

#include <cstdint>

#include "shared/transformer/activations.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/loss_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class PredictionWriter {
 public:
  // `depth` is 1 for the layer that predicts the token behind the next one.
  PredictionWriter(StepWriter& writer, std::int64_t depth);

  std::int64_t depth() const { return depth_; }
  // Its layer, which is alone. `full` and `selective` recomputation hold for it; `every` counts the model's
  // layers, of which it is none.
  const LayerPlace& place() const { return place_; }
  Activations& activations() { return activations_; }
  // What the layer takes and what it hands on, both [tokens_tp, hidden].
  View input() { return activations_.x({0, 0}); }
  View output() { return activations_.x({1, 0}); }

  // Computes the layer's input from the rows before, [tokens_tp, hidden].
  void forward(const Window& table, const Window& weights, const View& before);
  // From dx, the gradient of the layer's input, to d_before, which is written, and to the gradients of the
  // weights, but for the final norm, and of the table, which is added to.
  void backward(const Window& weights, const GradientPlace& gradients, const Window& table_gradient,
                const View& before, const View& dx, const View& d_before);

 private:
  View joined();
  void normalize(const Window& weights, const View& before);

  StepWriter& writer_;
  const StepContext& context_;
  std::int64_t depth_;
  LayerPlace place_;
  Activations activations_;
  EmbeddingWriter embedding_;
  View embedded_;
};

}  // namespace cp
