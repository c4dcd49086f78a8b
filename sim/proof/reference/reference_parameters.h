// The parameters of a whole model on one device, by the names that Hugging Face's implementations give them:
// model.embed_tokens.weight, model.layers.3.self_attn.q_proj.weight. Matrices are [out, in].
//
// Families differ in names, and so some stand here for all:
//   norms          input_layernorm before the mixer, post_attention_layernorm before the MLP (Llama). With
//                  norms behind, post_attention_layernorm is the one behind the mixer,
//                  pre_feedforward_layernorm before the MLP, post_feedforward_layernorm behind it (Gemma,
//                  OLMo 2).
//   attention      self_attn.{q,k,v,o}_proj, q_norm, k_norm, sinks. The gates of its output are a matrix of
//                  their own, gate_proj, with as many rows as q_proj: Qwen3-Next has them within q_proj,
//                  where each head's gates follow its queries.
//   latent         self_attn.{q_a_proj, q_a_layernorm, q_b_proj} (or q_proj, if queries have no latent row),
//                  kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj (DeepSeek)
//   recurrences    linear_attn, Mamba-2's too: in_proj_qkv (the rows of q, k and v; of Mamba-2 C, B and x),
//                  in_proj_z (gates), in_proj_b and in_proj_a (of beta and of the decay) or in_proj_dt (time
//                  steps), conv1d, A_log, dt_bias, D, norm, out_proj
//   convolutions   conv.in_proj (the rows of B, C and x), conv.conv (a row of taps for each element),
//                  conv.out_proj, and biases of all three, or of none (LFM2)
//   MLP            mlp.{gate,up,down}_proj, without the gate if the MLP has two matrices
//   experts        mlp.gate (the router), mlp.experts.7.{gate,up,down}_proj, mlp.shared_experts.*,
//                  mlp.shared_expert_gate (one row), mlp.gate.e_score_correction_bias (DeepSeek-V3), which is
//                  no parameter: it has no gradient, and no update moves it
//   predictions    those of depth d are layers.(layers + d - 1), and beside a layer's parameters have hnorm
//                  (of the rows before), enorm (of embedded tokens), eh_proj and shared_head.norm. The
//                  columns of eh_proj are those of the rows before, then those of the embedding, as in the
//                  plans; DeepSeek's have the embedding first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/model.h"
#include "sim/proof/reference/matrix64.h"

namespace cp::sim {

struct ParameterShape {
  std::string name;
  std::int64_t rows = 0, columns = 0;
};
// Whether what has this name is moved by updates.
bool is_trained(std::string_view name);
// In the order embedding, layers, final norm, head, prediction layers. All three functions throw InvalidInput
// if the model makes no sense.
std::vector<ParameterShape> parameter_shapes(const Transformer& model);
NamedMatrices zero_parameters(const Transformer& model);

// Values of which training might begin. Each matrix is a function of the seed and of its name alone, so that
// a model with a layer more has the same ones else. With a floating dtype all values are numbers of it.
//   matrices           uniform with variance 1 / columns, so that products are about as large as what goes in
//   norms              1 + 0.1 u with u uniform of variance 1: none is like the others, so that one that is
//                      taken for another shows
//   biases, sinks      0.1 u
//   corrections        0.1 u, numbers of f32 whatever the dtype: half of the deviation of sigmoids of a
//                      router's logits, so that many tokens choose others
//   A_log, dt_bias, D  those of Mamba-2: A = exp(A_log) uniform in [1, 16], time steps softplus(dt_bias)
//                      log-uniform in [0.001, 0.1], and 1 + 0.1 u
NamedMatrices draw_parameters(const Transformer& model, std::uint64_t seed,
                              std::optional<DType> dtype = std::nullopt);

// "model.layers.3."
std::string layer_prefix(std::int64_t layer);
// Of the norm before a layer's MLP.
std::string mlp_norm_name(const Transformer& model);

}  // namespace cp::sim
