// ExpertWriter writes the steps of a layer's experts: tokens are routed, sent to the ranks of their experts,
// computed there, and brought back.
//
// Each rank sends every ep rank one block of the same size, whatever the router decides: its capacity, tokens
// x top_k / ep x imbalance. So one AllToAll with equal counts does, and shapes do not depend on data. What
// arrives is sorted by expert, and the rank's experts share it evenly. A choice for which its expert has no
// place left is dropped (row_operations.h, dispatch).
//
// The router's weights travel with the tokens and are multiplied in before the down products. Their gradients
// then need no output of an expert, and no output has to be kept. Biases of down products are multiplied with
// them as they are added; and weights of inputs with what gate and up give, which is the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/transformer/activations.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class ExpertWriter {
 public:
  // `again`: forward passes are those of layers that are computed again.
  ExpertWriter(StepWriter& writer, Activations& activations, bool again = false)
      : writer_(writer), context_(writer.context()), activations_(activations), again_(again) {}

  // Forward: from `rows`, the gathered rows of the norm, to `partial`, this tp rank's part of the outputs;
  // both are [tokens, hidden].
  void forward(const LayerPlace& place, const Window& layer, const Window& experts, const View& rows,
               const View& partial);
  // Backward: from `d_out`, the gathered gradient of the outputs, to `d_rows`, the partial gradient of the
  // rows; both are [tokens, hidden]. The gradients of all weights are written.
  void backward(const LayerPlace& place, const Window& layer, const Window& experts,
                const GradientPlace& layer_gradient, const GradientPlace& experts_gradient, const View& rows,
                const View& d_out, const View& d_rows);

 private:
  using A = Activation;
  // Rows that go to or come from experts, with the router's weight of each row.
  struct Tokens {
    View rows, weights;
  };

  std::int64_t capacity() const { return context_.sizes.expert_tokens; }
  bool travels() const { return context_.layout.ep > 1; }
  bool sorts() const { return travels() && context_.sizes.experts > 1; }
  View routes(const LayerPlace& place);
  View router_logits(const LayerPlace& place);
  Tokens expert_tokens(const LayerPlace& place);

  // The way of rows from the order of the ranks that sent them to the order of the experts on this rank, and
  // back. `last` (or `first`) is the end of the way that the caller has; buffers in between have names that
  // begin with `name`.
  View start_of_way(const View& last, const std::string& name);
  void to_experts(const View& from, const View& to, const std::string& name);
  View end_of_way(const View& first, const std::string& name);
  void from_experts(const View& from, const View& to, const std::string& name);

  // Neighbouring experts that have equally many rows: their products are one step.
  struct ExpertGroup {
    std::int64_t first = 0, count = 0;     // experts
    std::int64_t first_row = 0, rows = 0;  // where the first one's rows begin, and how many each has
  };
  template <class F>
  void for_experts(const F& f) const;  // f(group)
  // Rows of a group's experts, and their weights of which `first` is the first one's: [experts, ...], or of
  // one expert a matrix.
  static View rows_of_group(const View& rows, const ExpertGroup& group);
  static View matrices(const Weight& first, const Window& piece, const ExpertGroup& group);
  static View of_experts(const View& all, std::int64_t count, std::int64_t rows);

  // Biases: a row for each expert of a group, whose rows stand side by side, [rows, ...]. A tp rank has those
  // of some columns of the outputs.
  static View own_rows(const View& rows, const ExpertGroup& group);
  static View biases_of(const Weight& all, const Window& piece, const ExpertGroup& group);
  View biased_columns(const View& rows) const;
  void add_biases(const Weight& biases, const Window& experts, const ExpertGroup& group, const View& rows,
                  const View* weights, const std::string& label);
  void bias_gradients(const Weight& biases, const GradientPlace& gradients, const ExpertGroup& group,
                      std::vector<View> reads, std::vector<View> updates, const std::string& label);

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  bool again_;
};

}  // namespace cp
