// One pass of a model over a micro-batch on one device in float64, forward and back. Sizes and order are
// those of shared/transformer/model.h; the layers are written here from Hugging Face's implementations.
//
//   attention       q and k are normalized, then rotated; or rotated, then normalized without weights (Llama
//                   4). Layers without positions do neither of the latter two, and may scale queries. Scores
//                   are scaled by 1/sqrt(head_dim) and a number of the rules. Gates are sigmoids.
//   latent          the first elements of a head are made of the latent row, and the last rope_dim rotated;
//                   the key's rotated part is the same for all heads and is not normalized
//   gated delta     SiLU follows the convolution, then q and k of each head get the Euclidean norm 1; beta =
//   net             sigmoid(b), log_decay = -exp(A_log) softplus(a + dt_bias). Outputs are scaled by
//                   1/sqrt(key_dim), normalized in each head, and multiplied with silu(z).
//   Mamba-2         SiLU follows the convolution; beta = softplus(dt + dt_bias), log_decay = -exp(A_log)
//                   beta. Outputs are not scaled, get D v added, are multiplied with silu(z), and then
//                   normalized over all heads that share a key head.
//   short           B, C and x are one product of the rows; the result is C times the convolution of B x
//   convolution
//   predictions     a token that lies behind the sequence's end, or in another document, is token 0, as
//                   Megatron-LM has it. No row that has a label sees what that makes.
//
// Convolutions and recurrences begin anew with each document. No loss is added for the balance of experts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/transformer/model.h"
#include "sim/proof/reference/matrix64.h"
#include "sim/proof/reference/reference_batch.h"
#include "sim/proof/reference/reference_rules.h"
#include "sim/proof/reference/tape.h"

namespace cp::sim {

// A value on the way, "layers.3.attended", with the words of shared/transformer/activations.h: norm1, q, k, v
// (rotated, as attention takes them), out, gates, gated_out, recurrent_q, _k, _v, log_decay, beta,
// recurrent_out, normed_out, projected (B, C and x), convolved (behind C), attended, mid, norm2, router,
// mlp_out, joined; and `next`, what the layer hands on, embedding, final_norm and logits. Those of a
// prediction layer begin with "predictions.1.".
struct NamedActivation {
  std::string name;
  Matrix64 values;    // [rows of the micro-batch, width]
  Matrix64 gradient;  // of what backward() went back from
};

class ModelPass {
 public:
  // Goes forward. `batch` is the micro-batch, whose first sequence has this number in the global batch. It
  // keeps references to the model and the rules.
  ModelPass(const Transformer& model, const ReferenceRules& rules, const NamedMatrices& parameters,
            ReferenceBatch batch, std::int64_t first_sequence);

  // Of the model, and of each depth of prediction: the sums over their labelled rows.
  std::vector<double> losses() const;
  // The model's own, of each row; 0 where a row has no label.
  const std::vector<double>& losses_of_rows() const { return losses_.front().value().values; }
  // Of experts by tokens, in all layers; and those that were dropped.
  std::int64_t choices() const { return choices_; }
  // How many tokens chose each expert of a layer, by the name of the correction of its scores.
  const std::map<std::string, std::vector<double>, std::less<>>& loads() const { return loads_; }
  std::int64_t dropped() const { return dropped_; }
  // Goes back from the sum of losses times weights, and adds to the gradients.
  void backward(const std::vector<double>& weights, NamedMatrices& gradients);
  // In the order in which they are computed. Gradients are there behind backward().
  std::vector<NamedActivation> activations() const;

 private:
  struct Layer {
    std::int64_t number;
    const LayerKind& kind;
    std::string prefix, label;  // of parameters and of activations
  };

  Variable parameter(const std::string& name) const;
  Variable note(const std::string& name, Variable value);
  Variable rms_norm(Variable x, Variable factors, std::int64_t width) const;
  Variable norm(Variable x, const std::string& name, std::int64_t width = 0) const;
  Variable linear_of(Variable x, const std::string& name);
  Variable activated(Variable x);

  Variable embed(std::int64_t distance) const;
  void predict(const std::string& label, Variable x, const std::string& norm_name, std::int64_t distance);
  std::vector<std::int64_t> ahead(const std::vector<std::int32_t>& of, std::int64_t distance,
                                  std::int64_t missing) const;
  Variable layer(const Layer& at, Variable x);
  Variable attend(const Layer& at, Variable rows);
  Variable rotated(const Layer& at, Variable x, std::int64_t head_dim, std::int64_t first,
                   std::int64_t count) const;
  Variable end_rotated(const Layer& at, Variable x, std::int64_t head_dim, std::int64_t count) const;
  Variable temperatures();  // of queries, by row
  Variable attend_latent(const Layer& at, Variable rows);
  Variable attention_core(const Layer& at, Variable q, Variable k, Variable v);
  Variable recur(const Layer& at, Variable rows);
  Variable mix_by_convolution(const Layer& at, Variable rows);
  Variable mlp(const std::string& prefix, Variable rows, const Variable* weights = nullptr);
  Variable mix_experts(const Layer& at, Variable rows);
  std::vector<std::int64_t> choose(Matrix64 scores, const std::string& correction) const;

  const Transformer& model_;
  const ReferenceRules& rules_;
  const ReferenceBatch batch_;
  const std::int64_t first_sequence_;
  // Of each row; begins_: the row that its document begins with.
  std::vector<std::int64_t> positions_, begins_;
  Tape tape_;
  std::vector<std::pair<std::string, Variable>> parameters_;
  std::map<std::string, std::size_t, std::less<>> parameter_index_;
  // What is not trained: plans have it as it is, so that no rounding moves it.
  std::map<std::string, Matrix64, std::less<>> constants_;
  std::map<std::string, std::vector<double>, std::less<>> loads_;
  std::vector<std::pair<std::string, Variable>> noted_;
  std::int64_t choices_ = 0, dropped_ = 0;
  std::vector<Variable> losses_;  // of the model, and of each depth; of each row
};

}  // namespace cp::sim
