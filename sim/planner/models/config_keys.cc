#include "sim/planner/models/config_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "sim/planner/models/families.h"

namespace cp::sim {
namespace {

constexpr std::array<std::string_view, 95> kRead = {"model_type",
                                                    "hidden_size",
                                                    "num_hidden_layers",
                                                    "vocab_size",
                                                    "max_position_embeddings",
                                                    "rope_scaling",
                                                    "rope_parameters",
                                                    "partial_rotary_factor",
                                                    "num_attention_heads",
                                                    "num_key_value_heads",
                                                    "head_dim",
                                                    "kv_lora_rank",
                                                    "q_lora_rank",
                                                    "qk_nope_head_dim",
                                                    "qk_rope_head_dim",
                                                    "v_head_dim",
                                                    "intermediate_size",
                                                    "moe_intermediate_size",
                                                    "num_local_experts",
                                                    "num_experts",
                                                    "n_routed_experts",
                                                    "num_experts_per_tok",
                                                    "n_shared_experts",
                                                    "num_shared_experts",
                                                    "shared_expert_intermediate_size",
                                                    "intermediate_size_mlp",
                                                    "first_k_dense_replace",
                                                    "mlp_only_layers",
                                                    "moe_layers",
                                                    "moe_layer_freq",
                                                    "decoder_sparse_step",
                                                    "interleave_moe_layer_step",
                                                    "no_rope_layers",
                                                    "no_rope_layer_interval",
                                                    "attn_temperature_tuning",
                                                    "floor_scale",
                                                    "attn_scale",
                                                    "swiglu_limit",
                                                    "swiglu_alpha",
                                                    "num_nextn_predict_layers",
                                                    "sliding_window",
                                                    "use_sliding_window",
                                                    "sliding_window_pattern",
                                                    "attention_chunk_size",
                                                    "text_config",
                                                    "layer_types",
                                                    "max_window_layers",
                                                    "attention_bias",
                                                    "qkv_bias",
                                                    "qk_norm",
                                                    "use_qk_norm",
                                                    "mlp_bias",
                                                    "tie_word_embeddings",
                                                    "torch_dtype",
                                                    "dtype",
                                                    "quantization_config",
                                                    "linear_conv_kernel_dim",
                                                    "linear_key_head_dim",
                                                    "linear_num_key_heads",
                                                    "linear_num_value_heads",
                                                    "linear_value_head_dim",
                                                    "full_attention_interval",
                                                    "hybrid_override_pattern",
                                                    "layers_block_type",
                                                    "attention_head_dim",
                                                    "n_groups",
                                                    "mamba_num_heads",
                                                    "mamba_head_dim",
                                                    "ssm_state_size",
                                                    "conv_kernel",
                                                    "use_conv_bias",
                                                    "moe_shared_expert_intermediate_size",
                                                    "use_bias",
                                                    "mamba_proj_bias",
                                                    "attn_logit_softcapping",
                                                    "final_logit_softcapping",
                                                    "rms_norm_eps",
                                                    "layer_norm_epsilon",
                                                    "norm_eps",
                                                    "hidden_act",
                                                    "hidden_activation",
                                                    "mlp_hidden_act",
                                                    "norm_topk_prob",
                                                    "rope_theta",
                                                    "rope_local_base_freq",
                                                    "original_max_position_embeddings",
                                                    "query_pre_attn_scalar",
                                                    "rope_interleave",
                                                    "scoring_func",
                                                    "routed_scaling_factor",
                                                    "n_group",
                                                    "topk_group",
                                                    "topk_method",
                                                    "clip_qkv",
                                                    "alibi"};

// Keys that configs of llama, mistral, qwen, gemma, mixtral and nemotron on huggingface.co have, and those of
// transformers' base class.
constexpr std::array<std::string_view, 51> kIdle = {"architectures",
                                                    "attention_dropout",
                                                    "attn_implementation",
                                                    "auto_map",
                                                    "bos_token_id",
                                                    "cache_implementation",
                                                    "chunk_size",
                                                    "chunk_size_feed_forward",
                                                    "embd_pdrop",
                                                    "eos_token_id",
                                                    "expand",
                                                    "finetuning_task",
                                                    "head_dropout",
                                                    "hidden_dropout",
                                                    "id2label",
                                                    "initial_context_length",
                                                    "initializer_range",
                                                    "label2id",
                                                    "layer_norm_eps",
                                                    "mamba_hidden_act",
                                                    "mamba_ssm_cache_dtype",
                                                    "name_or_path",
                                                    "num_logits_to_keep",
                                                    "output_attentions",
                                                    "output_hidden_states",
                                                    "output_router_logits",
                                                    "pad_token_id",
                                                    "pretraining_tp",
                                                    "problem_type",
                                                    "rescale_prenorm_residual",
                                                    "resid_pdrop",
                                                    "residual_in_fp32",
                                                    "return_dict",
                                                    "rope_percent",
                                                    "rope_percentage",
                                                    "router_aux_loss_coef",
                                                    "router_jitter_noise",
                                                    "sep_token_id",
                                                    "task_specific_params",
                                                    "time_step_floor",
                                                    "time_step_limit",
                                                    "time_step_max",
                                                    "time_step_min",
                                                    "time_step_rank",
                                                    "tokenizer_class",
                                                    "torchscript",
                                                    "transformers_version",
                                                    "unk_token_id",
                                                    "use_bfloat16",
                                                    "use_cache",
                                                    "use_mamba_kernels"};

// What other programs call a field, and what transformers calls it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 32> kOtherNames = {{
    {"d_model", "hidden_size"},
    {"dim", "hidden_size"},
    {"hidden_dim", "hidden_size"},
    {"n_layer", "num_hidden_layers"},
    {"n_layers", "num_hidden_layers"},
    {"num_layers", "num_hidden_layers"},
    {"n_head", "num_attention_heads"},
    {"n_heads", "num_attention_heads"},
    {"num_heads", "num_attention_heads"},
    {"kv_heads", "num_key_value_heads"},
    {"n_kv_heads", "num_key_value_heads"},
    {"num_kv_heads", "num_key_value_heads"},
    {"num_query_groups", "num_key_value_heads"},
    {"d_head", "head_dim"},
    {"head_size", "head_dim"},
    {"kv_channels", "head_dim"},
    {"d_ff", "intermediate_size"},
    {"ffn_dim", "intermediate_size"},
    {"ffn_hidden_size", "intermediate_size"},
    {"moe_ffn_hidden_size", "moe_intermediate_size"},
    {"max_seq_len", "max_position_embeddings"},
    {"max_sequence_length", "max_position_embeddings"},
    {"seq_length", "max_position_embeddings"},
    {"n_experts", "num_experts"},
    {"moe_num_experts", "num_experts"},
    {"moe_top_k", "num_experts_per_tok"},
    {"num_experts_per_token", "num_experts_per_tok"},
    {"top_k_experts", "num_experts_per_tok"},
    {"window_size", "sliding_window"},
    {"tie_embeddings", "tie_word_embeddings"},
    {"tied_embeddings", "tie_word_embeddings"},
    {"padded_vocab_size", "vocab_size"},
}};

