#include "shared/transformer/model.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/complaints.h"
#include "shared/transformer/mixers/mixer.h"

namespace cp {
namespace {

// The product of three sizes need not fit into 64 bits, so the number of parameters is estimated in floating
// point first. Up to so many (about 2^50) also the bytes of parameters, gradients and optimizer states fit.
constexpr double kMaxParameters = 1e15;

using detail::divisors_text;
using detail::kMaxCount;
using detail::kMaxSize;

void check_experts(const Experts& experts, detail::Complaints& complaints) {
  complaints.require_size("experts.intermediate", experts.intermediate);
  complaints.require_size("experts.shared", experts.shared, 0);
  if (!complaints.require_count("experts.count", experts.count)) return;
  if (experts.top_k < 1 || experts.top_k > experts.count) {
    complaints.add(str("experts.top_k=", experts.top_k,
                       " must be at least 1 and at most experts.count=", experts.count));
  }
}

void check_expert_products(const Transformer& model, detail::Complaints& complaints) {
  const Experts& experts = *model.experts;
  complaints.require(
      !experts.shared_gate || experts.shared > 0,
      "experts.shared_gate=true is of a shared MLP, and experts.shared is 0; set its width, or "
      "leave the gate out");
  complaints.require(
      !experts.biases || !model.numerics.weighs_expert_inputs,
      "experts.biases with weighs_expert_inputs: experts whose products have biases, and whose "
      "inputs are weighed, are not described; the nearest thing is outputs that are weighed");
}

void check_latent(const Transformer& model, detail::Complaints& complaints) {
  const Latent& latent = *model.latent;
  complaints.require_range("latent.q_rank", latent.q_rank, 0, kMaxSize);
  complaints.require_size("latent.kv_rank", latent.kv_rank);
  complaints.require_size("latent.v_head_dim", latent.v_head_dim);
  complaints.require_range("latent.rope_dim", latent.rope_dim, 1, std::max<std::int64_t>(1, model.head_dim));
  if (model.kv_heads != model.q_heads) {
    complaints.add(str("kv_heads=", model.kv_heads, " must be q_heads=", model.q_heads,
                       " with latent attention, which makes keys and values for each head"));
  }
  if (model.qkv_bias || model.out_bias || model.qk_norm || model.gated_attention)
    complaints.add("qkv_bias, out_bias, qk_norm and gated_attention must be false with latent attention");
}

void check_kinds(const Transformer& model, detail::Complaints& complaints) {
  const auto count = static_cast<std::int64_t>(model.kinds.size());
  if (count == 0) complaints.add("kinds is empty; a model has at least one kind of layers");
  for (std::size_t i = 0; i < model.kinds.size(); ++i) {
    const std::string kind = count == 1 ? "" : str("kinds[", i, "].");
    const std::string of_kind = count == 1 ? "a layer " : str("kinds[", i, "] ");
    const auto& [window, chunk, dense, mixer, has_mlp, rotary] = model.kinds[i];
    if (!rotary && mixer != Mixer::attention)
      complaints.add(kind + "rotary=false is said of attention, which this kind does not have");
    if (!rotary && model.latent)
      complaints.add(kind +
                     "rotary=false: latent attention always has a rotated part, whose width rope_dim is");
    if (mixer != Mixer::attention && (window || chunk))
      complaints.add(kind + "window and chunk are of attention, which this kind does not have");
    if (mixer == Mixer::none && !has_mlp)
      complaints.add(of_kind + "has neither mixer nor MLP; leave such layers out");
    if (const MixerFacts* facts = facts_of(mixer); facts != nullptr && !facts->is_described(model))
      complaints.add(
          str(of_kind, "has a ", name(mixer), ", and the model's ", name(mixer), " is unset; set its sizes"));
    if (!has_mlp && dense) complaints.add(kind + "dense is said of an MLP that this kind does not have");
    if (window) complaints.require_size(kind + "window", *window);
    if (chunk) complaints.require_size(kind + "chunk", *chunk);
    if (dense && !model.experts)
      complaints.add(kind +
                     "dense sets layers apart from those with experts, and experts is unset; leave one out");
    for (std::size_t before = 0; before < i; ++before) {
      if (model.kinds[before] == model.kinds[i])
        complaints.add(str("kinds[", before, "] and kinds[", i, "] are equal; name a kind once"));
    }
  }
  if (!model.has(Mixer::attention) && count > 0)
    complaints.add("no layer has attention; models without any are not described");
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(model) && !model.has(facts->mixer))
      complaints.add(str(name(facts->mixer), " is set, and no layer has one; leave it out"));
  }
  if (model.order.empty()) return;
  if (const auto size = static_cast<std::int64_t>(model.order.size()); size != model.layers)
    complaints.add(str("order has ", size, " entries, one is due for each of layers=", model.layers));
  for (const int kind : model.order) {
    if (kind >= 0 && kind < count) continue;
    complaints.add(str("order has kind ", kind, ", which is not one of ", count, "; use 0 to ", count - 1));
    break;
  }
}

