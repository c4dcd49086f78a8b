#include "sim/planner/models/families.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "shared/base/text.h"
#include "sim/planner/models/lfm2.h"

namespace cp::sim {
namespace {

// The defaults are those of transformers' configuration classes.
const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    const auto add = [&](const char* model_type) -> Family& {
      list.emplace_back().model_type = model_type;
      list.back().known = true;
      return list.back();
    };
    add("llama");
    add("mistral").window = 4096;
    Family& qwen2 = add("qwen2");
    qwen2.qkv_bias = qwen2.window_needs_flag = true;
    for (const char* model_type : {"qwen3", "qwen3_moe"}) {
      Family& qwen3 = add(model_type);
      qwen3.qk_norm = qwen3.window_needs_flag = true;
      qwen3.normalized_router = false;
    }
    std::find_if(list.begin(), list.end(), [](const Family& f) {
      return f.model_type == "qwen3";
    })->head_dim = 128;
    Family& mixtral = add("mixtral");
    mixtral.experts_per_token = 2, mixtral.rotary_theta = 1e6, mixtral.norm_eps = 1e-5;
    Family& gpt_oss = add("gpt_oss");
    gpt_oss.full_layer_every = 2, gpt_oss.rotary_theta = 150'000, gpt_oss.norm_eps = 1e-5;
    gpt_oss.sinks = gpt_oss.expert_biases = gpt_oss.limits_activation = true;
    add("phi3").norm_eps = 1e-5;  // and 4: one matrix for q, k and v, and one for gate and up
    Family& smollm3 = add("smollm3");
    smollm3.tied_embeddings = smollm3.window_needs_flag = true;
    smollm3.no_rope_every = 4, smollm3.rotary_theta = 2e6;
    Family& gemma2 = add("gemma2");
    gemma2.tied_embeddings = gemma2.norms_behind = gemma2.gemma_numerics = true;
    gemma2.norm_unit_offset = true, gemma2.query_pre_attn_scalar = 256;
    gemma2.full_layer_every = 2, gemma2.window = 4096, gemma2.softcap = 50;
    gemma2.head_dim = 256, gemma2.q_heads = 8, gemma2.kv_heads = 4;
    gemma2.vocab = 256'000, gemma2.max_seq_len = 8192;
    for (const char* model_type : {"gemma3_text", "gemma3"}) {
      Family& gemma3 = add(model_type);
      gemma3.qk_norm = gemma3.tied_embeddings = gemma3.gemma_numerics = true;
      gemma3.full_layer_every = 6, gemma3.window = 4096;
      gemma3.head_dim = 256, gemma3.q_heads = 8, gemma3.kv_heads = 4;
      gemma3.vocab = 262'208, gemma3.max_seq_len = 131'072;
      gemma3.norms_behind = gemma3.norm_unit_offset = true, gemma3.query_pre_attn_scalar = 256;
      gemma3.rotary_theta = 1e6, gemma3.window_rotary_theta = 10'000;
    }
    for (const char* model_type : {"llama4_text", "llama4"}) {
      Family& llama4 = add(model_type);
      llama4.no_rope_every = 4, llama4.chunk = 8192;
      llama4.qk_norm = llama4.qk_norm_behind_rotary = llama4.interleaved_rotary = true;
      llama4.tunes_temperature = true, llama4.rotary_theta = 500'000, llama4.norm_eps = 1e-5;
      llama4.shared_experts = 1, llama4.experts_per_token = 1;
      llama4.sigmoid_router = llama4.weighs_expert_inputs = true, llama4.normalized_router = false;
    }
    Family& glm4_moe = add("glm4_moe");
    glm4_moe.bias_of_qkv_alone = glm4_moe.sigmoid_router = glm4_moe.corrects_scores = true;
    glm4_moe.rotary_share = 0.5, glm4_moe.norm_eps = 1e-5;
    add("deepseek_v2").normalized_router = false;
    for (const char* model_type : {"deepseek_v3", "kimi_k2"}) {
      Family& deepseek_v3 = add(model_type);
      deepseek_v3.sigmoid_router = deepseek_v3.corrects_scores = true;
    }
    Family& qwen2_moe = add("qwen2_moe");
    qwen2_moe.qkv_bias = qwen2_moe.window_needs_flag = qwen2_moe.shared_gate = true;
    qwen2_moe.normalized_router = false;
    Family& qwen3_next = add("qwen3_next");
    qwen3_next.qk_norm = qwen3_next.gated_attention = qwen3_next.window_needs_flag = true;
    qwen3_next.recurrence = RecurrenceRule::delta, qwen3_next.full_layer_every = 4;
    qwen3_next.norm_unit_offset = true, qwen3_next.rotary_share = 0.25;
    qwen3_next.shared_gate = true;
    qwen3_next.left_out = "the layers that predict further tokens";
    Family& nemotron_h = add("nemotron_h");
    nemotron_h.gated_mlp = false, nemotron_h.recurrence = RecurrenceRule::decay;
    nemotron_h.rotary_share = 0, nemotron_h.sigmoid_router = nemotron_h.corrects_scores = true;
    nemotron_h.norm_eps = 1e-5;
    Family& nemotron = add("nemotron");
    nemotron.gated_mlp = false, nemotron.rotary_share = 0.5, nemotron.norm_eps = 1e-5;
    nemotron.norm_centered = nemotron.norm_unit_offset = nemotron.norm_biases = true;
    for (const char* model_type : {"cohere", "cohere2"}) {
      Family& cohere = add(model_type);
      cohere.parallel_blocks = cohere.tied_embeddings = cohere.interleaved_rotary = true;
      cohere.norm_centered = true, cohere.norm_eps = 1e-5, cohere.logit_scale = 0.0625;
      cohere.idle_keys = {"layer_switch",
                          "logit_scale",
                          "model_max_length",
                          "order_of_interleaved_layers",
                          "position_embedding_type",
                          "rotary_pct",
                          "use_embedding_sharing",
                          "use_gated_activation",
                          "use_parallel_embedding"};
      if (cohere.model_type == "cohere")
        cohere.rotary_theta = 500'000;
      else
        cohere.window = 4096, cohere.full_layer_every = 4, cohere.rope_in_windows_alone = true;
    }
    Family& olmo2 = add("olmo2");
    olmo2.qk_norm = olmo2.qk_norm_of_all_heads = true;
    olmo2.norms_before = false, olmo2.norms_behind = true, olmo2.norm_eps = 1e-5;
    for (Family& lfm2 : lfm2_families()) list.push_back(std::move(lfm2));
    return list;
  }();
  return all;
}