bool contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string letters_of(std::string_view key) {
  std::string letters;
  for (const char c : key) {
    if (c == '_' || c == '-' || c == ' ') continue;
    letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return letters;
}

// Whether the two are alike but for two letters in one place that are left out, added, swapped or replaced.
// Names of fewer than kShortest letters must be equal: two other letters make another word of them. Both
// numbers are chosen.
bool is_slip(std::string_view written, std::string_view meant) {
  constexpr std::size_t kLetters = 2, kShortest = 6;
  std::string a = letters_of(written), b = letters_of(meant);
  if (std::min(a.size(), b.size()) < kShortest) return a == b;
  const auto head = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  a.erase(a.begin(), head.first), b.erase(b.begin(), head.second);
  const auto tail = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<std::size_t>(a.rend() - tail.first) <= kLetters &&
         static_cast<std::size_t>(b.rend() - tail.second) <= kLetters;
}

}  // namespace

bool is_read_key(std::string_view key) { return contains(kRead, key) || is_key_of_other_kind(key); }

bool is_idle_key(std::string_view key) { return key.starts_with('_') || contains(kIdle, key); }

std::string meant_key(std::string_view key) {
  if (is_read_key(key) || is_idle_key(key)) return "";
  for (const auto& [other, meant] : kOtherNames) {
    if (letters_of(other) == letters_of(key)) return std::string(meant);
  }
  const auto meant =
      std::find_if(kRead.begin(), kRead.end(), [&](std::string_view read) { return is_slip(key, read); });
  return meant == kRead.end() ? "" : std::string(*meant);
}

}  // namespace cp::sim