// Roughly, without the small terms: 64 bits may not hold it.
double estimated_parameters(const Transformer& model) {
  const auto f = [](std::int64_t value) { return static_cast<double>(value); };
  const Latent latent = model.latent.value_or(Latent{});
  const double in = f(model.hidden) + f(latent.q_rank) + f(latent.kv_rank),
               attention = in * (f(model.head_dim) + f(latent.v_head_dim)) * 2 *
                           (f(model.q_heads) + f(model.kv_heads));
  const Experts experts = model.experts.value_or(Experts{});
  double mixer = attention;
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(model)) mixer = std::max(mixer, facts->estimated(model));
  }
  const double of_experts = f(experts.count) * f(experts.intermediate) + f(experts.shared),
               mlp = 3 * f(model.hidden) * std::max(of_experts, f(model.intermediate));
  return f(model.layers + model.prediction_layers) * (mixer + mlp) +
         2 * f(model.hidden) * (f(model.vocab) + f(model.prediction_layers) * f(model.hidden));
}

// What both parts of a parallel block take are gathered rows of one norm. Latent attention gathers narrower
// rows of its own, and no model has recurrences there, or experts without attention beside them.
void check_parallel_blocks(const Transformer& model, detail::Complaints& complaints) {
  if (!model.parallel_blocks) return;
  complaints.require(model.norms_before && !model.norms_behind,
                     "parallel_blocks=true needs norms_before=true and norms_behind=false: attention and MLP "
                     "take the rows of one norm, and nothing is normalized behind them");
  complaints.require(
      !model.latent,
      "parallel_blocks with latent attention: such layers are not described; the nearest thing "
      "is parallel_blocks=false");
  for (const LayerKind& kind : model.kinds) {
    if (kind.mixer == Mixer::attention && kind.has_mlp) continue;
    complaints.add(str("parallel_blocks=true, and a kind of layers has the mixer ", name(kind.mixer),
                       kind.has_mlp ? "" : " and no MLP",
                       "; both attention and an MLP take a block's rows; give it both, or leave "
                       "parallel_blocks out"));
    break;
  }
}

void check_rotary(std::string_view of, const RotaryFrequencies& rotary, detail::Complaints& complaints) {
  const auto& [theta, scaling, factor, low, high, original, whole_pairs, magnitude] = rotary;
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  complaints.require(positive(theta),
                     str("rope_theta=", theta, " of ", of, " must be a finite number above 0, as 10000"));
  complaints.require(positive(magnitude),
                     str("magnitude=", magnitude, " of ", of, " must be a finite number above 0, as 1"));
  if (scaling == RotaryScaling::none) return;
  complaints.require(
      std::isfinite(factor) && factor >= 1 && positive(low) && std::isfinite(high) && high >= low &&
          original >= 1 && original <= kMaxSize,
      str(name(scaling), " of ", of, " with factor=", factor, " and ", low, " to ", high, " waves in ",
          original,
          " positions scales nothing; use a factor of at least 1, as 4, limits above 0 that do not descend, "
          "and 1 to ",
          kMaxSize, " positions"));
  // Which pair has so many waves is a logarithm to the base theta.
  complaints.require(scaling != RotaryScaling::yarn || theta > 1,
                     str("rope_theta=", theta, " of ", of, " must be above 1 with yarn, as 10000"));
}

