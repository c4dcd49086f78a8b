#include "sim/planner/models/model_reader.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/models/config_fields.h"
#include "sim/planner/models/families.h"
#include "sim/planner/models/layer_list.h"
#include "sim/planner/models/lfm2.h"
#include "sim/planner/models/rope_fields.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;

class ModelReader {
 public:
  ModelReader(const nlohmann::json& config, const std::string& filename) : fields_(config, filename) {}

  ReadModel read(const std::string& name) {
    family_ = family_of(fields_.word("model_type").value_or(""));
    refuse_other_kinds(family_, fields_);
    fields_.raise();
    note_family();
    read_.model.name = name;
    take_sizes();
    take_heads();
    take_recurrence();
    take_convolution();
    take_mlp();
    take_layers();
    take_biases();
    take_rest_of_recurrence();
    take_cuts_and_slopes();
    take_dropout();
    take_scores();
    take_numerics();
    take_rest_of_norms();
    take_tied();
    take_storage();
    take_prediction_heads();
    if (!family_.left_out.empty())
      fields_.assume(
          str("of model_type ", family_.model_type, " is neither counted nor timed: ", family_.left_out));
    fields_.raise();
    fields_.look_at_other_keys(family_.idle_keys);
    read_.assumptions = fields_.assumptions();
    read_.warnings = fields_.warnings();
    return std::move(read_);
  }

 private:
  void note_family() {
    if (family_.known) return;
    const std::string said = family_.model_type.empty()
                                 ? std::string("model_type is missing")
                                 : str("model_type \"", family_.model_type, "\" is not known");
    fields_.warn(
        str(said, ", so its layers are taken as llama's, with two norms and an MLP of three matrices"));
    if (!family_.model_type.empty()) read_.not_computed.push_back(said);
  }

  void take_sizes() {
    Transformer& model = read_.model;
    model.hidden = fields_.required_size("hidden_size", "the width of what layers hand on");
    // Transformers 5 save Nemotron-H with the list of its layers alone.
    const std::vector<std::string> listed = fields_.words("layers_block_type");
    model.layers = listed.empty() || fields_.has("num_hidden_layers")
                       ? fields_.required_size("num_hidden_layers", "how many layers there are")
                       : std::ssize(listed);
    model.vocab = size_or("vocab_size", "how many tokens there are", family_.vocab);
    model.max_seq_len = fields_.whole("max_position_embeddings").value_or(family_.max_seq_len.value_or(0));
    if (!fields_.has("max_position_embeddings") && !family_.max_seq_len) {
      fields_.assume("max_position_embeddings is missing, so a sequence may have any length");
    }
  }

  // A size that must be there, unless the family has a usual one.
  std::int64_t size_or(const char* key, const char* meaning, const std::optional<std::int64_t>& usual) {
    if (fields_.mentions(key) || !usual) return fields_.required_size(key, meaning);
    fields_.assume(str(key, " is missing, so ", *usual, " is taken, the default of ", family_.model_type));
    return *usual;
  }

  void take_heads() {
    Transformer& model = read_.model;
    model.q_heads = size_or("num_attention_heads", "how many heads queries have", family_.q_heads);
    if (fields_.whole("kv_lora_rank").value_or(0) > 0) {
      take_latent();
      return;
    }
    model.kv_heads = fields_.size("num_key_value_heads").value_or(family_.kv_heads.value_or(model.q_heads));
    if (fields_.failed()) return;
    if (!fields_.has("num_key_value_heads") && !family_.kv_heads) {
      // Other programs' files call the field so. If we took it as missing, a model without grouping would be
      // planned.
      for (const char* other : {"num_kv_heads", "n_kv_heads", "num_query_groups", "kv_heads"}) {
        if (!fields_.has(other)) continue;
        fields_.fail(str(other, " is not read; did you mean num_key_value_heads?"));
        return;
      }
      fields_.assume(str("num_key_value_heads is missing, so ", model.q_heads,
                         " is taken, as num_attention_heads (no grouping)"));
    }
    if (model.q_heads % model.kv_heads != 0) {
      std::int64_t nearest = model.kv_heads;
      while (model.q_heads % nearest != 0) --nearest;
      fields_.fail(str("num_key_value_heads=", model.kv_heads, " does not divide num_attention_heads=",
                       model.q_heads, "; the nearest one below that does is ", nearest));
    }
    take_head_dim();
  }

