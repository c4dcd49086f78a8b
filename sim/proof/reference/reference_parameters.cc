#include "sim/proof/reference/reference_parameters.h"

#include <cmath>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/text.h"
#include "sim/proof/run/input_values.h"

namespace cp::sim {
namespace {

constexpr std::string_view kCorrection = "e_score_correction_bias";

// How the values of a parameter are drawn.
enum class Draw { matrix, near_one, near_zero, log_rate, time_step_bias };

struct Parameter : ParameterShape {
  Draw draw;
};

class ParameterList {
 public:
  explicit ParameterList(const Transformer& model) : model_(model) {
    matrix("model.embed_tokens.weight", model.vocab, model.hidden);
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      prefix_ = layer_prefix(layer);
      add_layer(model.kinds[idx(model.kind_of(layer))]);
    }
    prefix_.clear();
    norm("model.norm", model.hidden);
    if (!model.tied_embeddings) matrix("lm_head.weight", model.vocab, model.hidden);
    for (std::int64_t depth = 1; depth <= model.prediction_layers; ++depth) {
      prefix_ = layer_prefix(model.layers + depth - 1);
      norm("hnorm", model.hidden), norm("enorm", model.hidden);
      matrix("eh_proj.weight", model.hidden, 2 * model.hidden);
      add_layer(model.kinds[idx(model.last_kind())]);
      norm("shared_head.norm", model.hidden);
    }
  }

  std::vector<Parameter> take() && { return std::move(all_); }

 private:
  void add(const std::string& name, std::int64_t rows, std::int64_t columns, Draw draw) {
    all_.push_back({{prefix_ + name, rows, columns}, draw});
  }
  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    add(name, rows, columns, Draw::matrix);
  }
  void norm(const std::string& name, std::int64_t width) { add(name + ".weight", 1, width, Draw::near_one); }
  void linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias = false) {
    matrix(name + ".weight", rows, columns);
    if (bias) add(name + ".bias", 1, rows, Draw::near_zero);
  }

  void add_layer(const LayerKind& kind) {
    const LayerParts parts = model_.parts_of(kind);
    if (parts.mixer != Mixer::none) {
      if (model_.norms_before) norm("input_layernorm", model_.hidden);
      add_mixer(parts.mixer);
      if (model_.norms_behind) norm("post_attention_layernorm", model_.hidden);
    }
    if (parts.mlp == Mlp::none) return;
    if (model_.norms_before && !model_.parallel_blocks) norm(mlp_norm_name(model_), model_.hidden);
    parts.mlp == Mlp::experts ? add_experts(*model_.experts) : add_mlp("mlp.", model_.intermediate);
    if (model_.norms_behind) norm("post_feedforward_layernorm", model_.hidden);
  }

  void add_mixer(Mixer mixer) {
    if (mixer == Mixer::attention) add_attention();
    if (mixer == Mixer::recurrence) add_recurrence(*model_.recurrence);
    if (mixer == Mixer::convolution) add_convolution(*model_.convolution);
  }

  void add_attention() {
    const std::int64_t hidden = model_.hidden, q_width = model_.q_width(), kv_width = model_.kv_width();
    if (model_.latent) {
      const Latent& latent = *model_.latent;
      if (latent.q_rank > 0) {
        linear("self_attn.q_a_proj", latent.q_rank, hidden);
        norm("self_attn.q_a_layernorm", latent.q_rank);
        linear("self_attn.q_b_proj", q_width, latent.q_rank);
      } else {
        linear("self_attn.q_proj", q_width, hidden);
      }
      linear("self_attn.kv_a_proj_with_mqa", latent.kv_row(), hidden);
      norm("self_attn.kv_a_layernorm", latent.kv_rank);
      linear("self_attn.kv_b_proj", model_.q_heads * model_.up_head_dim(), latent.kv_rank);
    } else {
      linear("self_attn.q_proj", q_width, hidden, model_.qkv_bias);
      linear("self_attn.k_proj", kv_width, hidden, model_.qkv_bias);
      linear("self_attn.v_proj", kv_width, hidden, model_.qkv_bias);
      if (model_.gated_attention) linear("self_attn.gate_proj", q_width, hidden, model_.qkv_bias);
      if (model_.qk_norm && !model_.qk_norm_behind_rotary) {
        const bool of_all = model_.qk_norm_of_all_heads;
        norm("self_attn.q_norm", of_all ? q_width : model_.head_dim);
        norm("self_attn.k_norm", of_all ? kv_width : model_.head_dim);
      }
    }
    if (model_.sinks) add("self_attn.sinks", 1, model_.q_heads, Draw::near_zero);
    linear("self_attn.o_proj", hidden, model_.q_heads * model_.v_head_dim(), model_.out_bias);
  }

  void add_recurrence(const Recurrence& r) {
    const std::int64_t hidden = model_.hidden;
    linear("linear_attn.in_proj_qkv", r.convolved(), hidden);
    linear("linear_attn.in_proj_z", r.value_width(), hidden);
    if (r.rule == RecurrenceRule::delta) {
      linear("linear_attn.in_proj_b", r.value_heads, hidden);
      linear("linear_attn.in_proj_a", r.value_heads, hidden);
    } else {
      linear("linear_attn.in_proj_dt", r.value_heads, hidden);
    }
    linear("linear_attn.conv1d", r.convolved(), r.convolution, r.convolution_bias);
    add("linear_attn.A_log", 1, r.value_heads, Draw::log_rate);
    add("linear_attn.dt_bias", 1, r.value_heads, Draw::time_step_bias);
    if (r.rule == RecurrenceRule::decay) add("linear_attn.D", 1, r.value_heads, Draw::near_one);
    norm("linear_attn.norm", r.norm_width());
    linear("linear_attn.out_proj", hidden, r.value_width());
  }

  void add_convolution(const ShortConvolution& convolution) {
    const std::int64_t hidden = model_.hidden;
    linear("conv.in_proj", 3 * hidden, hidden, convolution.bias);
    linear("conv.conv", hidden, convolution.taps, convolution.bias);
    linear("conv.out_proj", hidden, hidden, convolution.bias);
  }

  void add_mlp(const std::string& name, std::int64_t width, bool biases = false) {
    if (model_.gated_mlp) linear(name + "gate_proj", width, model_.hidden, biases);
    linear(name + "up_proj", width, model_.hidden, biases);
    linear(name + "down_proj", model_.hidden, width, biases);
  }

  void add_experts(const Experts& experts) {
    linear("mlp.gate", experts.count, model_.hidden, experts.biases);
    if (experts.corrects_scores)
      add("mlp.gate." + std::string(kCorrection), 1, experts.count, Draw::near_zero);
    for (std::int64_t expert = 0; expert < experts.count; ++expert)
      add_mlp(str("mlp.experts.", expert, "."), experts.intermediate, experts.biases);
    if (experts.shared > 0) add_mlp("mlp.shared_experts.", experts.shared);
    if (experts.shared_gate) linear("mlp.shared_expert_gate", 1, model_.hidden);
  }

  const Transformer& model_;
  std::string prefix_;
  std::vector<Parameter> all_;
};