void check_numerics(const Transformer& model, detail::Complaints& complaints) {
  const Numerics& numerics = model.numerics;
  complaints.require(std::isfinite(numerics.norm_eps) && numerics.norm_eps > 0,
                     str("norm_eps=", numerics.norm_eps, " must be a finite number above 0, as 1e-6"));
  check_rotary("rotary", numerics.rotary, complaints);
  if (numerics.window_rotary) {
    check_rotary("window_rotary", *numerics.window_rotary, complaints);
    complaints.require(
        std::any_of(model.kinds.begin(), model.kinds.end(), [](const LayerKind& k) { return k.window; }),
        "window_rotary is of layers with a window, and no kind has one; leave it out");
  }
  for (const double magnitude :
       {numerics.rotary.magnitude, numerics.window_rotary.value_or(RotaryFrequencies{}).magnitude}) {
    complaints.require(
        magnitude == 1 || !model.qk_norm_behind_rotary,
        str("magnitude=", magnitude,
            " of rotated rows: norms behind the rotation (qk_norm_behind_rotary) take it away; "
            "leave one out"));
  }
  complaints.require(std::isfinite(numerics.score_scale) && numerics.score_scale > 0,
                     str("score_scale=", numerics.score_scale,
                         " must be a finite number above 0, or 1 for scores by 1 / sqrt(head_dim)"));
  complaints.require(
      std::isfinite(numerics.logit_softcap) && numerics.logit_softcap >= 0,
      str("logit_softcap=", numerics.logit_softcap, " must be a finite number above 0, or 0 for no cap"));
  complaints.require(std::isfinite(numerics.logit_scale) && numerics.logit_scale > 0,
                     str("logit_scale=", numerics.logit_scale,
                         " must be a finite number above 0, or 1 for logits as they are"));
  complaints.require(!numerics.norm_centered || !model.qk_norm_of_all_heads,
                     "norm_centered with qk_norm_of_all_heads: tensor-parallel ranks that share a row add up "
                     "its squares, and not its mean; use norms of each head");
  complaints.require(
      !numerics.norm_centered || !model.qk_norm_behind_rotary,
      "norm_centered with qk_norm_behind_rotary: a rotation changes the mean of a head, so that "
      "its norm cannot be computed before it, as plans do; leave one out");
  const bool limits = std::isfinite(numerics.activation_limit) && numerics.activation_limit >= 0 &&
                      std::isfinite(numerics.up_offset);
  complaints.require(limits, str("activation_limit=", numerics.activation_limit, " and up_offset=",
                                 numerics.up_offset, " must be finite, and a limit above 0, or 0 for none"));
  complaints.require(model.gated_mlp || numerics.up_offset == 0,
                     str("up_offset=", numerics.up_offset,
                         " is added to what gates multiply, and gated_mlp is "
                         "false; leave it out"));
  const QueryTemperature& temperature = numerics.temperature;
  complaints.require(
      std::isfinite(temperature.scale) && std::isfinite(temperature.floor) && temperature.floor > 0,
      str("temperature.scale=", temperature.scale, " and floor=", temperature.floor,
          " must be finite, and the floor a number of positions above 0, as 8192"));
  complaints.require(numerics.rotary_share >= 0 && numerics.rotary_share <= 1,
                     str("rotary_share=", numerics.rotary_share, " is a share of a head's columns: 0 to 1"));
  if (!model.experts || model.experts->count <= 0) return;
  const RouterRule& router = numerics.router;
  const std::int64_t experts = model.experts->count;
  if (router.groups < 1 || experts % router.groups != 0) {
    complaints.add(str("groups=", router.groups, " of the router do not divide the ", experts,
                       " experts; use groups in ", divisors_text(experts)));
    return;
  }
  complaints.require(
      !model.experts->moves_corrections || model.experts->corrects_scores,
      "moves_corrections moves what routers add to scores, and corrects_scores is false; set it");
  const std::int64_t chosen_from = experts / router.groups * router.top_groups;
  complaints.require(
      router.top_groups >= 1 && router.top_groups <= router.groups && model.experts->top_k <= chosen_from,
      str("top_groups=", router.top_groups, " of the ", router.groups, " groups have ", chosen_from,
          " experts, and top_k=", model.experts->top_k, "; use top_groups up to ", router.groups,
          ", with as many experts as top_k"));
}

}  // namespace

