#include "sim/proof/reference/model_pass.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/reference/operations.h"
#include "sim/proof/reference/reference_parameters.h"
#include "sim/proof/run/input_values.h"

namespace cp::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// first, first + 1, ...
std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all(idx(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

Variable columns(Variable x, std::int64_t first, std::int64_t count) {
  return take_columns(x, numbers(first, count));
}

// Of rows that have `width` elements for each of some heads: elements first .. first + count - 1 of each.
Variable parts_of_heads(Variable x, std::int64_t width, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> taken;
  for (std::int64_t head = 0; head < x.columns(); head += width) {
    for (std::int64_t j = 0; j < count; ++j) taken.push_back(head + first + j);
  }
  return take_columns(x, std::move(taken));
}

// Each element of a vector `times` times: a, a, b, b.
Variable repeat_each(Variable vector, std::int64_t times) {
  std::vector<std::int64_t> taken;
  for (std::int64_t j = 0; j < vector.columns() * times; ++j) taken.push_back(j / times);
  return take_columns(vector, std::move(taken));
}
// The whole vector `times` times: a, b, a, b.
Variable repeat_all(Variable vector, std::int64_t times) {
  std::vector<std::int64_t> taken;
  for (std::int64_t j = 0; j < vector.columns() * times; ++j) taken.push_back(j % vector.columns());
  return take_columns(vector, std::move(taken));
}

// Whether the wave of pair j becomes `factor` times as long: 0 where it stays, 1 where it does, or between.
double stretched(const RotaryRules& rules, double frequency, std::int64_t j, std::int64_t count) {
  const double waves = rules.original * frequency / (2 * std::numbers::pi);  // in the original length
  switch (rules.scale) {
    case RotaryScale::none:
      return 0;
    case RotaryScale::linear:
      return 1;
    case RotaryScale::llama3:
      // With one limit for both there is nothing between them (Llama 4).
      if (rules.low == rules.high) return waves < rules.low ? 1 : 0;
      return std::clamp((rules.high - waves) / (rules.high - rules.low), 0.0, 1.0);
    case RotaryScale::yarn:
      break;
  }
  // theta^(-2j / count) original / (2 pi) = number, solved for j.
  const auto pair_with = [&](double number) {
    return static_cast<double>(count) / 2 * std::log(rules.original / number / (2 * std::numbers::pi)) /
           std::log(rules.theta);
  };
  double begin = pair_with(rules.high), end = pair_with(rules.low);
  if (rules.truncate) begin = std::floor(begin), end = std::ceil(end);
  begin = std::max(begin, 0.0), end = std::min(end, static_cast<double>(count) - 1);
  const auto pair = static_cast<double>(j);
  if (begin == end) return pair <= begin ? 0 : 1;
  return std::clamp((pair - begin) / (end - begin), 0.0, 1.0);
}

std::vector<double> rotary_frequencies(const RotaryRules& rules, std::int64_t count) {
  std::vector<double> frequencies;
  for (std::int64_t j = 0; j < count / 2; ++j) {
    const double frequency = std::pow(rules.theta, -2 * static_cast<double>(j) / static_cast<double>(count));
    const double share = stretched(rules, frequency, j, count);
    frequencies.push_back(share * frequency / rules.factor + (1 - share) * frequency);
  }
  return frequencies;
}

// The numbers of the greatest `count` of some values, in descending order; of equal ones the first.
std::vector<std::int64_t> greatest(const std::vector<double>& values, std::int64_t count) {
  std::vector<std::int64_t> order = numbers(0, std::ssize(values));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return values[idx(a)] > values[idx(b)]; });
  order.resize(idx(count));
  return order;
}

}  // namespace

DropRule drops_beyond(std::int64_t capacity) {
  return [capacity](const RoutedTokens& routed) {
    std::vector<std::int64_t> used(idx(routed.count));
    std::vector<bool> kept;
    for (const std::int64_t expert : routed.experts) kept.push_back(used[idx(expert)]++ < capacity);
    return kept;
  };
}

// ---- what all parts use ----

