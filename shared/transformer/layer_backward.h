// LayerBackward writes the steps of one layer's backward pass. It first computes again what the forward pass
// did not keep.
#pragma once

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/layer_forward.h"

namespace cp {

struct LayerGradients {
  GradientPlace layer, experts;  // `experts` has no meaning if the model has none
};

class LayerBackward {
 public:
  LayerBackward(StepWriter& writer, Activations& activations)
      : writer_(writer),
        context_(writer.context()),
        activations_(activations),
        again_(writer, activations, nullptr),
        experts_(writer, activations) {}

  // Turns dx, [tokens_tp, hidden], from the gradient of the layer's output into that of its input x, in
  // place. The gradients of all weights of the layer are written.
  void write(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
             const View& x, const View& dx);

 private:
  using A = Activation;

  void mlp(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
           const View& dx);
  // Of the MLP that computes all rows; the shared one adds to the gradient that experts made.
  void dense_mlp(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& rows, const View& d_out, const View& d_rows);
  void attention(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& x, const View& dx);
  // Takes the gradients of q, k and v back through the rotation and the norms of q and k. Returns the
  // gradient of the projections' output, [tokens, q and k and v].
  View unrotate(const LayerPlace& place, const Window& weights, const GradientPlace& gradients);
  // The output of a norm, kept or computed again.
  View norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight, const Window& weights);
  // Adds to dx what the norm's backward pass makes of `partial`, the partial gradients of its gathered rows.
  void close_region(const View& partial, const View& x, const Weight& weight, const Window& weights,
                    const GradientPlace& gradients, const View& dx, const std::string& label);
  // Adds up, over the tp ranks, the gradients of weights that all of them hold.
  void add_up_replicated(const LayerPlace& place, const GradientPlace& where);

  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.mlp]; }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  LayerForward again_;
  ExpertWriter experts_;
};

}  // namespace cp