std::string_view name(Mixer mixer) {
  constexpr std::array<std::string_view, kMixers.size()> kNames = {"attention", "recurrence", "convolution",
                                                                   "none"};
  return kNames[static_cast<std::size_t>(mixer)];
}
std::string_view name(RotaryScaling scaling) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "linear", "llama3", "yarn"};
  return kNames[static_cast<std::size_t>(scaling)];
}
std::string_view name(Mlp mlp) {
  constexpr std::array<std::string_view, 3> kNames = {"dense", "experts", "none"};
  return kNames[static_cast<std::size_t>(mlp)];
}

void validate_model(const Transformer& model) {
  detail::Complaints complaints;
  complaints.require_size("hidden", model.hidden);
  complaints.require_count("layers", model.layers);
  const bool q_heads = complaints.require_count("q_heads", model.q_heads);
  if (complaints.require_count("kv_heads", model.kv_heads) && q_heads &&
      model.q_heads % model.kv_heads != 0) {
    complaints.add(str("kv_heads=", model.kv_heads, " does not divide q_heads=", model.q_heads,
                       "; use kv_heads in ", divisors_text(model.q_heads)));
  }
  complaints.require_size("head_dim", model.head_dim);
  if (model.has(Mlp::dense)) complaints.require_size("intermediate", model.intermediate);
  complaints.require_size("vocab", model.vocab);
  complaints.require_size("max_seq_len", model.max_seq_len, 0);
  check_kinds(model, complaints);
  complaints.require_range("prediction_layers", model.prediction_layers, 0, kMostPredictionLayers);
  complaints.require(model.norms_before || model.norms_behind,
                     "norms_before=false needs norms_behind=true: layers without any norm are not described");
  complaints.require(model.qk_norm || !model.qk_norm_of_all_heads,
                     "qk_norm_of_all_heads=true says which norms q and k have, and qk_norm is false; set it, "
                     "or leave both out");
  complaints.require(
      model.qk_norm || !model.qk_norm_behind_rotary,
      "qk_norm_behind_rotary=true says where q and k are normalized, and qk_norm is false; set "
      "it, or leave both out");
  complaints.require(!model.qk_norm_of_all_heads || !model.qk_norm_behind_rotary,
                     "qk_norm_of_all_heads and qk_norm_behind_rotary: norms behind the rotation are of each "
                     "head; leave one out");
  complaints.require(std::isfinite(model.softcap) && model.softcap >= 0,
                     str("softcap=", model.softcap, " must be a finite number above 0, or 0 for no cap"));
  check_numerics(model, complaints);
  if (model.experts) check_experts(*model.experts, complaints), check_expert_products(model, complaints);
  if (model.latent) check_latent(model, complaints);
  check_parallel_blocks(model, complaints);
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(model)) facts->check(model, complaints);
  }
  if (complaints.empty() && estimated_parameters(model) > kMaxParameters) {
    complaints.add(str("about ", estimated_parameters(model), " parameters are more than ", kMaxParameters,
                       ", the largest number that is counted"));
  }
  complaints.raise(str("model '", model.name, "'"));
}

void set_layers(Transformer& model, const std::vector<LayerKind>& layers) {
  model.kinds.clear(), model.order.clear();
  for (const LayerKind& layer : layers) {
    const auto known = std::find(model.kinds.begin(), model.kinds.end(), layer);
    model.order.push_back(static_cast<int>(known - model.kinds.begin()));
    if (known == model.kinds.end()) model.kinds.push_back(layer);
  }
  if (model.kinds.empty()) model.kinds.emplace_back();
  if (model.kinds.size() == 1) model.order.clear();
}

