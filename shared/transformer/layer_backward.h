// LayerBackward: the steps of one layer's backward pass, with what it computes again first.
#pragma once

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/layer_forward.h"

namespace cp {

struct LayerGradients {
  GradientPlace layer, experts;  // experts: meaningless without
};

class LayerBackward {
 public:
  LayerBackward(StepWriter& writer, Activations& activations)
      : writer_(writer),
        context_(writer.context()),
        activations_(activations),
        again_(writer, activations, nullptr),
        experts_(writer, activations) {}

  // dx, [tokens_tp, hidden], becomes the gradient of x from that of the layer's output. All gradients of the
  // layer's weights are written.
  void write(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
             const View& x, const View& dx);

 private:
  using A = Activation;

  void mlp(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
           const View& dx);
  void dense_mlp(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& rows, const View& d_out, const View& d_rows);
  void attention(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& x, const View& dx);
  // From the gradients of q, k and v to those of their products, [tokens, q, k and v], and of the q and k
  // norms.
  View unrotate(const LayerPlace& place, const Window& weights, const GradientPlace& gradients);
  // The norm's output, kept or computed again.
  View norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight, const Window& weights);
  // dx += the norm's backward of the partial gradients of its gathered rows.
  void close_region(const View& partial, const View& x, const Weight& weight, const Window& weights,
                    const GradientPlace& gradients, const View& dx, const std::string& label);
  // Of weights that several tp ranks hold.
  void add_up_replicated(const GradientPlace& place);

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  LayerForward again_;
  ExpertWriter experts_;
};

}  // namespace cp