  // Keys and values are made for each head, whatever num_key_value_heads says.
  void take_latent() {
    Transformer& model = read_.model;
    Latent latent;
    latent.kv_rank = fields_.size("kv_lora_rank").value_or(1);
    latent.q_rank = fields_.whole("q_lora_rank").value_or(0);
    latent.rope_dim =
        fields_.required_size("qk_rope_head_dim", "how much of a head of queries and keys is rotated");
    latent.v_head_dim = fields_.required_size("v_head_dim", "the width of a head's values");
    const std::int64_t others =
        fields_.required_size("qk_nope_head_dim", "how much of a head of queries and keys is not rotated");
    if (fields_.failed()) return;
    model.kv_heads = model.q_heads, model.head_dim = others + latent.rope_dim, model.latent = latent;
  }

  void take_recurrence() {
    if (!family_.recurrence) return;
    Recurrence& recurrence = read_.model.recurrence.emplace();
    recurrence.rule = *family_.recurrence;
    if (recurrence.rule == RecurrenceRule::delta) {
      recurrence.key_heads = fields_.required_size("linear_num_key_heads", "heads of a recurrence's keys");
      recurrence.value_heads =
          fields_.required_size("linear_num_value_heads", "heads of a recurrence's values");
      recurrence.key_dim = fields_.required_size("linear_key_head_dim", "the width of such a key");
      recurrence.value_dim = fields_.required_size("linear_value_head_dim", "the width of such a value");
      recurrence.convolution = fields_.size("linear_conv_kernel_dim").value_or(recurrence.convolution);
    } else {
      recurrence.key_heads = fields_.size("n_groups").value_or(8);
      recurrence.value_heads = fields_.required_size("mamba_num_heads", "heads of a recurrence's values");
      recurrence.key_dim = fields_.required_size("ssm_state_size", "the width of a recurrence's keys");
      recurrence.value_dim = fields_.required_size("mamba_head_dim", "the width of a recurrence's values");
      recurrence.convolution = fields_.size("conv_kernel").value_or(recurrence.convolution);
      recurrence.convolution_bias = fields_.flag("use_conv_bias").value_or(true);
    }
    if (fields_.failed() || recurrence.value_heads % recurrence.key_heads == 0) return;
    std::int64_t nearest = recurrence.key_heads;
    while (recurrence.value_heads % nearest != 0) --nearest;
    fields_.fail(str("the ", recurrence.key_heads, " key heads of recurrences do not divide their ",
                     recurrence.value_heads, " value heads; the nearest number below that does is ",
                     nearest));
  }

  void take_convolution() {
    if (!family_.convolves) return;
    refuse_other_lfm2(family_, read_.model, fields_);
    read_.model.convolution = lfm2_convolution(fields_);
  }

  void take_head_dim() {
    Transformer& model = read_.model;
    std::optional<std::int64_t> given = fields_.size("head_dim");
    if (!given) given = fields_.size("attention_head_dim");
    if (given || fields_.failed()) {
      model.head_dim = given.value_or(1);
    } else if (family_.head_dim) {
      model.head_dim = *family_.head_dim;
      fields_.assume(
          str("head_dim is missing, so ", model.head_dim, " is taken, the default of ", family_.model_type));
    } else if (model.hidden % model.q_heads != 0) {
      fields_.fail(str("head_dim is missing, and hidden_size=", model.hidden,
                       " is not divisible by num_attention_heads=", model.q_heads,
                       ", which would give it; add head_dim"));
    } else {
      model.head_dim = model.hidden / model.q_heads;
      fields_.assume(
          str("head_dim is missing, so ", model.head_dim, " is taken, hidden_size / num_attention_heads"));
    }
  }

  void take_mlp() {
    Transformer& model = read_.model;
    const std::int64_t experts = take_expert_count();
    if (experts == 0) {
      model.intermediate = family_.convolves
                               ? lfm2_intermediate(fields_)
                               : fields_.required_size("intermediate_size", "the width inside the MLP");
      return;
    }
    model.intermediate = fields_.size("intermediate_size").value_or(0);
    model.experts = Experts{experts, take_top_k(experts), 0, 0};
    model.experts->biases = family_.expert_biases;
    model.experts->corrects_scores = family_.corrects_scores;
    if (family_.convolves)
      model.experts->corrects_scores = fields_.flag("use_expert_bias").value_or(family_.corrects_scores);
    if (const auto word = fields_.word("topk_method")) model.experts->corrects_scores = *word == "noaux_tc";
    model.experts->intermediate =
        fields_.has("moe_intermediate_size")
            ? fields_.size("moe_intermediate_size").value_or(1)
            : fields_.required_size("intermediate_size", "the width inside each expert");
    // Llama 4 says how wide its layers without experts are under a name of its own.
    if (fields_.has("intermediate_size_mlp"))
      model.intermediate = fields_.size("intermediate_size_mlp").value_or(1);
    take_shared_experts();
    model.experts->shared_gate = family_.shared_gate && model.experts->shared > 0;
  }