std::vector<std::int64_t> layers_of_kinds(const Transformer& model, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> counts(model.kinds.size());
  if (model.order.empty()) {
    counts.front() = count;
    return counts;
  }
  for (std::int64_t layer = first; layer < first + count; ++layer) ++counts[idx(model.order[idx(layer)])];
  return counts;
}

std::vector<std::int64_t> layers_of_kinds(const Transformer& model) {
  return layers_of_kinds(model, 0, model.layers);
}

std::int64_t count_of(const ByParts<std::int64_t>& layers) {
  std::int64_t count = 0;
  for (const LayerParts parts : kLayerParts) count += layers[parts];
  return count;
}
std::int64_t count_of(const ByParts<std::int64_t>& layers, Mixer mixer) {
  std::int64_t count = 0;
  for (const LayerParts parts : kLayerParts) count += parts.mixer == mixer ? layers[parts] : 0;
  return count;
}
std::int64_t count_of(const ByParts<std::int64_t>& layers, Mlp mlp) {
  std::int64_t count = 0;
  for (const LayerParts parts : kLayerParts) count += parts.mlp == mlp ? layers[parts] : 0;
  return count;
}

bool Transformer::has(LayerParts parts) const {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return parts_of(kind) == parts; });
}
bool Transformer::has(Mixer mixer) const {
  return std::any_of(kinds.begin(), kinds.end(), [&](const LayerKind& kind) { return kind.mixer == mixer; });
}
bool Transformer::has(Mlp mlp) const {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& kind) { return parts_of(kind).mlp == mlp; });
}

const LayerKind& first_attention(const Transformer& model) {
  const auto at = std::find_if(model.kinds.begin(), model.kinds.end(),
                               [](const LayerKind& kind) { return kind.mixer == Mixer::attention; });
  return at == model.kinds.end() ? model.kinds.front() : *at;
}

std::vector<LayerParts> parts_of_kinds(const Transformer& model) {
  std::vector<LayerParts> parts;
  for (const LayerKind& kind : model.kinds) parts.push_back(model.parts_of(kind));
  return parts;
}

ByParts<std::int64_t> layers_of_parts(const Transformer& model, const std::vector<std::int64_t>& of_kinds) {
  ByParts<std::int64_t> layers;
  for (std::size_t kind = 0; kind < of_kinds.size(); ++kind)
    layers[model.parts_of(model.kinds[kind])] += of_kinds[kind];
  return layers;
}

// ---- parameters ----

namespace {

MixerParameters parameters_of_attention(const Transformer& model) {
  if (model.latent) {
    const Latent& latent = *model.latent;
    const std::int64_t q_down = model.hidden * latent.q_rank,
                       q_up = (latent.q_rank > 0 ? latent.q_rank : model.hidden) * model.q_width(),
                       kv_down = model.hidden * latent.kv_row(),
                       kv_up = latent.kv_rank * model.q_heads * model.up_head_dim();
    return {q_down + q_up + kv_down + kv_up + model.hidden * model.q_heads * latent.v_head_dim,
            latent.q_rank + latent.kv_rank + (model.sinks ? model.q_heads : 0)};
  }
  const std::int64_t gates = model.gated_attention ? model.q_width() : 0,
                     in = model.q_width() + gates + 2 * model.kv_width();
  const std::int64_t normed = model.qk_norm_behind_rotary  ? 0
                              : model.qk_norm_of_all_heads ? model.q_width() + model.kv_width()
                                                           : 2 * model.head_dim;
  return {model.hidden * (in + model.q_width()),
          (model.qkv_bias ? in : 0) + (model.out_bias ? model.hidden : 0) + (model.qk_norm ? normed : 0) +
              (model.sinks ? model.q_heads : 0)};
}

}  // namespace

std::int64_t ParameterCounts::layer(LayerParts of) const {
  std::int64_t count = norms_of(of) + this->of(of.mixer).sum();
  if (of.mlp == Mlp::dense) count += mlp;
  if (of.mlp == Mlp::experts) count += experts + shared + router;
  return count;
}

