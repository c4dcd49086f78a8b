// A Transformer holds the sizes of a decoder-only language model, as its config.json gives them. Sizes are of
// the whole model, before any GPU is thought of.
//
// Layers differ in their parts, and in which keys a query sees: a model has a few kinds of layers, in some
// order. For example, every second layer of gpt-oss has a window of 128 tokens, the first three layers of
// DeepSeek-V3 have no experts, and three of four layers of Qwen3-Next have a recurrence in attention's place.
// All else is alike in all layers.
//
// Each layer computes x += mixer(norm(x)) and then x += mlp(norm(x)), or one of the two alone; with norms
// behind, x += norm(mixer(norm(x))) and x += norm(mlp(norm(x))), or these without the inner norms. In
// parallel blocks both take the same rows, x += mixer(norm(x)) + mlp(norm(x)). The mixer is attention, a
// recurrence or a short convolution. The MLP is gated, down(act(gate(x)) * up(x)), or not, down(act(up(x))).
// A mixture of experts has `experts` instead, of which each token uses top_k, and beside them it may have a
// shared MLP, which all tokens use. Behind the last layer come a final norm and the head; the head may share
// its weights with the embedding.
//
// In training, prediction layers may follow (multi-token prediction, MTP; DeepSeek-V3, arXiv 2412.19437,
// section 2.2). That of depth 1 takes the last layer's output and predicts the token behind the next one;
// that of depth k takes the output of depth k - 1. Each normalizes these rows, normalizes beside them the
// embedding of the token k positions ahead, and multiplies the two side by side with a matrix, 2 hidden ->
// hidden. One layer of the model's last kind follows, a final norm of its own, and the model's head, whose
// labels are k positions further than those of the model. Table and head are the model's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/index.h"
#include "shared/plan/plan.h"

namespace cp {

struct Experts {
  std::int64_t count = 0;         // experts in each layer
  std::int64_t top_k = 0;         // experts that each token is sent to
  std::int64_t intermediate = 0;  // width of each expert's MLP
  // Width of the MLP that every token uses beside its experts: of all shared experts together. 0: none.
  std::int64_t shared = 0;
  // The shared MLP's output is multiplied with the sigmoid of a number, the product of the row with a vector
  // of weights (Qwen2-MoE, Qwen3-Next).
  bool shared_gate = false;
  bool biases = false;  // of the router's logits, and of all products of experts (gpt-oss)
  // The router adds a number for each expert to the scores that it chooses by (DeepSeek-V3). These numbers
  // are no parameters: no gradient moves them, and no count of parameters has them.
  bool corrects_scores = false;
  // Of these: behind each step of a training they are moved against the load of the experts
  // (StepBatch::correction_rate).
  bool moves_corrections = false;
  bool operator==(const Experts&) const = default;
};

// Multi-head latent attention (MLA, of DeepSeek-V2 and later). Each token has a latent row, of which the keys
// and values of all heads are made; queries may have one, too. Of a head's head_dim the last rope_dim are
// rotated: a query has them of its own, and keys have one for all heads, which stands beside the latent row.
struct Latent {
  // Width of the queries' latent rows; 0: queries are projected from the layer's rows.
  std::int64_t q_rank = 0;
  std::int64_t kv_rank = 0;
  std::int64_t rope_dim = 0;    // 1 to head_dim
  std::int64_t v_head_dim = 0;  // of a value, and so of a head's output