  // The width of all shared experts together, which one MLP computes. Configs say it outright, or how many
  // there are, each as wide as the others.
  void take_shared_experts() {
    Experts& experts = *read_.model.experts;
    if (const auto width = fields_.whole("shared_expert_intermediate_size"); width.value_or(0) > 0) {
      experts.shared = *width;
      return;
    }
    std::int64_t count = family_.shared_experts;
    if (const auto width = fields_.whole("moe_shared_expert_intermediate_size"); width.value_or(0) > 0) {
      experts.shared = *width;
      return;
    }
    for (const char* key : {"n_shared_experts", "num_shared_experts"})
      count = fields_.whole(key).value_or(count);
    if (count > kMostLayers) {
      fields_.fail(str(count, " shared experts are more than ", kMostLayers,
                       "; give their width as "
                       "shared_expert_intermediate_size"));
      return;
    }
    experts.shared = count * experts.intermediate;
  }

  // Returns 0 for a model without experts.
  std::int64_t take_expert_count() {
    std::string from;
    std::int64_t experts = 0;
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
      const std::int64_t count = fields_.whole(key).value_or(0);
      if (count == 0) continue;
      if (experts != 0 && count != experts) {
        fields_.fail(str(from, "=", experts, " and ", key, "=", count, " disagree; leave one out"));
      }
      from = key, experts = count;
    }
    return experts;
  }

  std::int64_t take_top_k(std::int64_t experts) {
    if (!fields_.has("num_experts_per_tok") && family_.experts_per_token) {
      fields_.assume(str("num_experts_per_tok is missing, so ", *family_.experts_per_token,
                         " is taken, the default of ", family_.model_type));
      return *family_.experts_per_token;
    }
    const std::int64_t top_k =
        fields_.required_size("num_experts_per_tok", "how many experts each token goes to");
    if (top_k > experts) {
      fields_.fail(str("num_experts_per_tok=", top_k, " is more than the ", experts,
                       " experts of a layer; use at most ", experts));
    }
    return top_k;
  }

  void take_layers() {
    const std::int64_t layers = read_.model.layers;
    if (fields_.failed() || layers > kMostLayers) return;  // validate_model() refuses so many
    Transformer& model = read_.model;
    std::vector<LayerKind> kinds = layers_of_config(family_, fields_, layers, model.experts.has_value());
    // A config may say how many experts there are, and have no layer with any.
    const bool has_experts =
        model.experts && std::any_of(kinds.begin(), kinds.end(),
                                     [](const LayerKind& kind) { return kind.has_mlp && !kind.dense; });
    if (!has_experts) {
      model.experts.reset();
      for (LayerKind& kind : kinds) kind.dense = false;
    }
    set_layers(model, kinds);
    forget_unused_mixers(model);
    if (model.has(Mlp::dense) && model.intermediate == 0)
      fields_.required_size("intermediate_size", "the width of the MLP in layers without experts");
  }

  void take_biases() {
    const bool all = fields_.flag("attention_bias").value_or(false);
    read_.model.qkv_bias = family_.qkv_bias || all || fields_.flag("qkv_bias").value_or(false);
    read_.model.norms_before = family_.norms_before, read_.model.norms_behind = family_.norms_behind;
    read_.model.parallel_blocks = family_.parallel_blocks;
    read_.model.gated_attention = family_.gated_attention, read_.model.gated_mlp = family_.gated_mlp;
    read_.model.qk_norm =
        fields_.flag("qk_norm").value_or(fields_.flag("use_qk_norm").value_or(family_.qk_norm));
    read_.model.qk_norm_of_all_heads = read_.model.qk_norm && family_.qk_norm_of_all_heads;
    read_.model.qk_norm_behind_rotary = read_.model.qk_norm && family_.qk_norm_behind_rotary;
    read_.model.out_bias = all && !family_.qkv_bias && !family_.bias_of_qkv_alone;
    for (const auto& [key, whose] :
         {std::pair{"use_bias", "the projections of recurrences"},
          std::pair{"mamba_proj_bias", "the projections of recurrences"}, std::pair{"mlp_bias", "the MLP"}}) {
      if (!fields_.flag(key).value_or(false)) continue;
      const std::string what = str(key, " is true: the biases of ", whose, " are not counted");
      fields_.assume(what);
      read_.not_computed.push_back(what);
    }
  }

  // What other families do to rows and scores: rows of q, k and v that are cut off at a value, and scores
  // that fall with the distance of a key.
  void take_cuts_and_slopes() {
    for (const char* key : {"clip_qkv", "alibi"}) {
      const std::string text = fields_.text_of(key);
      if (!text.empty() && text != "false") take_without(str(key, " ", text, " is not described"));
    }
  }

  // Whether a training drops weights of attention is said with it, not by the config that it begins with.
  void take_dropout() {
    for (const char* key : {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"}) {
      if (!fields_.has(key)) continue;
      const double share = fields_.number(key).value_or(0);
      if (share <= 0) continue;
      fields_.assume(str(key, " of the config is ", share,
                         std::string_view(key) == "attention_dropout"
                             ? ": steps of training have the one that is asked for, or none"
                             : ": steps are planned, and trained, without it"));
    }
  }

  // What no kernel does of a recurrence: another activation behind its convolution, and time steps that are
  // kept within bounds.
  void take_rest_of_recurrence() {
    if (!read_.model.recurrence) return;
    const std::string activation = fields_.word("mamba_hidden_act").value_or("silu");
    if (activation != "silu" && activation != "swish")
      take_without(str("mamba_hidden_act \"", activation, "\" is not described; silu is"));
    const char* key = "time_step_limit";
    // Infinity is null here (read_model.cc); Transformers 5 write it as an object.
    static constexpr std::string_view kNone[] = {"", "[0.0,null]", "[0,null]",
                                                 R"([0.0,{"__float__":"Infinity"}])"};
    const std::string limit = fields_.text_of(key);
    if (std::find(std::begin(kNone), std::end(kNone), limit) == std::end(kNone))
      take_without(str(key, " ", limit, " is not described; time steps from 0 to Infinity are"));
  }

  void take_scores() {
    Transformer& model = read_.model;
    model.sinks = family_.sinks;
    const char* key = "attn_logit_softcapping";
    model.softcap = fields_.mentions(key) ? fields_.number(key).value_or(0) : family_.softcap;
    if (!fields_.mentions(key) && model.softcap > 0)
      fields_.assume(
          str(key, " is missing, so ", model.softcap, " is taken, the default of ", family_.model_type));
    if (model.softcap > 0)
      fields_.assume(str("scores are capped at ", model.softcap, " in the plans (", key,
                         "), and timed as if they were not"));
    if (const double cap = fields_.number("final_logit_softcapping").value_or(0); cap > 0)
      fields_.assume(str("logits are capped at ", cap,
                         " in the plans (final_logit_softcapping), and timed as if they were not"));
  }

  // What results depend on, and no time; what transformers' classes take where a key is missing.
  void take_numerics() {
    Transformer& model = read_.model;
    Numerics& numerics = model.numerics;
    numerics.norm_eps = family_.norm_eps;
    for (const char* key : {"rms_norm_eps", "layer_norm_epsilon", "norm_eps"})
      numerics.norm_eps = fields_.number(key).value_or(numerics.norm_eps);
    if (family_.norm_centered)
      numerics.norm_eps = fields_.number("layer_norm_eps").value_or(numerics.norm_eps);
    take_rotary();
    numerics.norm_unit_offset = family_.norm_unit_offset, numerics.norm_centered = family_.norm_centered;
    if (family_.logit_scale != 1)  // no other class reads it
      numerics.logit_scale = fields_.number("logit_scale").value_or(family_.logit_scale);
    if (family_.gemma_numerics) numerics.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
    numerics.logit_softcap = fields_.number("final_logit_softcapping").value_or(0);
    if (family_.gemma_numerics) numerics.activation = ActivationFunction::gelu_tanh;
    if (!model.gated_mlp) numerics.activation = ActivationFunction::relu2;  // of nemotron
    for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act"}) {
      if (const auto word = fields_.word(key)) take_activation(key, *word);
    }
    if (family_.limits_activation) take_limits();
    if (family_.tunes_temperature) take_temperature();
    numerics.weighs_expert_inputs = family_.weighs_expert_inputs;
    RouterRule& router = numerics.router;
    router.sigmoid = family_.sigmoid_router;
    if (const auto word = fields_.word("scoring_func")) router.sigmoid = *word == "sigmoid";
    router.normalized = fields_.flag("norm_topk_prob").value_or(family_.normalized_router);
    router.scale = fields_.number("routed_scaling_factor").value_or(router.scale);
    router.groups = fields_.size("n_group").value_or(router.groups);
    router.top_groups = fields_.size("topk_group").value_or(router.groups);
  }

  // Norms of Nemotron add biases, and those of Cohere's q and k have weights of their own for each head.
  void take_rest_of_norms() {
    if (family_.norm_biases) leave_out("biases of norms");
    if (family_.norm_centered && read_.model.qk_norm)
      leave_out("of use_qk_norm, the weights of all heads but one");
  }

  // hidden_act says "silu" of what is x sigmoid(alpha x) (gpt-oss).
  void take_limits() {
    Numerics& numerics = read_.model.numerics;
    numerics.activation = ActivationFunction::quick_gelu;
    numerics.activation_limit = fields_.number("swiglu_limit").value_or(7);
    numerics.up_offset = 1;
    constexpr double kAlpha = 1.702;  // of quick_gelu
    if (const double alpha = fields_.number("swiglu_alpha").value_or(kAlpha); alpha != kAlpha)
      fields_.fail(str("swiglu_alpha ", alpha,
                       ": what is described is x sigmoid(1.702 x); the nearest thing is ", "swiglu_alpha ",
                       kAlpha));
  }

  // Configs say whether by true, or by a number.
  void take_temperature() {
    const std::string tuned = fields_.text_of("attn_temperature_tuning");
    if (tuned == "false" || tuned == "0") return;
    QueryTemperature& temperature = read_.model.numerics.temperature;
    temperature.scale = fields_.number("attn_scale").value_or(0.1);
    temperature.floor = fields_.number("floor_scale").value_or(temperature.floor);
  }

  void take_rotary() {
    Transformer& model = read_.model;
    Numerics& numerics = model.numerics;
    RopeFields rope = rope_of_config(family_, fields_);
    numerics.rotary = rope.rotary;
    const bool windows = std::any_of(model.kinds.begin(), model.kinds.end(),
                                     [](const LayerKind& kind) { return kind.window.has_value(); });
    if (windows && rope.window && *rope.window != rope.rotary) numerics.window_rotary = rope.window;
    // Of latent attention pairs are neighbouring columns.
    numerics.interleaved_rotary =
        fields_.flag("rope_interleave").value_or(model.latent.has_value() || family_.interleaved_rotary);
    take_rotary_share(rope);
    take_score_scale(rope);
    if (model.qk_norm_behind_rotary && numerics.rotary.magnitude != 1) {
      rope.not_computed.push_back(str("rotated rows ", numerics.rotary.magnitude,
                                      " times as large before the norms of q and k are not described"));
      numerics.rotary.magnitude = 1;
    }
    for (const std::string& what : rope.not_computed) take_without(what);
  }

  // What changes results alone is left out of plans for times and memory, and said.
  void take_without(const std::string& what) {
    fields_.assume(str(what, ". Plans are made without it: it changes neither times nor memory"));
    read_.not_computed.push_back(what);
  }

  // Parameters that are too few to matter for times and memory, and matter for results.
  void leave_out(const std::string& what) {
    fields_.assume(str("neither counted nor timed: ", what));
    read_.not_computed.push_back(str(what, " are not described"));
  }

  // Latent attention has the width of its rotated part instead.
  void take_rotary_share(const RopeFields& rope) {
    double& share = read_.model.numerics.rotary_share;
    share = fields_.number("partial_rotary_factor").value_or(rope.share.value_or(family_.rotary_share));
    if (share <= 1) return;
    fields_.assume(str("partial_rotary_factor ", share, " is above 1, so that all columns are rotated"));
    share = 1;
  }

  // Gemma 2 and 3 divide scores by the root of a number of their own, and not of head_dim.
  void take_score_scale(const RopeFields& rope) {
    const Transformer& model = read_.model;
    double& scale = read_.model.numerics.score_scale;
    if (model.latent) scale = rope.latent_score_scale;
    const char* key = "query_pre_attn_scalar";
    std::optional<double> scalar = fields_.number(key);
    if (!scalar) scalar = family_.query_pre_attn_scalar;
    if (!scalar || model.head_dim == 0) return;  // without a head_dim the config is at fault already
    if (*scalar == 0)
      fields_.fail(str(key, " is 0; scores are divided by its root: use a number above 0, as head_dim, ",
                       model.head_dim));
    else
      scale *= std::sqrt(static_cast<double>(model.head_dim) / *scalar);
  }

  void take_activation(const char* key, const std::string& word) {
    static constexpr std::pair<std::string_view, ActivationFunction> kKnown[] = {
        {"silu", ActivationFunction::silu},          {"swish", ActivationFunction::silu},
        {"gelu", ActivationFunction::gelu},          {"gelu_pytorch_tanh", ActivationFunction::gelu_tanh},
        {"gelu_new", ActivationFunction::gelu_tanh}, {"relu", ActivationFunction::relu},
        {"relu2", ActivationFunction::relu2}};
    for (const auto& [theirs, ours] : kKnown) {
      if (word == theirs) read_.model.numerics.activation = ours;
    }
    const bool known = std::any_of(std::begin(kKnown), std::end(kKnown),
                                   [&](const auto& each) { return word == each.first; });
    if (known) return;
    fields_.assume(str(key, " \"", word, "\" is not known: plans have silu in its place"));
    read_.not_computed.push_back(str(key, " \"", word, "\" is not known"));
  }

  void take_tied() {
    if (family_.convolves) {
      read_.model.tied_embeddings = lfm2_ties_embeddings(family_, fields_);
      return;
    }
    const std::optional<bool> tied = fields_.flag("tie_word_embeddings");
    read_.model.tied_embeddings = tied.value_or(family_.tied_embeddings);
    if (!fields_.has("tie_word_embeddings")) {
      fields_.assume(str("tie_word_embeddings is missing, so ", family_.tied_embeddings ? "true" : "false",
                         " is taken, as usual in ",
                         family_.model_type.empty() ? "llama" : family_.model_type));
    }
  }

  void take_prediction_heads() {
    read_.prediction_layers = fields_.whole(kPredictionLayersKey).value_or(0);
    if (read_.prediction_layers > 0) fields_.assume(left_out_predictions(read_.prediction_layers, 0));
  }

  void take_storage() {
    const char* key = fields_.has("torch_dtype") ? "torch_dtype" : "dtype";
    const std::string dtype = fields_.word(key).value_or("");
    for (const auto& [theirs, ours] :
         {std::pair{"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16}}) {
      if (dtype == theirs) read_.dtype = ours;
    }
    if (!dtype.empty() && !read_.dtype) {
      fields_.assume(str(key, " \"", dtype, "\" is not one of float32, float16, bfloat16, so it is ignored"));
    }
    if (fields_.has("quantization_config")) {
      fields_.assume("quantization_config is ignored: weights are taken as unquantized");
    }
  }

  ConfigFields fields_;
  Family family_;
  ReadModel read_;
};

}  // namespace