ParameterCounts parameter_counts(const Transformer& model) {
  ParameterCounts counts;
  counts.embedding = model.vocab * model.hidden;
  counts.norms = ((model.norms_before ? 1 : 0) + (model.norms_behind ? 1 : 0)) * model.hidden;
  counts.norms_of_both = (model.parallel_blocks ? 1 : 2) * counts.norms;
  const auto of_mixer = [&](Mixer mixer) -> MixerParameters& {
    return counts.mixers[static_cast<std::size_t>(mixer)];
  };
  of_mixer(Mixer::attention) = parameters_of_attention(model);
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(model)) of_mixer(facts->mixer) = facts->parameters(model);
  }
  const std::int64_t matrices = model.up_matrices() + 1;
  std::int64_t not_met = 0;  // of one layer's experts by a token
  if (model.has(Mlp::dense)) counts.mlp = matrices * model.hidden * model.intermediate;
  if (model.has(Mlp::experts)) {
    const Experts& experts = *model.experts;
    const std::int64_t bias = experts.biases ? model.up_matrices() * experts.intermediate + model.hidden : 0,
                       expert = matrices * model.hidden * experts.intermediate + bias;
    counts.experts = experts.count * expert;
    counts.shared = matrices * model.hidden * experts.shared;
    counts.router = model.hidden * experts.count;
    // Of each token's experts, and of the router; the gate of the shared MLP is a matrix of one row.
    counts.expert_rows = experts.biases ? experts.top_k * bias + experts.count : 0;
    if (experts.biases) counts.router += experts.count;
    if (experts.shared_gate) counts.shared += model.hidden;
    not_met = (model.experts->count - model.experts->top_k) * expert;
  }
  counts.final_norm = model.hidden;
  counts.head = model.tied_embeddings ? 0 : counts.embedding;
  const LayerParts last = model.parts_of(model.kinds[idx(model.last_kind())]);
  ByParts<std::int64_t> layers = layers_of_parts(model, layers_of_kinds(model));
  layers[last] += model.prediction_layers;
  counts.prediction_join = 2 * model.hidden * model.hidden;
  const std::int64_t of_prediction = counts.prediction_join + 3 * model.hidden;
  counts.prediction = counts.layer(last) + of_prediction;
  std::int64_t of_layers = 0, of_norms = 0;
  for (const LayerParts parts : kLayerParts)
    of_layers += layers[parts] * counts.layer(parts), of_norms += layers[parts] * counts.norms_of(parts);
  std::int64_t of_rows = count_of(layers, Mlp::experts) * counts.expert_rows + of_norms;
  for (const Mixer mixer : kMixers) of_rows += count_of(layers, mixer) * counts.of(mixer).rows;
  const std::int64_t met = of_layers - count_of(layers, Mlp::experts) * not_met;
  const std::int64_t beside_layers = counts.final_norm + model.prediction_layers * of_prediction;
  counts.total = counts.embedding + of_layers + beside_layers + counts.head;
  counts.active = met + beside_layers + counts.embedding;
  counts.multiplied = met - of_rows + model.prediction_layers * counts.prediction_join;
  return counts;
}

namespace {

void hash_rotary(Hasher& hasher, const RotaryFrequencies& rotary) {
  const auto& [theta, scaling, factor, low, high, original, whole_pairs, magnitude] = rotary;
  hasher.add(theta).add(factor).add(low).add(high).add(original);
  // Later than the others, so that llama's models keep their digests.
  if (scaling == RotaryScaling::linear || scaling == RotaryScaling::yarn)
    hasher.add(name(scaling)).add(whole_pairs);
  if (magnitude != 1) hasher.add(std::string_view("magnitude")).add(magnitude);
}

// In digests, which checkpoints have: later mixers come behind `none`.
int number_of(Mixer mixer) {
  constexpr std::array<int, kMixers.size()> kNumbers = {0, 1, 3, 2};
  return kNumbers[static_cast<std::size_t>(mixer)];
}

}  // namespace