ModelPass::ModelPass(const Transformer& model, const ReferenceRules& rules, const NamedMatrices& parameters,
                     ReferenceBatch batch, std::int64_t first_sequence)
    : model_(model),
      rules_(rules),
      batch_(std::move(batch)),
      first_sequence_(first_sequence),
      tape_({rules.roundings.relative,
             mix(rules.roundings.seed) + static_cast<std::uint64_t>(first_sequence)}) {
  for (const auto& [name, matrix] : parameters.all()) {
    if (!is_trained(name)) {
      constants_.emplace(name, matrix);
      continue;
    }
    parameter_index_.emplace(name, parameters_.size());
    parameters_.emplace_back(name, tape_.input(matrix));
  }
  for (std::int64_t s = 0; s < batch_.sequences(); ++s) {
    const std::vector<std::int64_t> begins = batch_.document_begins(s);
    for (std::int64_t i = 0; i < batch_.seq_len; ++i) {
      positions_.push_back(rules.positions_in_documents ? i - begins[idx(i)] : i);
      begins_.push_back(s * batch_.seq_len + begins[idx(i)]);
    }
  }
  Variable x = note("embedding", embed(0));
  for (std::int64_t i = 0; i < model.layers; ++i)
    x = layer({i, model.kinds[idx(model.kind_of(i))], layer_prefix(i), str("layers.", i, ".")}, x);
  predict("", x, "model.norm.weight", 0);
  for (std::int64_t depth = 1; depth <= model.prediction_layers; ++depth) {
    const std::int64_t number = model.layers + depth - 1;
    const Layer at{number, model.kinds[idx(model.last_kind())], layer_prefix(number),
                   str("predictions.", depth, ".")};
    const Variable before = norm(x, at.prefix + "hnorm.weight"),
                   embedded = norm(embed(depth), at.prefix + "enorm.weight");
    const Variable joined = note(at.label + "joined", beside(before, embedded));
    x = layer(at, linear_of(joined, at.prefix + "eh_proj"));
    predict(at.label, x, at.prefix + "shared_head.norm.weight", depth);
  }
}

Variable ModelPass::parameter(const std::string& name) const {
  const auto found = parameter_index_.find(name);
  if (found == parameter_index_.end())
    throw InvalidInput(
        str("the parameters of '", model_.name, "' lack ", name, "; make them for this model"));
  return parameters_[found->second].second;
}

Variable ModelPass::note(const std::string& name, Variable value) {
  noted_.emplace_back(name, value);
  return value;
}

// Groups of `width` elements are normalized each. There are as many factors as a row has elements, or a
// group.
Variable ModelPass::rms_norm(Variable x, Variable factors, std::int64_t width) const {
  const Variable normed = normalize(x, width, 1 / static_cast<double>(width), rules_.norm_eps);
  return multiply_rows(normed, repeat_all(factors, x.columns() / factors.columns()));
}

// With 0 whole rows are normalized.
Variable ModelPass::norm(Variable x, const std::string& name, std::int64_t width) const {
  const Variable weight = parameter(name), factors = rules_.norm_unit_offset ? add(weight, 1) : weight;
  if (width == 0) width = x.columns();
  return rms_norm(rules_.norm_centered ? center(x, width) : x, factors, width);
}

// Elements first .. first + count - 1 of each head turn.
Variable ModelPass::rotated(const Layer& at, Variable x, std::int64_t head_dim, std::int64_t first,
                            std::int64_t count) const {
  const RotaryRules& rules = at.kind.window && rules_.window_rotary ? *rules_.window_rotary : rules_.rotary;
  return rotate(x, {head_dim, first, rotary_frequencies(rules, count), rules.neighbours, rules.size},
                positions_);
}
// The last `count` elements do. Of an odd number, which no model has, the first one stays, as plans have it.
Variable ModelPass::end_rotated(const Layer& at, Variable x, std::int64_t head_dim,
                                std::int64_t count) const {
  return rotated(at, x, head_dim, head_dim - count + count % 2, count);
}

// With the bias, if there is one of this name.
Variable ModelPass::linear_of(Variable x, const std::string& name) {
  const Variable product = linear(x, parameter(name + ".weight"));
  return parameter_index_.contains(name + ".bias") ? add_to_rows(product, parameter(name + ".bias"))
                                                   : product;
}

Variable ModelPass::activated(Variable x) {
  if (rules_.activation_limit > 0) x = clamp(x, -kInfinity, rules_.activation_limit);
  switch (rules_.activation.value_or(model_.gated_mlp ? MlpActivation::silu : MlpActivation::relu_squared)) {
    case MlpActivation::gelu:
      return map(x, kGelu);
    case MlpActivation::relu:
      return map(x, kRelu);
    case MlpActivation::gelu_tanh:
      return map(x, kGeluTanh);
    case MlpActivation::relu_squared:
      return map(x, kReluSquared);
    case MlpActivation::quick_gelu:
      return map(x, kQuickGelu);
    case MlpActivation::identity:
      return x;
    case MlpActivation::silu:
      break;
  }
  return map(x, kSilu);
}

