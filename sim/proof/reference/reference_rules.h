// What sizes of a model do not say, and its layers need to be computed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/proof/reference/tape.h"

namespace cp::sim {

enum class MlpActivation : std::uint8_t {
  silu,
  gelu,
  gelu_tanh,  // GELU by tanh: "gelu_pytorch_tanh" (Gemma)
  relu,
  relu_squared,  // "relu2" (Nemotron)
  quick_gelu,    // x sigmoid(1.702 x) (gpt-oss)
  identity       // x
};

// The frequencies of rotary positions: pair j of `count` rotated elements has theta^(-2j / count), and scaled
// ones have waves that are longer.
//   linear   each wave is `factor` times as long (Gemma 3)
//   llama3   waves longer than original / low positions become `factor` times as long, those shorter than
//            original / high stay, and between them the frequency goes over evenly with original / wave
//            length
//   yarn     between the same two limits the frequency goes over evenly with j (Peng et al. 2023, arXiv
//            2309.00071, "NTK-by-parts"): from the last pair at or before the one limit to the first at or
//            behind the other, unless truncate is false (gpt-oss)
enum class RotaryScale : std::uint8_t { none, linear, llama3, yarn };
struct RotaryRules {
  double theta = 10'000;  // the usual default
  RotaryScale scale = RotaryScale::none;
  double factor = 1, low = 1, high = 4, original = 8192;
  bool truncate = true;
  double size = 1;  // rotated elements are multiplied with it ("attention_factor" of yarn)
  // Pairs are neighbours (DeepSeek), and else one of each half (Llama).
  bool neighbours = false;
  // Of heads without latent rows, how many of the columns turn: the first ones (GLM-4.5, Qwen3-Next).
  double share = 1;
};

// How a router makes weights of its logits. The best top_k scores of a token choose its experts; of equal
// ones the first. Where a model corrects scores (DeepSeek-V3), its correction is added to those that choose,
// of groups too, and to no weight.
struct RouterRules {
  bool sigmoid = false;    // scores are sigmoids of the logits (DeepSeek-V3), and else their softmax
  bool normalized = true;  // the weights of a token are divided by their sum ("norm_topk_prob")
  double factor = 1;       // and multiplied with it ("routed_scaling_factor")
  // Only experts of the best top_groups of `groups` groups of neighbouring experts can be chosen. A group's
  // score is the sum of its best two (with sigmoids, DeepSeek-V3), or its best one (DeepSeek-V2).
  std::int64_t groups = 1, top_groups = 1;
};

// The experts that the tokens of a micro-batch chose in a layer; prediction layers count behind the others.
struct RoutedTokens {
  std::int64_t layer = 0, first_sequence = 0, sequences = 0, seq_len = 0;
  std::int64_t count = 0, top_k = 0;  // of experts
  std::vector<std::int64_t> experts;  // [sequences x seq_len, top_k], best first
};
// Says of each of them whether it is kept. What is dropped adds nothing, and the weights of a token's other
// experts stay as they are. Which ones a layout drops is its own matter: capacities are those of its ranks.
using DropRule = std::function<std::vector<bool>(const RoutedTokens&)>;
// The first `capacity` tokens of each expert are kept, in the order of the rows of the micro-batch.
DropRule drops_beyond(std::int64_t capacity);

struct ReferenceRules {
  double norm_eps = 1e-6;      // of RMS norms: "rms_norm_eps", whose usual default this is
  double key_norm_eps = 1e-6;  // of the Euclidean norms of a gated delta net's q and k: fixed in Qwen3-Next
  // Norms but those of recurrences' outputs have 1 + weight (Gemma), or subtract the mean first, as LayerNorm
  // without a bias (Cohere).
  bool norm_unit_offset = false, norm_centered = false;
  double embedding_scale = 1;  // of rows that are looked up: sqrt(hidden) in Gemma
  double logit_scale = 1;      // logits are multiplied with it before anything else (Cohere)
  double logit_softcap = 0;    // logits become cap tanh(logit / cap); 0: they stay (Gemma 2)
  RotaryRules rotary;
  std::optional<RotaryRules> window_rotary;  // of layers with a window; unset: as the others (Gemma 3)
  double score_scale = 1;                    // scores are multiplied with it / sqrt(head_dim)
  // Positions count in the sequence, as in the plans, whose table of angles has a row for each of its
  // positions; or in the document. Scores depend on differences of positions alone, and attention does not
  // leave a document, so that the only thing that differs is q and k themselves.
  bool positions_in_documents = false;
  std::optional<MlpActivation> activation;  // unset: silu of a gated MLP, relu_squared of one of two matrices
  // The gate is at most so large, and what it multiplies, in size, too; 0: no limit. Then `up_offset` is
  // added to the latter (gpt-oss).
  double activation_limit = 0, up_offset = 0;
  RouterRules router;
  // The router's weights multiply the rows that experts take (Llama 4), and else those that they give.
  bool weighs_expert_inputs = false;
  // In layers without rotary positions, queries at position p (as rotary counts them) are multiplied with 1 +
  // scale ln(1 + floor((p + 1) / floor)) (Llama 4).
  double temperature_scale = 0, temperature_floor = 8192;
  DropRule drops;  // null: all are kept
  // The probability of a weight of attention to become 0, and what says which do, with the number of the
  // layer, as RoutedTokens count it.
  double attention_dropout = 0;
  std::uint64_t dropout_seed = 0;
  // The weight of all prediction losses together; each has its equal part (DeepSeek-V3, equation 25; 0.3 in
  // most of its training).
  double prediction_weight = 0.3;
  // By how much a correction of scores grows behind a step where its expert's load, the tokens that chose it
  // (dropped ones among them), is below the mean, and shrinks where it is above, in models that move them
  // (DeepSeek-V3, section 2.1.2: the bias update speed).
  double correction_rate = 0;
  // Sequences that are computed at once, in order. Results depend on it by `drops` alone.
  std::int64_t micro_batch = 1;
  bool keeps_activations = false;
  Roundings roundings;  // of each micro-batch, by its own stream of random numbers
};

}  // namespace cp::sim