Hasher& hash(Hasher& hasher, const Transformer& model) {
  hasher.add(std::string_view(model.name)).add(model.hidden).add(model.layers).add(model.q_heads);
  hasher.add(model.kv_heads)
      .add(model.head_dim)
      .add(model.intermediate)
      .add(model.vocab)
      .add(model.max_seq_len);
  hasher.add(model.tied_embeddings).add(model.qkv_bias).add(model.qk_norm);
  if (model.norms_behind) hasher.add(std::string_view("norms behind"));
  if (!model.norms_before) hasher.add(std::string_view("no norms before"));
  if (model.parallel_blocks) hasher.add(std::string_view("parallel blocks"));
  if (model.qk_norm_of_all_heads) hasher.add(std::string_view("norms of all heads"));
  if (model.qk_norm_behind_rotary) hasher.add(std::string_view("norms behind rotary"));
  if (model.out_bias) hasher.add(std::string_view("out bias"));
  if (model.sinks) hasher.add(std::string_view("sinks"));
  if (model.softcap != 0) hasher.add(std::string_view("softcap")).add(model.softcap);
  if (model.gated_attention) hasher.add(std::string_view("gated attention"));
  if (!model.gated_mlp) hasher.add(std::string_view("two matrices"));
  hasher.add(static_cast<std::int64_t>(model.kinds.size())).add_all(model.order);
  for (const auto& [window, chunk, dense, mixer, has_mlp, rotary] : model.kinds) {
    if (!rotary) hasher.add(std::string_view("no positions"));
    if (mixer != Mixer::attention || !has_mlp)
      hasher.add(std::string_view("parts")).add(number_of(mixer)).add(has_mlp);
    hasher.add(window.has_value()).add(window.value_or(0)).add(chunk.has_value()).add(chunk.value_or(0));
    hasher.add(dense);
  }
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (facts->is_described(model)) facts->hash(hasher, model);
  }
  if (model.prediction_layers > 0)
    hasher.add(std::string_view("prediction layers")).add(model.prediction_layers);
  if (model.numerics != Numerics{}) {
    const auto& [eps, unit_offset, centered, activation, limit, up_offset, embedding_scale, logit_softcap,
                 logit_scale, rotary, window_rotary, interleaved, share, score_scale, temperature, router,
                 weighs_inputs] = model.numerics;
    hasher.add(std::string_view("numerics")).add(eps).add(unit_offset).add(static_cast<int>(activation));
    hasher.add(limit).add(up_offset).add(temperature.scale).add(temperature.floor).add(weighs_inputs);
    hasher.add(embedding_scale).add(logit_softcap);
    hash_rotary(hasher, rotary);
    hasher.add(interleaved).add(share);
    if (window_rotary) hash_rotary(hasher.add(std::string_view("windows")), *window_rotary);
    if (score_scale != 1) hasher.add(std::string_view("score scale")).add(score_scale);
    if (centered) hasher.add(std::string_view("centered norms"));
    if (logit_scale != 1) hasher.add(std::string_view("logit scale")).add(logit_scale);
    hasher.add(router.sigmoid).add(router.groups).add(router.top_groups).add(router.normalized);
    hasher.add(router.scale).add(router.ranks);
  }
  hasher.add(model.latent.has_value());
  const Latent latent = model.latent.value_or(Latent{});
  hasher.add(latent.q_rank).add(latent.kv_rank).add(latent.rope_dim).add(latent.v_head_dim);
  hasher.add(model.experts.has_value());
  const Experts experts = model.experts.value_or(Experts{});
  if (experts.shared_gate) hasher.add(std::string_view("shared gate"));
  if (experts.biases) hasher.add(std::string_view("biases of experts"));
  if (experts.corrects_scores) hasher.add(std::string_view("corrected scores"));
  if (experts.moves_corrections) hasher.add(std::string_view("moved corrections"));
  return hasher.add(experts.count).add(experts.top_k).add(experts.intermediate).add(experts.shared);
}

}  // namespace cp