// ---- the ends ----

// Of each row what the one `distance` behind it has, or `missing` where that is not in its document.
std::vector<std::int64_t> ModelPass::ahead(const std::vector<std::int32_t>& of, std::int64_t distance,
                                           std::int64_t missing) const {
  std::vector<std::int64_t> taken;
  for (std::int64_t row = 0; row < std::ssize(of); ++row) {
    const std::int64_t other = row + distance;
    const bool is_there = other < std::ssize(of) && begins_[idx(other)] == begins_[idx(row)];
    taken.push_back(is_there ? of[idx(other)] : missing);
  }
  return taken;
}

// The rows of the tokens `distance` positions further.
Variable ModelPass::embed(std::int64_t distance) const {
  const Variable rows = take_rows(parameter("model.embed_tokens.weight"), ahead(batch_.tokens, distance, 0));
  return multiply(rows, rules_.embedding_scale);
}

// The head and the loss of labels that lie `distance` positions further than the next tokens.
void ModelPass::predict(const std::string& label, Variable x, const std::string& norm_name,
                        std::int64_t distance) {
  const Variable normed = note(label + "final_norm", norm(x, norm_name));
  const Variable head = parameter(model_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  const double cap = rules_.logit_softcap;
  Variable logits = multiply(linear(normed, head), rules_.logit_scale);
  if (cap > 0) logits = multiply(map(multiply(logits, 1 / cap), kTanh), cap);
  note(label + "logits", logits);
  losses_.push_back(cross_entropy(logits, ahead(batch_.labels, distance, kIgnoredLabel)));
}

// ---- layers ----

Variable ModelPass::layer(const Layer& at, Variable x) {
  const LayerParts parts = model_.parts_of(at.kind);
  const std::string &prefix = at.prefix, &label = at.label;
  const auto before = [&](const char* activation, const std::string& name) {
    return model_.norms_before ? note(label + activation, norm(x, prefix + name + ".weight")) : x;
  };
  const auto behind = [&](const char* activation, Variable out, const std::string& name) {
    note(label + activation, out);
    return model_.norms_behind ? norm(out, prefix + name + ".weight") : out;
  };
  const auto mlp_of = [&](Variable rows) {
    return parts.mlp == Mlp::experts ? mix_experts(at, rows) : mlp(prefix + "mlp.", rows);
  };
  if (model_.parallel_blocks) {
    const Variable rows = before("norm1", "input_layernorm");
    return note(label + "next", add(x, add(attend(at, rows), mlp_of(rows))));
  }
  if (parts.mixer != Mixer::none) {
    const Variable rows = before("norm1", "input_layernorm");
    const Variable out = parts.mixer == Mixer::recurrence    ? recur(at, rows)
                         : parts.mixer == Mixer::convolution ? mix_by_convolution(at, rows)
                         : model_.latent                     ? attend_latent(at, rows)
                                                             : attend(at, rows);
    x = note(label + "mid", add(x, behind("attended", out, "post_attention_layernorm")));
  }
  if (parts.mlp != Mlp::none) {
    const Variable rows = before("norm2", mlp_norm_name(model_));
    x = add(x, behind("mlp_out", mlp_of(rows), "post_feedforward_layernorm"));
  }
  return note(label + "next", x);
}

// ---- attention ----

Variable ModelPass::attend(const Layer& at, Variable rows) {
  const std::string own = at.prefix + "self_attn.";
  Variable q = linear_of(rows, own + "q_proj"), k = linear_of(rows, own + "k_proj");
  const Variable v = linear_of(rows, own + "v_proj");
  if (model_.qk_norm && !model_.qk_norm_behind_rotary) {
    const std::int64_t width = model_.qk_norm_of_all_heads ? 0 : model_.head_dim;
    q = norm(q, own + "q_norm.weight", width), k = norm(k, own + "k_norm.weight", width);
  }
  const auto turned = [&](Variable x) {
    const double share = rules_.rotary.share;
    if (share == 1) return end_rotated(at, x, model_.head_dim, model_.head_dim);
    const auto count = static_cast<std::int64_t>(share * static_cast<double>(model_.head_dim));
    return rotated(at, x, model_.head_dim, 0, count);
  };
  if (at.kind.rotary) {
    q = turned(q), k = turned(k);
    if (model_.qk_norm_behind_rotary)
      q = normalize(q, model_.head_dim, 1 / static_cast<double>(model_.head_dim), rules_.norm_eps),
      k = normalize(k, model_.head_dim, 1 / static_cast<double>(model_.head_dim), rules_.norm_eps);
  } else if (rules_.temperature_scale != 0) {
    q = weigh_rows(q, temperatures());
  }
  Variable out = attention_core(at, q, k, v);
  if (model_.gated_attention) {
    const Variable gates = note(at.label + "gates", linear_of(rows, own + "gate_proj"));
    out = note(at.label + "gated_out", multiply(out, map(gates, kSigmoid)));
  }
  return linear_of(out, own + "o_proj");
}

Variable ModelPass::temperatures() {
  Matrix64 column(std::ssize(positions_), 1);
  for (std::size_t row = 0; row < positions_.size(); ++row) {
    const double windows = std::floor(static_cast<double>(positions_[row] + 1) / rules_.temperature_floor);
    column.values[row] = 1 + rules_.temperature_scale * std::log(1 + windows);
  }
  return tape_.input(std::move(column));
}

Variable ModelPass::attend_latent(const Layer& at, Variable rows) {
  const std::string own = at.prefix + "self_attn.";
  const Latent& latent = *model_.latent;
  const std::int64_t nope = model_.head_dim - latent.rope_dim, up = model_.up_head_dim(),
                     heads = model_.q_heads;
  const Variable q = latent.q_rank == 0
                         ? linear_of(rows, own + "q_proj")
                         : linear_of(norm(linear_of(rows, own + "q_a_proj"), own + "q_a_layernorm.weight"),
                                     own + "q_b_proj");
  const Variable row = linear_of(rows, own + "kv_a_proj_with_mqa"),
                 kv = linear_of(norm(columns(row, 0, latent.kv_rank), own + "kv_a_layernorm.weight"),
                                own + "kv_b_proj");
  const Variable rotated_k =
      end_rotated(at, columns(row, latent.kv_rank, latent.rope_dim), latent.rope_dim, latent.rope_dim);
  // The heads' own parts stand before the rotated part, which each head takes behind its own.
  std::vector<std::int64_t> taken;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t j = 0; j < nope; ++j) taken.push_back(head * nope + j);
    for (std::int64_t j = 0; j < latent.rope_dim; ++j) taken.push_back(heads * nope + j);
  }
  const Variable k = take_columns(beside(parts_of_heads(kv, up, 0, nope), rotated_k), std::move(taken)),
                 v = parts_of_heads(kv, up, nope, latent.v_head_dim);
  const Variable rotated_q = end_rotated(at, q, model_.head_dim, latent.rope_dim);
  return linear_of(attention_core(at, rotated_q, k, v), own + "o_proj");
}

