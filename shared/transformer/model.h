// Transformer: the sizes of a decoder-only language model, as its config.json gives them.
//
// Each layer: x += attention(norm(x)), x += mlp(norm(x)). The MLP is gated, down(act(gate(x)) * up(x)), or
// has `experts` of which each token takes top_k. A final norm and the head, which may share the embedding's
// weights, end it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/digest.h"

namespace cp {

struct Experts {
  std::int64_t count = 0;         // of a layer
  std::int64_t top_k = 0;         // that a token goes to
  std::int64_t intermediate = 0;  // of each expert
  bool operator==(const Experts&) const = default;
};

struct Transformer {
  std::string name;
  std::int64_t hidden = 0, layers = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;  // head_dim * q_heads need not be hidden
  std::int64_t intermediate = 0;                         // of the dense MLP; unused with experts
  std::int64_t vocab = 0;
  std::int64_t max_seq_len = 0;  // positions that it was trained for; 0: unknown
  bool tied_embeddings = false;  // the head is the embedding's transpose
  bool qkv_bias = false;
  bool qk_norm = false;                // norms of q and k over head_dim
  std::optional<std::int64_t> window;  // sliding window of every layer
  std::optional<Experts> experts;
  bool operator==(const Transformer&) const = default;

  std::int64_t q_width() const { return q_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// Throws InvalidInput that names each field at fault, its value and what is allowed.
void validate_model(const Transformer& model);

// Numbers of parameters.
struct ParameterCounts {
  std::int64_t embedding = 0;
  // Of one layer:
  std::int64_t attention = 0;  // the four projections, with biases
  std::int64_t mlp = 0;        // the dense MLP, or all experts
  std::int64_t router = 0;
  std::int64_t norms = 0;
  // Behind the last layer:
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 when tied

  std::int64_t layer() const { return attention + mlp + router + norms; }
  std::int64_t total = 0;  // of the model
  // That one token meets: top_k of the experts, the head even where it is tied, not the embedding's lookup.
  std::int64_t active = 0;
};
ParameterCounts parameter_counts(const Transformer& model);

Hasher& hash(Hasher& hasher, const Transformer& model);

}  // namespace cp