  std::int64_t kv_row() const { return kv_rank + rope_dim; }
  bool operator==(const Latent&) const = default;
};

// What a layer mixes the rows of a sequence with.
enum class Mixer : std::uint8_t { attention, recurrence, convolution, none };
// What it has behind the mixer, and computes each row with.
enum class Mlp : std::uint8_t { dense, experts, none };

std::string_view name(Mixer mixer);  // "attention"
std::string_view name(Mlp mlp);      // "dense"

inline constexpr std::array<Mixer, 4> kMixers = {Mixer::attention, Mixer::recurrence, Mixer::convolution,
                                                 Mixer::none};
inline constexpr std::array<Mlp, 3> kMlps = {Mlp::dense, Mlp::experts, Mlp::none};

// All layers with the same parts have equally large parameters. A layer has one part at least.
struct LayerParts {
  Mixer mixer = Mixer::attention;
  Mlp mlp = Mlp::dense;
  bool operator==(const LayerParts&) const = default;
};
// All of them, by mixer and then by MLP. The last mixer and the last MLP, none of either, make no layer.
inline constexpr auto kLayerParts = [] {
  std::array<LayerParts, kMixers.size() * kMlps.size() - 1> all;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {kMixers[i / kMlps.size()], kMlps[i % kMlps.size()]};
  return all;
}();

// A value for each of them.
template <class T>
class ByParts {
 public:
  T& operator[](LayerParts parts) { return values_[index(parts)]; }
  const T& operator[](LayerParts parts) const { return values_[index(parts)]; }
  bool operator==(const ByParts&) const = default;

 private:
  static std::size_t index(LayerParts parts) {
    return kMlps.size() * static_cast<std::size_t>(parts.mixer) + static_cast<std::size_t>(parts.mlp);
  }
  std::array<T, kLayerParts.size()> values_{};
};

// Of numbers of layers by their parts: all together, those with a mixer, and those with an MLP.
std::int64_t count_of(const ByParts<std::int64_t>& layers);
std::int64_t count_of(const ByParts<std::int64_t>& layers, Mixer mixer);
std::int64_t count_of(const ByParts<std::int64_t>& layers, Mlp mlp);

// Of layers with a recurrence (shared/recurrence/problem.h): a projection of the layer's rows gives q, k and
// v, a row of gates as wide as v, and one or two numbers for each value head, of which log_decay and beta are
// made. q, k and v go through a short convolution along the sequence. The output is normalized and multiplied
// with the gates before the projection out.
struct Recurrence {
  RecurrenceRule rule = RecurrenceRule::delta;  // delta: gated delta nets; decay: Mamba-2
  std::int64_t key_heads = 0, value_heads = 0;  // key_heads divides value_heads
  std::int64_t key_dim = 0, value_dim = 0;      // of a head
  std::int64_t convolution = 4;                 // rows that it sees, the row itself among them
  bool convolution_bias = false;
  bool operator==(const Recurrence&) const = default;

