// A Transformer holds the sizes of a decoder-only language model, as its config.json gives them. Sizes are of
// the whole model, before any GPU is thought of.
//
// Layers differ in which keys a query sees, and in their MLP: a model has a few kinds of layers, in some
// order. For example, every second layer of gpt-oss has a window of 128 tokens, and the first three layers of
// DeepSeek-V3 have no experts. All else is alike in all layers.
//
// Each layer computes x += attention(norm(x)) and then x += mlp(norm(x)); with norms behind, x +=
// norm(attention(norm(x))) and x += norm(mlp(norm(x))). The MLP is gated: down(act(gate(x))
// * up(x)). A mixture of experts has `experts` instead, of which each token uses top_k, and beside them it
// may have a shared MLP, which all tokens use. Behind the last layer come a final norm and the head; the head
// may share its weights with the embedding.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/index.h"

namespace cp {

struct Experts {
  std::int64_t count = 0;         // experts in each layer
  std::int64_t top_k = 0;         // experts that each token is sent to
  std::int64_t intermediate = 0;  // width of each expert's MLP
  // Width of the MLP that every token uses beside its experts: of all shared experts together. 0: none.
  std::int64_t shared = 0;
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

struct LayerKind {
  // Which keys a query sees, of those that the causal mask allows. Both may be set.
  // The last `window` ones, the query's own among them, as in MaskSlice. Unset: all.
  std::optional<std::int64_t> window;
  // Those of the query's own chunk: positions are cut at the multiples of `chunk` (Llama 4). Unset: all.
  std::optional<std::int64_t> chunk;
  // In a model with experts: whether the layer has the dense MLP in their place.
  bool dense = false;
  bool operator==(const LayerKind&) const = default;
};

// What a layer has behind attention. All layers with the same one have equally large parameters.
enum class Mlp : std::uint8_t { dense, experts };
inline constexpr std::array<Mlp, 2> kMlps = {Mlp::dense, Mlp::experts};

// A value for each of the two.
template <class T>
class ByMlp {
 public:
  T& operator[](Mlp mlp) { return values_[static_cast<std::size_t>(mlp)]; }
  const T& operator[](Mlp mlp) const { return values_[static_cast<std::size_t>(mlp)]; }
  bool operator==(const ByMlp&) const = default;

 private:
  std::array<T, 2> values_{};
};

struct Transformer {
  std::string name;
  std::int64_t hidden = 0, layers = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;  // q_heads * head_dim need not be hidden
  std::int64_t intermediate = 0;  // width of the dense MLP; not used if all layers have experts
  std::int64_t vocab = 0;
  std::int64_t max_seq_len = 0;  // positions that the model was trained for; 0: not known
  bool tied_embeddings = false;  // the head uses the embedding's table
  bool qkv_bias = false;
  bool qk_norm = false;          // q and k are normalized over head_dim (as in Qwen3)
  bool norms_behind = false;     // what attention and the MLP give is normalized, too (as in Gemma 2 and 3)
  std::optional<Latent> latent;  // of all layers; it needs kv_heads = q_heads, and neither of the two above
  std::optional<Experts> experts;
  std::vector<LayerKind> kinds = std::vector<LayerKind>(1);  // at least one; no two are equal
  std::vector<int> order;  // of each layer, its index among `kinds`; empty: all layers are kinds[0]
  bool operator==(const Transformer&) const = default;

  std::int64_t q_width() const { return q_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }                      // of keys
  std::int64_t rotated_dim() const { return latent ? latent->rope_dim : head_dim; }  // of a head
  std::int64_t v_head_dim() const { return latent ? latent->v_head_dim : head_dim; }
  // What is made of a latent row for each head: its key but for the rotated part, and its value.
  std::int64_t up_head_dim() const { return head_dim - latent->rope_dim + latent->v_head_dim; }
  int kind_of(std::int64_t layer) const { return order.empty() ? 0 : order[idx(layer)]; }
  Mlp mlp_of(const LayerKind& kind) const { return experts && !kind.dense ? Mlp::experts : Mlp::dense; }
  bool has(Mlp mlp) const;  // in some layer
};

// Sets the kinds and the order of a model from what each of its layers is. Kinds are numbered as they first
// appear.
void set_layers(Transformer& model, const std::vector<LayerKind>& layers);
// How many of the layers first .. first + count - 1 are of each of the model's kinds.
std::vector<std::int64_t> layers_of_kinds(const Transformer& model, std::int64_t first, std::int64_t count);
// The same of all layers.
std::vector<std::int64_t> layers_of_kinds(const Transformer& model);
// Of each kind of layers.
std::vector<Mlp> mlps_of_kinds(const Transformer& model);
// How many of so many layers of each kind have which MLP.
ByMlp<std::int64_t> layers_of_mlps(const Transformer& model, const std::vector<std::int64_t>& of_kinds);

// Throws InvalidInput that names every field at fault, its value, and what is allowed.
void validate_model(const Transformer& model);

// Numbers of parameters (not bytes).
struct ParameterCounts {
  std::int64_t embedding = 0;
  // Of one layer:
  std::int64_t attention = 0;  // the projections q, k, v (or those by latent rows) and out, with their biases
  std::int64_t norms = 0;
  // Of one dense layer:
  std::int64_t mlp = 0;
  // Of one layer with experts:
  std::int64_t experts = 0;  // all together, without the shared MLP
  std::int64_t shared = 0, router = 0;
  // Behind the last layer:
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 if the head uses the embedding's table

  std::int64_t layer(Mlp of) const {
    return attention + norms + (of == Mlp::dense ? mlp : experts + shared + router);
  }
  std::int64_t total = 0;  // of the whole model
  // The parameters that one token is multiplied with: of the experts top_k, the head even if it is tied, and
  // not the embedding, which is looked up.
  std::int64_t active = 0;
};
ParameterCounts parameter_counts(const Transformer& model);

Hasher& hash(Hasher& hasher, const Transformer& model);

}  // namespace cp
