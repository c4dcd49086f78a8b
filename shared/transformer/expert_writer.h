// ExpertWriter: the steps of a layer's experts: tokens are routed, sent to the ranks of their experts,
// computed there, and brought back.
//
// Each rank sends each ep rank one block of the same size, its capacity, whatever the router says: tokens x
// top_k / ep x imbalance. What arrives is sorted by expert; a rank's experts share it evenly. The weights of
// the router travel with the tokens and are applied before the down products, so that their gradients need no
// output of an expert.
#pragma once

#include <cstdint>
#include <string>

#include "shared/transformer/activations.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class ExpertWriter {
 public:
  ExpertWriter(StepWriter& writer, Activations& activations)
      : writer_(writer), context_(writer.context()), activations_(activations) {}

  // From the gathered rows of the norm to this tp rank's part of the outputs, both [tokens, hidden].
  void forward(const LayerPlace& place, const Window& layer, const Window& experts, const View& rows,
               const View& partial);
  // From the gathered gradient of the outputs to the partial one of the rows, both [tokens, hidden];
  // gradients of weights are written.
  void backward(const LayerPlace& place, const Window& layer, const Window& experts,
                const GradientPlace& layer_gradient, const GradientPlace& experts_gradient, const View& rows,
                const View& d_out, const View& d_rows);

 private:
  using A = Activation;
  // Rows for, or of, experts and what is kept of each one.
  struct Tokens {
    View rows, weights;
  };

  std::int64_t capacity() const { return context_.sizes.expert_tokens; }
  bool travels() const { return context_.layout.ep > 1; }
  bool sorts() const { return travels() && context_.sizes.experts > 1; }
  View routes(const LayerPlace& place);
  View router_logits(const LayerPlace& place);
  Tokens expert_tokens(const LayerPlace& place);

  // Rows in the order of the ranks that they come from, to the order of experts on this rank, and back.
  // `last` is where they are to lie in the end; the buffers on the way have names that begin with `name`.
  View start_of_way(const View& last, const std::string& name);
  void to_experts(const View& from, const View& to, const std::string& name);
  View end_of_way(const View& first, const std::string& name);
  void from_experts(const View& from, const View& to, const std::string& name);

  template <class F>
  void for_each_expert(const F& f) const;  // f(expert, first row, rows)

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
};

}  // namespace cp