  std::int64_t key_width() const { return key_heads * key_dim; }
  std::int64_t value_width() const { return value_heads * value_dim; }
  std::int64_t convolved() const { return 2 * key_width() + value_width(); }  // elements of q, k and v
  // delta has one that makes beta and one that makes the decay; decay has its time step, which makes both.
  std::int64_t numbers() const { return (rule == RecurrenceRule::delta ? 2 : 1) * value_heads; }
  std::int64_t projected() const { return convolved() + value_width() + numbers(); }
  // Of the norm of outputs: a gated delta net has one vector for all heads, Mamba-2 one for all elements.
  std::int64_t norm_width() const { return rule == RecurrenceRule::delta ? value_dim : value_width(); }
  // Learnt numbers of each value head: the rate of its decay and the time step's bias; with Mamba-2 also the
  // weight with which v itself is added to the output.
  std::int64_t head_numbers() const { return rule == RecurrenceRule::delta ? 2 : 3; }
};

// Of layers with a gated short convolution (LFM2): a projection of the layer's rows gives B, C and x, each as
// wide as the layer's rows. B times x goes through a causal convolution along the sequence, each element by
// itself, and C times that through the projection out. No function is in between.
struct ShortConvolution {
  std::int64_t taps = 3;  // rows that it sees, the row itself among them
  bool bias = false;      // of the convolution and of both projections
  bool operator==(const ShortConvolution&) const = default;
};

struct LayerKind {
  // Which keys a query sees, of those that the causal mask allows. Both may be set.
  // The last `window` ones, the query's own among them, as in MaskSlice. Unset: all.
  std::optional<std::int64_t> window;
  // Those of the query's own chunk: positions are cut at the multiples of `chunk` (Llama 4). Unset: all.
  std::optional<std::int64_t> chunk;
  // In a model with experts: whether the layer has the dense MLP in their place.
  bool dense = false;
  Mixer mixer = Mixer::attention;
  bool has_mlp = true;
  // Of attention: whether q and k are rotated by their positions, as Numerics say. False: the layer knows no
  // positions but by what its queries see (NoPE: SmolLM3, Llama 4).
  bool rotary = true;
  bool operator==(const LayerKind&) const = default;
};

// How frequencies of rotary embeddings are scaled for more positions than a model was trained for at first;
// the rope_type of a config (transformers, modeling_rope_utils.py).
enum class RotaryScaling : std::uint8_t {
  none,    // "default"
  linear,  // all are divided by the factor (Chen et al. 2023, arXiv 2306.15595)
  llama3,  // those of long waves are (Llama 3.1)
  yarn     // those of long waves are (Peng et al. 2023, arXiv 2309.00071)
};
std::string_view name(RotaryScaling scaling);

// The frequencies of rotary embeddings. Limits count the waves of a frequency in the `original` positions.
// By llama3 and yarn, frequencies of fewer waves than `low` are divided by the factor, and those of more than
// `high` stay. Between them it goes over evenly: in the number of waves (llama3), or from pair to pair
// (yarn).
struct RotaryFrequencies {
  double theta = 10000;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1, low = 1, high = 4;  // yarn calls the limits beta_slow and beta_fast
  std::int64_t original = 8192;          // positions that the model was trained for at first
  // Of yarn: the way between the limits begins and ends at whole pairs (truncate).
  bool whole_pairs = true;
  // Of rotated rows: cosines and sines are multiplied with it (attention_factor of yarn).
  double magnitude = 1;
  bool operator==(const RotaryFrequencies&) const = default;
};

// In layers without rotary positions, queries are multiplied with 1 + scale ln(1 + floor((position + 1) /
// floor)), so that attention stays sharp over more keys than the model was trained with (Llama 4; Nakanishi
// 2025, arXiv 2501.19399). Positions are those of the sequence.
struct QueryTemperature {
  double scale = 0;     // attn_scale; 0: queries stay
  double floor = 8192;  // floor_scale, in positions
  bool operator==(const QueryTemperature&) const = default;
};

// What sizes do not say: numbers and functions that results depend on, and neither times nor memory.
struct Numerics {
  double norm_eps = 1e-6;         // rms_norm_eps
  bool norm_unit_offset = false;  // norms multiply with 1 + weight (Gemma)
  // All norms but those of recurrences' outputs subtract the mean first: LayerNorm without a bias (Cohere).
  bool norm_centered = false;
  ActivationFunction activation = ActivationFunction::silu;
  // Of gated MLPs: the gate is at most so large, and what it multiplies within its opposite and it; 0: no
  // limit. And what is added to the latter before they are multiplied (7 and 1 in gpt-oss).
  double activation_limit = 0, up_offset = 0;
  double embedding_scale = 1;  // of looked-up rows: sqrt(hidden) in Gemma
  double logit_softcap = 0;    // of the head's logits; 0: none (Gemma 2)
  double logit_scale = 1;      // what they are multiplied with before that (Cohere)
  RotaryFrequencies rotary;
  // Of layers with a window, where they have others than the rest (Gemma 3: rope_local_base_freq).
  std::optional<RotaryFrequencies> window_rotary;
  bool interleaved_rotary = false;  // a pair is two neighbouring columns, not one of each half
  // Of a head's columns, how many are rotated, from the first one on (partial_rotary_factor); 0: q and k know
  // no positions (Nemotron-H). Latent attention has rope_dim in its place.
  double rotary_share = 1;
  // Attention's scores are multiplied with it, beside 1 / sqrt(head_dim): sqrt(head_dim /
  // query_pre_attn_scalar) in Gemma 2 and 3, and the square of yarn's mscale_all_dim in DeepSeek's models.
  double score_scale = 1;
  QueryTemperature temperature;
  RouterRule router;  // of experts; `ranks` is the layout's
  // The router's weights multiply what experts take (Llama 4), and not what they give.
  bool weighs_expert_inputs = false;
  bool operator==(const Numerics&) const = default;

