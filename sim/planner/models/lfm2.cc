#include "sim/planner/models/lfm2.h"

#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

constexpr const char* kTypes = "layer_types";
constexpr const char* kIndices = "full_attn_idxs";

bool has_experts(const Family& family) { return family.model_type == "lfm2_moe"; }

// Of lfm2 alone.
constexpr const char* kWidthKeys[] = {"block_ff_dim", "block_auto_adjust_ff_dim", "block_multiple_of",
                                      "block_ffn_dim_multiplier"};

std::vector<Mixer> mixers_of_types(const std::vector<std::string>& types, ConfigFields& fields) {
  std::vector<Mixer> mixers;
  for (const std::string& type : types) {
    if (type != "conv" && type != "full_attention") {
      fields.fail(str(kTypes, " has \"", type, "\" for layer ", mixers.size(),
                      "; what is described is conv and full_attention"));
      return {};
    }
    mixers.push_back(type == "conv" ? Mixer::convolution : Mixer::attention);
  }
  return mixers;
}

std::vector<Mixer> mixers_of_indices(std::int64_t layers, ConfigFields& fields) {
  std::vector<Mixer> mixers(idx(layers), Mixer::convolution);
  for (const std::int64_t layer : fields.wholes(kIndices)) {
    if (layer >= layers) {
      fields.fail(str(kIndices, " has layer ", layer, ", and num_hidden_layers is ", layers, "; use 0 to ",
                      layers - 1));
      return {};
    }
    mixers[idx(layer)] = Mixer::attention;
  }
  return mixers;
}

std::string text_of(const std::vector<Mixer>& mixers) {
  std::vector<std::size_t> attention;
  for (std::size_t layer = 0; layer < mixers.size(); ++layer) {
    if (mixers[layer] == Mixer::attention) attention.push_back(layer);
  }
  return str("[", join(attention, ", "), "]");
}

// Of a width that Transformers' MLP takes as it is, or two thirds of it.
std::int64_t adjusted(std::int64_t width, ConfigFields& fields) {
  if (!fields.flag("block_auto_adjust_ff_dim").value_or(true)) return width;
  const std::int64_t two_thirds = 2 * width / 3;
  const char* key = "block_ffn_dim_multiplier";
  if (fields.mentions(key) && !fields.has(key)) return two_thirds;  // null, with which nothing is rounded
  const double multiplier = fields.number(key).value_or(1);
  const std::int64_t multiple = fields.size("block_multiple_of").value_or(256);
  const double multiplied = multiplier * static_cast<double>(two_thirds);
  constexpr double kMost = 0x1p31;  // as validate_model()
  if (multiplied < 1 || multiplied > kMost) {
    fields.fail(str(key, "=", multiplier, " makes ", multiplied, " of two thirds of a width of ", width,
                    "; a width is 1 to ", static_cast<std::int64_t>(kMost), ": use a multiplier near 1"));
    return 1;
  }
  return (static_cast<std::int64_t>(multiplied) + multiple - 1) / multiple * multiple;
}

void require_equal(const char* key, const char* other, std::int64_t expected, ConfigFields& fields) {
  const std::int64_t value = fields.whole(key).value_or(expected);
  if (value != expected)
    fields.fail(str(key, "=", value, " is not ", other, "=", expected,
                    ", which Transformers take in its place; leave it out, or make it ", expected));
}

}  // namespace