// A kind that no Transformer describes, known by a model_type that is one of `types` (or begins with it and
// "_"), or by one of `keys` that is there and neither 0, false nor empty.
struct OtherKind {
  std::vector<std::string_view> types;
  std::vector<const char*> keys;
  const char* reason;
  // Of other recurrences, and of other blocks whose parts take the same rows, than the families above have.
  bool recurrent = false, parallel = false;
};

const std::vector<OtherKind>& other_kinds() {
  static const std::vector<OtherKind> all = {
      {{"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "jamba", "zamba", "zamba2", "bamba",
        "falcon_h1", "recurrent_gemma", "granitemoehybrid", "kimi_linear", "minimax_text_01", "minimax_m1"},
       {"ssm_cfg", "state_size", "mamba_d_state", "mamba_expand", "linear_num_value_heads", "lru_width"},
       "of layers with a recurrent state, those of qwen3_next (gated delta nets) and of nemotron_h (Mamba-2) "
       "are described, and these are others; the nearest thing is one of the two, for example "
       "qwen3-next-80b-a3b",
       true},
      {{"deepseek_v32", "glm_moe_dsa"},
       {"index_topk"},
       "sparse attention, whose indexer chooses the keys that a query sees, is not described; the nearest "
       "thing is latent attention to all keys, for example deepseek-v3"},
      {{"longcat_flash"},
       {"zero_expert_num"},
       "layers with two attentions and experts that do nothing are not described; the nearest thing is "
       "latent attention with experts, for example deepseek-v3"},
      {{"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100", "encoder-decoder"},
       {"is_encoder_decoder", "num_decoder_layers", "decoder_layers"},
       "an encoder with a decoder that attends to it is not described; the nearest thing is a decoder alone, "
       "for example llama-2-7b"},
      {{"bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "deberta", "deberta-v2", "electra",
        "vit", "clip", "siglip"},
       {"type_vocab_size"},
       "an encoder, which writes no tokens, is not described; the nearest thing is a decoder of its sizes"},
      {{"gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2",
        "phi", "codegen"},
       {"n_embd", "n_inner"},
       "layers of this family, with learned positions, parallel blocks or biases everywhere, are not "
       "described; the nearest thing is a config of model_type nemotron, whose MLP has two matrices, too"},
      {{"cohere", "cohere2", "stablelm_epoch"},
       {"use_parallel_residual", "parallel_attn", "parallel_block", "use_parallel_block"},
       "blocks whose attention and MLP take the same rows, side by side, are read of model_type cohere and "
       "cohere2, where one norm is before both and the MLP is dense; the nearest thing is a config of one of "
       "these",
       false,
       true},
      {{"dbrx"},
       {"attn_config", "ffn_config", "moe_config"},
       "layers whose sizes stand in parts of a config of their own are not read; the nearest thing is a "
       "config with the same sizes under the keys of mixtral, such as num_local_experts and "
       "num_experts_per_tok"},
      {{"mllama", "mllama_text_model"},
       {"cross_attention_layers"},
       "layers that attend to another model's rows are not described; the nearest thing is the same number "
       "of layers that attend to their own, for example llama-3.1-70b"},
      {{"gemma3n", "gemma3n_text"},
       {"num_kv_shared_layers"},
       "layers that take the keys and values of another layer are not described; the nearest thing is a "
       "config of gemma3_text, whose layers all have their own"},
      {{"ernie4_5_moe"},
       {"moe_num_shared_experts", "moe_layer_start_index"},
       "experts under keys of this family's own are not read; the nearest thing is a config of glm4_moe, "
       "with n_routed_experts, n_shared_experts and first_k_dense_replace"},
      {{"nemotron-nas"},
       {"block_configs"},
       "layers of different sizes are not described; the nearest thing is a config whose layers are all as "
       "large as the mean, for example llama-3.1-70b"},
  };
  return all;
}