  const RotaryFrequencies& rotary_of(const LayerKind& kind) const {
    return kind.window && window_rotary ? *window_rotary : rotary;
  }
  // Tables of angles that the layers of a model read (rotary_table.h).
  std::int64_t rotary_tables() const { return window_rotary ? 2 : 1; }
};

// Chosen: DeepSeek-V3 and GLM-4.5 have one, and a plan has the steps of each.
inline constexpr std::int64_t kMostPredictionLayers = 8;

struct Transformer {
  std::string name;
  std::int64_t hidden = 0, layers = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;  // q_heads * head_dim need not be hidden
  std::int64_t intermediate = 0;  // width of the dense MLP; not used if all layers have experts
  std::int64_t vocab = 0;
  std::int64_t max_seq_len = 0;  // positions that the model was trained for; 0: not known
  bool tied_embeddings = false;  // the head uses the embedding's table
  bool qkv_bias = false;
  bool out_bias = false;              // of attention's projection out
  bool qk_norm = false;               // q and k are normalized, each head over head_dim (as in Qwen3)
  bool qk_norm_of_all_heads = false;  // the same over all heads of q at once, and of k (OLMo 2)
  // The same behind the rotation and without weights, in layers with rotary positions alone (Llama 4).
  bool qk_norm_behind_rotary = false;
  // Mixer and MLP take normalized rows; or what they give is normalized (OLMo 2), or both (Gemma 2 and 3).
  bool norms_before = true, norms_behind = false;
  // Attention and MLP of each layer take the rows of one norm, and x gets the sum of what both give (Cohere's
  // Command R; of GPT-J and PaLM first). With tensor parallelism these rows are gathered once, and both
  // partial sums are scattered as one.
  bool parallel_blocks = false;
  bool sinks = false;            // of attention: a learnt number for each query head (gpt-oss)
  double softcap = 0;            // a cap of attention's scores, as in AttentionProblem; 0: none (Gemma 2)
  bool gated_attention = false;  // its output is multiplied with gates, one for each element (Qwen3-Next)
  bool gated_mlp = true;         // false: an MLP, or an expert, has two matrices instead of three
  std::optional<Latent> latent;  // of all layers; it needs kv_heads = q_heads, and neither of the two above
  std::optional<Experts> experts;
  std::optional<Recurrence> recurrence;                      // of all layers that have one
  std::optional<ShortConvolution> convolution;               // of all layers that have one
  std::vector<LayerKind> kinds = std::vector<LayerKind>(1);  // at least one; no two are equal
  std::vector<int> order;  // of each layer, its index among `kinds`; empty: all layers are kinds[0]
  // Beside `layers`, and at most kMostPredictionLayers. Training has them, and serving does not.
  std::int64_t prediction_layers = 0;
  Numerics numerics;
  bool operator==(const Transformer&) const = default;