std::vector<Parameter> list_parameters(const Transformer& model) {
  validate_model(model);
  return ParameterList(model).take();
}

std::vector<double> drawn(const Parameter& parameter, std::uint64_t seed) {
  const std::int64_t numel = parameter.rows * parameter.columns;
  const std::uint64_t own = Hasher().add(seed).add(std::string_view(parameter.name)).digest().low;
  std::vector<double> values;
  const auto each = [&](const auto& make) {
    for (double& value : values) value = make(value);
  };
  switch (parameter.draw) {
    case Draw::matrix: {
      const double deviation = 1 / std::sqrt(static_cast<double>(parameter.columns));
      values = random_values(numel, own), each([&](double u) { return deviation * u; });
      break;
    }
    case Draw::near_one:
      values = random_values(numel, own), each([](double u) { return 1 + 0.1 * u; });
      break;
    case Draw::near_zero:
      values = random_values(numel, own), each([](double u) { return 0.1 * u; });
      break;
    case Draw::log_rate:
      values = unit_values(numel, own), each([](double u) { return std::log(1 + 15 * u); });
      break;
    case Draw::time_step_bias:
      // log(exp(step) - 1), the inverse of softplus.
      values = unit_values(numel, own),
      each([](double u) { return std::log(std::expm1(0.001 * std::pow(100.0, u))); });
      break;
  }
  return values;
}

}  // namespace

bool is_trained(std::string_view name) { return !name.ends_with(kCorrection); }

std::string layer_prefix(std::int64_t layer) { return str("model.layers.", layer, "."); }

std::string mlp_norm_name(const Transformer& model) {
  return model.norms_behind ? "pre_feedforward_layernorm" : "post_attention_layernorm";
}

std::vector<ParameterShape> parameter_shapes(const Transformer& model) {
  const std::vector<Parameter> parameters = list_parameters(model);
  return {parameters.begin(), parameters.end()};
}

NamedMatrices zero_parameters(const Transformer& model) {
  NamedMatrices parameters;
  for (const ParameterShape& of : parameter_shapes(model))
    parameters.add(of.name, Matrix64(of.rows, of.columns));
  return parameters;
}

NamedMatrices draw_parameters(const Transformer& model, std::uint64_t seed, std::optional<DType> dtype) {
  NamedMatrices parameters;
  for (const Parameter& parameter : list_parameters(model)) {
    Matrix64 matrix(parameter.rows, parameter.columns);
    matrix.values = drawn(parameter, seed);
    if (dtype) {
      const std::int64_t numel = std::ssize(matrix.values);
      const DType of = is_trained(parameter.name) ? *dtype : DType::f32;
      matrix.values = checked_input(parameter.name, std::move(matrix.values), numel, of);
    }
    parameters.add(parameter.name, std::move(matrix));
  }
  return parameters;
}

}  // namespace cp::sim