Variable ModelPass::attention_core(const Layer& at, Variable q, Variable k, Variable v) {
  AttentionProblem problem;
  problem.batch = batch_.sequences(), problem.q_len = problem.kv_len = batch_.seq_len;
  problem.q_heads = model_.q_heads, problem.kv_heads = model_.kv_heads;
  problem.head_dim = model_.head_dim, problem.v_head_dim = model_.v_head_dim();
  problem.causal = true, problem.window = at.kind.window, problem.chunk = at.kind.chunk;
  problem.softmax_scale = rules_.score_scale / std::sqrt(static_cast<double>(model_.head_dim));
  problem.softcap = model_.softcap, problem.sinks = model_.sinks;
  problem.cu_seqlens_of_entry = batch_.cu_seqlens;
  problem.dropout = {rules_.attention_dropout, at.number};
  const DropoutPlace place{rules_.dropout_seed, first_sequence_};
  note(at.label + "q", q), note(at.label + "k", k), note(at.label + "v", v);
  if (!model_.sinks) return note(at.label + "out", attention(problem, q, k, v, nullptr, place));
  const Variable sinks = parameter(at.prefix + "self_attn.sinks");
  return note(at.label + "out", attention(problem, q, k, v, &sinks, place));
}

// ---- recurrences ----