  std::int64_t q_width() const { return q_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }  // of keys
  std::int64_t rotated_dim() const {                             // of a head
    return latent ? latent->rope_dim
                  : static_cast<std::int64_t>(static_cast<double>(head_dim) * numerics.rotary_share);
  }
  std::int64_t v_head_dim() const { return latent ? latent->v_head_dim : head_dim; }
  // What is made of a latent row for each head: its key but for the rotated part, and its value.
  std::int64_t up_head_dim() const { return head_dim - latent->rope_dim + latent->v_head_dim; }
  int kind_of(std::int64_t layer) const { return order.empty() ? 0 : order[idx(layer)]; }
  int last_kind() const { return kind_of(layers - 1); }  // which prediction layers are of
  // Whether q and k are normalized in layers of this kind, which has attention.
  bool normalizes_qk(const LayerKind& kind) const {
    return qk_norm && (kind.rotary || !qk_norm_behind_rotary);
  }
  // Whether the embedding's table is used behind the last layer, too: by the head, or by prediction layers.
  bool embeds_behind_layers() const { return tied_embeddings || prediction_layers > 0; }
  LayerParts parts_of(const LayerKind& kind) const {
    return {kind.mixer, !kind.has_mlp ? Mlp::none : experts && !kind.dense ? Mlp::experts : Mlp::dense};
  }
  // In some layer.
  bool has(LayerParts parts) const;
  bool has(Mixer mixer) const;
  bool has(Mlp mlp) const;
  // Matrices that an MLP's rows are multiplied with before its activation: gate and up, or up alone.
  std::int64_t up_matrices() const { return gated_mlp ? 2 : 1; }
};

// Sets the kinds and the order of a model from what each of its layers is. Kinds are numbered as they first
// appear.
void set_layers(Transformer& model, const std::vector<LayerKind>& layers);
// How many of the layers first .. first + count - 1 are of each of the model's kinds.
std::vector<std::int64_t> layers_of_kinds(const Transformer& model, std::int64_t first, std::int64_t count);
// The same of all layers.
std::vector<std::int64_t> layers_of_kinds(const Transformer& model);
// The first kind of layers that have attention: all of them have their rows at one home. Of a layer alone
// that has none (layer_plan.h), its own kind, whose rows lie as if all of them saw one another.
const LayerKind& first_attention(const Transformer& model);
// Of each kind of layers.
std::vector<LayerParts> parts_of_kinds(const Transformer& model);
// How many of so many layers of each kind have which parts.
ByParts<std::int64_t> layers_of_parts(const Transformer& model, const std::vector<std::int64_t>& of_kinds);

// Throws InvalidInput that names every field at fault, its value, and what is allowed.
void validate_model(const Transformer& model);

// Numbers of parameters (not bytes) of one mixer: of its matrices, and of what is no matrix inside of it,
// such as biases and norms of q and k.
struct MixerParameters {
  std::int64_t matrices = 0, rows = 0;
  std::int64_t sum() const { return matrices + rows; }
};

// Numbers of parameters (not bytes).
struct ParameterCounts {
  std::int64_t embedding = 0;
  std::array<MixerParameters, kMixers.size()> mixers;  // of those that the model has
  // Of one MLP:
  std::int64_t mlp = 0;      // the dense one
  std::int64_t experts = 0;  // all together, without the shared MLP
  std::int64_t shared = 0, router = 0;
  std::int64_t expert_rows = 0;  // of what a token meets of both, the biases
  // Of a layer that is one part: before it and behind it. And of one with both parts.
  std::int64_t norms = 0, norms_of_both = 0;
  // Behind the last layer:
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 if the head uses the embedding's table
  // Of one prediction layer, all that is its own: layer, three norms, and the matrix that joins its inputs.
  std::int64_t prediction = 0, prediction_join = 0;

  std::int64_t norms_of(LayerParts layer) const {
    return layer.mixer == Mixer::none || layer.mlp == Mlp::none ? norms : norms_of_both;
  }
  const MixerParameters& of(Mixer mixer) const { return mixers[static_cast<std::size_t>(mixer)]; }
  std::int64_t layer(LayerParts of) const;
  std::int64_t total = 0;  // of the whole model
  // The parameters that one token is multiplied with: of the experts top_k, the head even if it is tied, and
  // not the embedding, which is looked up. Those of prediction layers are counted in all three.
  std::int64_t active = 0;
  std::int64_t multiplied = 0;  // those of them in the matrices of layers
};
ParameterCounts parameter_counts(const Transformer& model);

Hasher& hash(Hasher& hasher, const Transformer& model);

}  // namespace cp
