// What distinguishes the families of models beyond the keys that they share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/planner/models/config_fields.h"

namespace cp::sim {

// What transformers' classes of this model_type do, and what they take for a field that a config leaves out.
struct Family {
  std::string model_type;
  bool known = false;
  bool qkv_bias = false;
  bool bias_of_qkv_alone = false;  // attention_bias means no bias of the output projection
  bool expert_biases = false;
  // qk_norm: where the config leaves use_qk_norm out.
  bool qk_norm = false, qk_norm_of_all_heads = false, qk_norm_behind_rotary = false;
  bool norms_before = true, norms_behind = false;
  bool parallel_blocks = false;
  bool norm_centered = false;  // norms subtract the mean first
  double logit_scale = 1;      // where the config leaves logit_scale out
  bool sinks = false;
  double softcap = 0;  // of attention's scores where the config leaves attn_logit_softcapping out
  bool gated_attention = false;
  bool norm_unit_offset = false;  // norms multiply with 1 + weight
  bool gemma_numerics = false;    // embedded rows are multiplied with sqrt(hidden), and MLPs have gelu_tanh
  double rotary_share = 1;        // where the config leaves partial_rotary_factor out
  bool interleaved_rotary = false;
  double rotary_theta = 10'000;                      // where it leaves rope_theta out
  std::optional<double> window_rotary_theta = {};    // and rope_local_base_freq; unset: that of all layers
  std::optional<double> query_pre_attn_scalar = {};  // unset: head_dim
  double norm_eps = 1e-6;                            // where it leaves rms_norm_eps out
  // Of so many layers the last one has no positions, unless no_rope_layers lists them; 0: all have some.
  std::int64_t no_rope_every = 0;
  bool rope_in_windows_alone = false;  // layers that see all keys have no positions
  bool tunes_temperature = false;      // of queries in layers without positions
  // quick_gelu, with a limit and 1 added to what the gate multiplies.
  bool limits_activation = false;
  bool sigmoid_router = false;    // of experts, where the config leaves scoring_func out
  bool corrects_scores = false;   // where it leaves topk_method out
  bool normalized_router = true;  // where it leaves norm_topk_prob out
  bool weighs_expert_inputs = false;
  bool shared_gate = false;  // of the shared MLP beside experts
  bool gated_mlp = true;
  std::optional<RecurrenceRule> recurrence = {};  // of the layers that have one
  bool convolves = false;                         // LFM2's, whose configs lfm2.h reads
  bool tied_embeddings = false;
  bool window_needs_flag = false;  // sliding_window counts only with use_sliding_window
  // Keys of its configs that say what its layers always do, so that nothing reads them.
  std::vector<const char*> idle_keys = {};
  bool norm_biases = false;   // of all norms, which nothing counts
  std::string left_out = {};  // what its layers have beside, and nothing counts or times
  // Of so many layers the last one attends to all keys, and the others have the window or the chunk; 0: all
  // have it.
  std::int64_t full_layer_every = 0;
  // How many layers come before the first one with experts: the key, and what it is where it is left out.
  const char* first_dense_key = "first_k_dense_replace";
  std::int64_t first_dense = 0;
  std::int64_t shared_experts = 0;            // each as wide as the other experts
  std::optional<std::int64_t> head_dim = {};  // otherwise hidden_size / num_attention_heads
  // Sizes that configs of the family leave out where they are these.
  std::optional<std::int64_t> q_heads = {}, kv_heads = {}, vocab = {}, max_seq_len = {};
  std::optional<std::int64_t> window = {}, chunk = {};
  std::optional<std::int64_t> experts_per_token = {};
};

// Returns the family of this model_type. A family that is not known has the usual defaults.
Family family_of(const std::string& model_type);

// Whether the key shows that a model is of a kind that no Transformer describes.
bool is_key_of_other_kind(std::string_view key);

// Notes an error in `fields` for every reason why no Transformer describes the model, each with the nearest
// thing that works.
void refuse_other_kinds(const Family& family, ConfigFields& fields);

}  // namespace cp::sim