bool said(const ConfigFields& fields, const char* key) {
  constexpr std::array<std::string_view, 5> kNothing = {"", "0", "false", "[]", "{}"};
  const std::string text = fields.text_of(key);
  return std::find(kNothing.begin(), kNothing.end(), text) == kNothing.end();
}

}  // namespace

Family family_of(const std::string& model_type) {
  for (const Family& family : families()) {
    if (family.model_type == model_type) return family;
  }
  Family usual;
  usual.model_type = model_type;
  usual.tied_embeddings = model_type.starts_with("gemma");
  return usual;
}

bool is_key_of_other_kind(std::string_view key) {
  const auto is_key = [&](const char* other) { return key == other; };
  const auto& kinds = other_kinds();
  return std::any_of(kinds.begin(), kinds.end(), [&](const OtherKind& kind) {
    return std::any_of(kind.keys.begin(), kind.keys.end(), is_key);
  });
}

void refuse_other_kinds(const Family& family, ConfigFields& fields) {
  for (const OtherKind& kind : other_kinds()) {
    if ((kind.recurrent && family.recurrence) || (kind.parallel && family.parallel_blocks)) continue;
    std::vector<std::string> signs;
    const bool of_type = std::any_of(kind.types.begin(), kind.types.end(), [&](std::string_view type) {
      return family.model_type == type || family.model_type.starts_with(str(type, "_"));
    });
    if (!family.known && of_type) signs.push_back(str("model_type \"", family.model_type, '"'));
    for (const char* key : kind.keys) {
      if (said(fields, key)) signs.push_back(str(key, " ", fields.text_of(key)));
    }
    if (!signs.empty()) fields.fail(str(join(signs, ", "), ": ", kind.reason));
  }
}

}  // namespace cp::sim
