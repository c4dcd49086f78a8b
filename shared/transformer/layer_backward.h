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
        again_(writer, activations, nullptr, /*again=*/true),
        mixers_(mixer_writers(writer, activations, nullptr)),
        experts_(writer, activations) {}

  // Turns dx, [tokens_tp, hidden], from the gradient of the layer's output into that of its input x, in
  // place. The gradients of all weights of the layer are written.
  void write(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
             const View& x, const View& dx);

 private:
  using A = Activation;

  // `mid`: the MLP's input.
  void mlp(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
           const View& mid, const View& dx);
  // Of attention and MLP on the rows of one norm.
  void parallel_block(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
                      const View& x, const View& dx);
  // From the gathered rows of a norm, and the gradient of what the MLP gives, `d_out`, to the partial
  // gradient of these rows, which is written.
  void mlp_of_rows(const LayerPlace& place, const LayerPieces& weights, const LayerGradients& gradients,
                   const View& rows, const View& d_out, const View& d_rows);
  // Of the MLP that computes all rows; the shared one adds to the gradient that experts made.
  void dense_mlp(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& rows, const View& d_out, const View& d_rows);
  void mix(const LayerPlace& place, const Window& weights, const GradientPlace& gradients, const View& x,
           const View& dx);
  // Of attention's projection out, from the gradient of the rank's own rows of what it gives.
  void out_bias(const View& d_out, const LayerWeights& layer, const GradientPlace& gradients);
  // Attention's output as the projection out took it: with its gates, where it has some.
  View attention_output(const LayerPlace& place);
  // Through the projection out: from the gradient of what it gives, gathered, to that of `out`, which it
  // took.
  View out_projection(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                      const View& d_projected, const View& out);
  // From the gradient of attention's output, times its gates, to those of what attention took, d q and so on.
  void attention(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                 const View& d_out);
  // From those, `d_qkv`, through the projections to d_rows, the partial gradient of the gathered rows: added
  // to if it `adds`, else written.
  void projections(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                   const View& rows, const View& d_qkv, const View& d_rows, bool adds);
  // The gradient of the projections' output: [tokens, q and k and v, and the gates].
  View d_projections();
  // From the gradients of q, k and v on: through the latent rows to dx.
  void latent(const LayerPlace& place, const Window& weights, const GradientPlace& gradients, const View& x,
              const View& dx);
  // Back through a latent row's norm and the product that makes it of `norm`, the rank's rows: adds to d_norm
  // if it `adds`, else writes it.
  struct LatentRow {
    A row;
    const Weight &norm, &down;
    const char* name;
  };
  void latent_row(const LatentRow& which, const LayerPlace& place, const Window& weights,
                  const GradientPlace& gradients, const View& norm, const View& d_normed, const View& d_norm,
                  bool adds);
  // Takes the gradients of q, k and v back through the rotation and the norms of q and k. Returns
  // d_projections().
  View unrotate(const LayerPlace& place, const Window& weights, const GradientPlace& gradients);
  // The gradient of what mixer or MLP gave, from that of the layer's rows behind the norm; dx itself
  // where there is no norm behind.
  View before_norm_behind(A what, const LayerPlace& place, const Weight& weight, const Window& weights,
                          const GradientPlace& gradients, const View& dx);
  // The output of a norm, kept or computed again: of the rank's rows, and gathered. Of a norm that the layer
  // lacks it is x.
  View own_norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight,
                     const Window& weights);
  View norm_rows(A what, const LayerPlace& place, const View& x, const Weight& weight, const Window& weights);
  // Adds to dx what the norm's backward pass makes of `partial`, the partial gradients of its gathered rows.
  void close_region(const View& partial, const View& x, const Weight& weight, const Window& weights,
                    const GradientPlace& gradients, const View& dx, const std::string& label);
  // The same of the gradients of the norm's own rows.
  void norm_backward(const View& d_norm, const View& x, const Weight& weight, const Window& weights,
                     const GradientPlace& gradients, const View& dx);
  // Adds up, over the tp ranks, the gradients of weights that all of them hold.
  void add_up_replicated(const LayerPlace& place, const GradientPlace& where);

  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.parts]; }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  LayerForward again_;
  MixerWriters mixers_;
  ExpertWriter experts_;
};

}  // namespace cp