std::string left_out_predictions(std::int64_t has, std::int64_t planned) {
  return str(
      kPredictionLayersKey, " is ", has, ": ", planned == 0 ? "the" : str("but for ", planned, ", the"),
      " layers that predict further tokens (MTP) are neither counted nor timed; in training --mtp-layers ",
      has, " plans them");
}

ReadModel model_of(const nlohmann::json& config, const std::string& filename, const std::string& name) {
  constexpr const char* kLanguageModel = "text_config";
  const auto text = config.find(kLanguageModel);
  if (text == config.end() || !text->is_object()) return ModelReader(config, filename).read(name);
  // Of a model of several parts the language model is planned. What holds for all parts stands outside.
  nlohmann::json language_model = *text;
  for (const char* key : {"tie_word_embeddings", "torch_dtype", "dtype", "quantization_config"}) {
    if (config.contains(key) && !language_model.contains(key)) language_model[key] = config[key];
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && key.ends_with("_config") && key != kLanguageModel &&
        !language_model.contains(key))
      others.push_back(key);
  }
  ReadModel read = ModelReader(language_model, str(filename, ": ", kLanguageModel)).read(name);
  read.assumptions.push_back(
      str(kLanguageModel, " is planned, which is the language model",
          others.empty() ? "" : str("; neither counted nor timed: ", join(others, ", "))));
  return read;
}

}  // namespace cp::sim