std::vector<Family> lfm2_families() {
  Family lfm2;
  lfm2.model_type = "lfm2";
  lfm2.known = lfm2.convolves = lfm2.qk_norm = lfm2.tied_embeddings = true;
  lfm2.rotary_theta = 1e6, lfm2.norm_eps = 1e-5;
  lfm2.q_heads = 32, lfm2.kv_heads = 8, lfm2.vocab = 65'536, lfm2.max_seq_len = 128'000;
  // Those that are read here and nowhere else, those that must say what layers do, and what weights a
  // training begins with.
  lfm2.idle_keys = {"conv_L_cache",
                    "conv_bias",
                    "full_attn_idxs",
                    "tie_embedding",
                    "block_dim",
                    "block_norm_eps",
                    "block_use_swiglu",
                    "conv_dim",
                    "conv_dim_out",
                    "num_heads",
                    "theta",
                    "use_pos_enc",
                    "block_mlp_init_scale",
                    "block_out_init_scale",
                    "block_use_xavier_init",
                    "conv_use_xavier_init"};
  Family moe = lfm2;
  moe.model_type = "lfm2_moe";
  moe.sigmoid_router = moe.corrects_scores = true;
  moe.experts_per_token = 4;
  moe.first_dense_key = "num_dense_layers", moe.first_dense = 2;
  moe.idle_keys.insert(moe.idle_keys.end(), {"num_dense_layers", "use_expert_bias"});
  lfm2.idle_keys.insert(lfm2.idle_keys.end(), std::begin(kWidthKeys), std::end(kWidthKeys));
  return {lfm2, moe};
}

ShortConvolution lfm2_convolution(ConfigFields& fields) {
  ShortConvolution convolution;
  if (const auto taps = fields.size("conv_L_cache"))
    convolution.taps = *taps;
  else if (!fields.has("conv_L_cache"))
    fields.assume(str("conv_L_cache is missing, so ", convolution.taps, " is taken, as usual in LFM2"));
  convolution.bias = fields.flag("conv_bias").value_or(false);
  return convolution;
}

std::vector<Mixer> lfm2_mixers(const Family& family, ConfigFields& fields, std::int64_t layers) {
  const std::vector<std::string> types = fields.words(kTypes);
  const bool has_types = !types.empty(), has_indices = fields.has(kIndices);
  if (fields.failed()) return {};
  if (!has_types && !has_indices) {
    if (has_experts(family)) {
      fields.fail(
          str(kTypes, " is missing; list conv or full_attention for each of the ", layers, " layers"));
      return {};
    }
    fields.assume(str(kTypes, " and ", kIndices, " are missing, so all layers attend, and none convolves"));
    return std::vector<Mixer>(idx(layers), Mixer::attention);
  }
  if (has_types && static_cast<std::int64_t>(types.size()) != layers) {
    fields.fail(str(kTypes, " has ", types.size(), " entries, and num_hidden_layers is ", layers,
                    "; list one for each layer"));
    return {};
  }
  const std::vector<Mixer> of_types = has_types ? mixers_of_types(types, fields) : std::vector<Mixer>(),
                           of_indices =
                               has_indices ? mixers_of_indices(layers, fields) : std::vector<Mixer>();
  if (fields.failed()) return {};
  if (has_types && has_indices && of_types != of_indices)
    fields.fail(str(kIndices, " is ", text_of(of_indices), ", and by ", kTypes, " the layers ",
                    text_of(of_types), " attend; leave one of the two out"));
  return has_types ? of_types : of_indices;
}

std::int64_t lfm2_intermediate(ConfigFields& fields) {
  constexpr const char *kOwn = "block_ff_dim", *kUsual = "intermediate_size";
  if (!fields.has(kOwn))
    return adjusted(fields.required_size(kUsual, "the width that the MLP's own is made of"), fields);
  const std::int64_t own = fields.size(kOwn).value_or(1), usual = fields.size(kUsual).value_or(own);
  if (own != usual)
    fields.assume(str(kOwn, " is ", own, " and ", kUsual, " ", usual, ", of which ", kOwn,
                      " is taken, as Transformers do"));
  return adjusted(own, fields);
}

bool lfm2_ties_embeddings(const Family& family, ConfigFields& fields) {
  const std::optional<bool> own = fields.flag("tie_embedding"), usual = fields.flag("tie_word_embeddings");
  if (own && usual && *own != *usual)
    fields.assume(str("tie_embedding is ", *own ? "true" : "false", " and tie_word_embeddings ",
                      *usual ? "true" : "false", ", of which tie_embedding is taken, as Transformers do"));
  if (!own && !usual)
    fields.assume(str("tie_word_embeddings is missing, so ", family.tied_embeddings ? "true" : "false",
                      " is taken, as usual in ", family.model_type));
  return own.value_or(usual.value_or(family.tied_embeddings));
}