Variable ModelPass::recur(const Layer& at, Variable rows) {
  const std::string own = at.prefix + "linear_attn.";
  const Recurrence& r = *model_.recurrence;
  const bool is_delta = r.rule == RecurrenceRule::delta;
  Variable convolved =
      convolve(linear_of(rows, own + "in_proj_qkv"), parameter(own + "conv1d.weight"), begins_);
  if (r.convolution_bias) convolved = add_to_rows(convolved, parameter(own + "conv1d.bias"));
  convolved = map(convolved, kSilu);
  Variable q = columns(convolved, 0, r.key_width()), k = columns(convolved, r.key_width(), r.key_width());
  const Variable v = columns(convolved, 2 * r.key_width(), r.value_width());
  if (is_delta)
    q = normalize(q, r.key_dim, 1, rules_.key_norm_eps), k = normalize(k, r.key_dim, 1, rules_.key_norm_eps);
  const Variable gates = map(linear_of(rows, own + "in_proj_z"), kSilu);
  const Variable steps = map(
      add_to_rows(linear_of(rows, own + (is_delta ? "in_proj_a" : "in_proj_dt")), parameter(own + "dt_bias")),
      kSoftplus);
  const Variable log_decay = multiply_rows(steps, map(parameter(own + "A_log"), kMinusExp)),
                 beta = is_delta ? map(linear_of(rows, own + "in_proj_b"), kSigmoid) : steps;
  note(at.label + "recurrent_q", q), note(at.label + "recurrent_k", k), note(at.label + "recurrent_v", v);
  note(at.label + "log_decay", log_decay), note(at.label + "beta", beta);

  RecurrenceProblem problem;
  problem.rule = r.rule, problem.seq_len = batch_.seq_len;
  problem.key_heads = r.key_heads, problem.value_heads = r.value_heads;
  problem.key_dim = r.key_dim, problem.value_dim = r.value_dim;
  if (!is_delta) problem.scale = 1;
  // Each sequence by itself: documents of a problem are those of all its batch entries.
  std::optional<Variable> outs;
  for (std::int64_t s = 0; s < batch_.sequences(); ++s) {
    problem.cu_seqlens = batch_.cu_seqlens[idx(s)];
    const std::vector<std::int64_t> own_rows = numbers(s * batch_.seq_len, batch_.seq_len);
    const auto of = [&](Variable x) { return take_rows(x, own_rows); };
    const Variable out = add_up_rows(recurrence(problem, {of(q), of(k), of(v), of(log_decay), of(beta)}),
                                     own_rows, rows.rows());
    outs = outs ? add(*outs, out) : out;
  }
  Variable out = note(at.label + "recurrent_out", *outs);
  if (is_delta) {
    out = multiply(rms_norm(out, parameter(own + "norm.weight"), r.value_dim), gates);
  } else {
    const Variable skipped = multiply_rows(v, repeat_each(parameter(own + "D"), r.value_dim));
    out = rms_norm(multiply(add(out, skipped), gates), parameter(own + "norm.weight"),
                   r.value_width() / r.key_heads);
  }
  return linear_of(note(at.label + "normed_out", out), own + "out_proj");
}

// ---- MLPs ----

// With weights, a column, the rows' outputs are multiplied with them; or the rows.
Variable ModelPass::mlp(const std::string& prefix, Variable rows, const Variable* weights) {
  if (weights != nullptr && rules_.weighs_expert_inputs) rows = weigh_rows(rows, *weights);
  Variable inner = linear_of(rows, prefix + "up_proj");
  if (model_.gated_mlp) {
    if (const double limit = rules_.activation_limit; limit > 0) inner = clamp(inner, -limit, limit);
    if (rules_.up_offset != 0) inner = add(inner, rules_.up_offset);
    inner = multiply(activated(linear_of(rows, prefix + "gate_proj")), inner);
  } else {
    inner = activated(inner);
  }
  const Variable out = linear_of(inner, prefix + "down_proj");
  return weights != nullptr && !rules_.weighs_expert_inputs ? weigh_rows(out, *weights) : out;
}

// By the scores and the correction of this name, if the model has one.
std::vector<std::int64_t> ModelPass::choose(Matrix64 scores, const std::string& correction) const {
  const RouterRules& router = rules_.router;
  if (const auto found = constants_.find(correction); found != constants_.end()) {
    for (std::int64_t row = 0; row < scores.rows; ++row) {
      for (std::int64_t expert = 0; expert < scores.columns; ++expert)
        scores.row(row)[expert] += found->second.values[idx(expert)];
    }
  }
  const std::int64_t each = scores.columns / router.groups;
  std::vector<std::int64_t> chosen;
  for (std::int64_t row = 0; row < scores.rows; ++row) {
    std::vector<double> of_groups;
    for (std::int64_t group = 0; group < router.groups; ++group) {
      std::vector<double> best(scores.row(row) + group * each, scores.row(row) + (group + 1) * each);
      std::sort(best.begin(), best.end(), std::greater<>());
      of_groups.push_back(router.sigmoid && each > 1 ? best[0] + best[1] : best[0]);
    }
    std::vector<std::int64_t> open;  // experts that can be chosen
    std::vector<std::int64_t> best_groups = greatest(of_groups, router.top_groups);
    std::sort(best_groups.begin(), best_groups.end());
    std::vector<double> of_open;
    for (const std::int64_t group : best_groups) {
      for (std::int64_t expert = group * each; expert < (group + 1) * each; ++expert)
        open.push_back(expert), of_open.push_back(scores.row(row)[expert]);
    }
    for (const std::int64_t best : greatest(of_open, model_.experts->top_k))
      chosen.push_back(open[idx(best)]);
  }
  return chosen;
}

Variable ModelPass::mix_experts(const Layer& at, Variable rows) {
  const std::string own = at.prefix + "mlp.";
  const RouterRules& router = rules_.router;
  const std::int64_t count = model_.experts->count, top_k = model_.experts->top_k;
  const Variable logits = note(at.label + "router", linear_of(rows, own + "gate")),
                 scores = router.sigmoid ? map(logits, kSigmoid) : softmax(logits);
  const std::string correction = own + "gate.e_score_correction_bias";
  const std::vector<std::int64_t> chosen = choose(scores.value(), correction);
  std::vector<double>& loads = loads_[correction];
  loads.resize(idx(count));
  for (const std::int64_t expert : chosen) ++loads[idx(expert)];
  Variable weights = take_elements(scores, chosen, top_k);
  if (router.normalized) weights = divide_by_row_sums(weights);
  weights = multiply(weights, router.factor);
  std::vector<bool> kept(chosen.size(), true);
  if (rules_.drops) {
    kept =
        rules_.drops({at.number, first_sequence_, batch_.sequences(), batch_.seq_len, count, top_k, chosen});
    if (kept.size() != chosen.size())
      throw InvalidInput(str("the rule of drops answers for ", kept.size(), " of ", chosen.size(),
                             " choices of experts; it must say of each whether it is kept"));
  }
  choices_ += std::ssize(kept), dropped_ += std::count(kept.begin(), kept.end(), false);
  std::optional<Variable> out;
  if (model_.experts->shared > 0) out = mlp(own + "shared_experts.", rows);
  if (model_.experts->shared_gate)
    out = weigh_rows(*out, map(linear_of(rows, own + "shared_expert_gate"), kSigmoid));
  for (std::int64_t expert = 0; expert < count; ++expert) {
    std::vector<std::int64_t> own_rows, places;  // of its tokens; of its weight among theirs
    for (std::int64_t i = 0; i < std::ssize(chosen); ++i) {
      if (chosen[idx(i)] == expert && kept[idx(i)])
        own_rows.push_back(i / top_k), places.push_back(i % top_k);
    }
    if (own_rows.empty()) continue;
    const Variable of_tokens = take_elements(take_rows(weights, own_rows), places, 1);
    const Variable part = add_up_rows(
        mlp(str(own, "experts.", expert, "."), take_rows(rows, own_rows), &of_tokens), own_rows, rows.rows());
    out = out ? add(*out, part) : part;
  }
  return out ? *out : multiply(rows, 0);  // all tokens may be dropped
}

// ---- results ----

std::vector<double> ModelPass::losses() const {
  std::vector<double> sums;
  for (const Variable& loss : losses_) {
    const std::vector<double>& of_rows = loss.value().values;
    sums.push_back(std::accumulate(of_rows.begin(), of_rows.end(), 0.0));
  }
  return sums;
}

void ModelPass::backward(const std::vector<double>& weights, NamedMatrices& gradients) {
  std::vector<std::pair<Variable, double>> weighted;
  for (std::size_t i = 0; i < losses_.size(); ++i) weighted.emplace_back(losses_[i], weights.at(i));
  tape_.backward(weighted);
  for (const auto& [name, parameter] : parameters_) {
    Matrix64& sum = gradients.at(name);
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += parameter.gradient().values[i];
  }
}

std::vector<NamedActivation> ModelPass::activations() const {
  std::vector<NamedActivation> all;
  for (const auto& [name, value] : noted_) all.push_back({name, value.value(), value.gradient()});
  return all;
}

}  // namespace cp::sim