void refuse_other_lfm2(const Family& family, const Transformer& model, ConfigFields& fields) {
  const std::string& type = family.model_type;
  if (!fields.failed()) {
    for (const char* key : {"block_dim", "conv_dim", "conv_dim_out"})
      require_equal(key, "hidden_size", model.hidden, fields);
    require_equal("num_heads", "num_attention_heads", model.q_heads, fields);
  }
  for (const auto& [key, what] : {std::pair{"block_use_swiglu", "an MLP without a gate"},
                                  std::pair{"use_pos_enc", "attention without rotary positions"}}) {
    if (fields.flag(key).value_or(true)) continue;
    fields.fail(str(key, " is false, and ", what, " is not described of ", type,
                    ", as Transformers have none; leave it out"));
  }
  for (const auto& [key, other, usual] : {std::tuple{"block_norm_eps", "norm_eps", family.norm_eps},
                                          std::tuple{"theta", "rope_theta", family.rotary_theta}}) {
    const std::optional<double> own = fields.number(key);
    const double read = fields.number(other).value_or(usual);
    if (own && *own != read && !fields.has("rope_parameters"))
      fields.assume(str(key, " is ", *own, " and ", other, " ", read, ", of which ", other,
                        " is taken, as Transformers do"));
  }
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string word = fields.text_of(key);
    if (!word.empty() && word != "\"silu\"" && word != "\"swish\"")
      fields.fail(str(key, " is ", word, ", and MLPs of ", type, " have silu; leave it out"));
  }
  for (const char* key : {"attention_bias", "qkv_bias", "mlp_bias"}) {
    if (fields.text_of(key) == "true")
      fields.fail(str(key, " is true, and ", type, " has no such biases; leave it out, or make it false"));
  }
  for (const char* key : {"sliding_window", "attention_chunk_size"}) {
    if (fields.has(key))
      fields.fail(str(key, " is ", fields.text_of(key), ", and all layers of ", type,
                      " that attend see all keys; leave it out"));
  }
  // Of other families, which are read of them.
  for (const char* key :
       {"n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace",
        "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers", "moe_layers", "interleave_moe_layer_step",
        "n_group", "topk_group", "scoring_func", "topk_method", "qk_norm", "use_qk_norm", "no_rope_layers",
        "no_rope_layer_interval"}) {
    const std::string value = fields.text_of(key);
    if (!value.empty() && value != "0" && value != "[]" && value != "null")
      fields.fail(str(key, " is ", value, ", and Transformers read no such key of ", type,
                      ", whose layers are as they are; leave it out"));
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const std::string count = fields.text_of(key);
    if (!has_experts(family) && !count.empty() && count != "0")
      fields.fail(
          str(key, " is ", count, ", and lfm2 has no experts; set model_type to lfm2_moe, or leave it out"));
  }
  if (!has_experts(family)) return;
  if (const std::string count = fields.text_of("num_experts"); count.empty() || count == "0")
    fields.fail(str("num_experts, how many experts a layer has, is ", count.empty() ? "missing" : "0",
                    ", and lfm2_moe has some; add it, as 32, or set model_type to lfm2"));
  if (!fields.has("moe_intermediate_size"))
    fields.required_size("moe_intermediate_size", "the width inside each expert");
}

void set_lfm2_sizes(nlohmann::ordered_json& config, const Transformer& model) {
  for (const auto& [key, size] :
       {std::pair{"block_dim", model.hidden}, std::pair{"conv_dim", model.hidden},
        std::pair{"conv_dim_out", model.hidden}, std::pair{"num_heads", model.q_heads},
        std::pair{"block_ff_dim", model.intermediate}}) {
    if (config.contains(key)) config[key] = size;
  }
  if (config.value("model_type", "") == "lfm2") config["block_auto_adjust_ff_dim"] = false;
  if (!config.contains(kIndices) || !config[kIndices].is_array()) return;
  nlohmann::ordered_json indices = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.kinds[idx(model.kind_of(layer))].mixer == Mixer::attention) indices.push_back(layer);
  }
  config[kIndices] = indices;
}

}  // namespace cp::sim
