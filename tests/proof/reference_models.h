// Small models with each kind of layers, and batches for them, for tests of the reference of a step.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sim/proof/reference/reference_batch.h"
#include "sim/proof/reference/reference_rules.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {

struct ReferenceCase {
  std::string name;
  Transformer model;
  sim::ReferenceRules rules = {};
};
inline void showValue(const ReferenceCase& of, std::ostream& out) { out << of.name; }
inline void PrintTo(const ReferenceCase& of, std::ostream* out) { *out << of.name; }

// A dense model with two layers: small enough that a pass takes a millisecond.
inline Transformer tiny_model() {
  Transformer model = small_model();
  model.hidden = 12, model.layers = 2;
  model.q_heads = 4, model.kv_heads = 2, model.head_dim = 6;
  model.intermediate = 10, model.vocab = 17;
  return model;
}

// Every choice of model.h at least once.
inline std::vector<ReferenceCase> reference_cases() {
  std::vector<ReferenceCase> cases;
  const auto add = [&](const char* name) -> ReferenceCase& {
    ReferenceCase& added = cases.emplace_back(ReferenceCase{name, tiny_model(), {}});
    added.rules.micro_batch = 3;
    return added;
  };
  add("dense");
  ReferenceCase& qwen2 = add("biases, tied");
  qwen2.model.qkv_bias = qwen2.model.tied_embeddings = true;
  qwen2.rules.activation = sim::MlpActivation::relu;
  ReferenceCase& qwen3 = add("norms of heads, gates");
  qwen3.model.qk_norm = qwen3.model.gated_attention = qwen3.model.qkv_bias = true;
  ReferenceCase& olmo = add("norms of all heads, behind alone");
  olmo.model.qk_norm = olmo.model.qk_norm_of_all_heads = olmo.model.norms_behind = true;
  olmo.model.norms_before = false;
  ReferenceCase& gemma = add("windows, cap, norms on both sides, tied");
  gemma.model.norms_behind = gemma.model.tied_embeddings = true;
  gemma.model.softcap = 1.5;
  gemma.rules.activation = sim::MlpActivation::gelu_tanh;
  gemma.rules.norm_unit_offset = true, gemma.rules.embedding_scale = 3, gemma.rules.logit_softcap = 2;
  set_layers(gemma.model, {{3, {}}, {}});
  ReferenceCase& scaled = add("windows with a base of their own, larger rows, smaller scores");
  scaled.rules.rotary = {
      .scale = sim::RotaryScale::yarn, .factor = 4, .high = 8, .original = 12, .size = 1.25};
  scaled.rules.window_rotary = sim::RotaryRules{.theta = 50, .scale = sim::RotaryScale::linear, .factor = 2};
  scaled.rules.score_scale = 0.75;
  set_layers(scaled.model, {{3, {}}, {}});
  ReferenceCase& llama4 = add("chunks, sigmoid router of one expert");
  llama4.model.experts = Experts{3, 1, 5, 7};
  llama4.rules.router.sigmoid = true, llama4.rules.router.normalized = false;
  set_layers(llama4.model, {{{}, 4}, {}});
  ReferenceCase& without = add("no positions in one layer, norms behind them, temperatures");
  without.model.qk_norm = without.model.qk_norm_behind_rotary = without.model.out_bias = true;
  without.rules.temperature_scale = 0.5, without.rules.temperature_floor = 2;
  set_layers(without.model, {{}, {{}, {}, false, Mixer::attention, true, false}});
  ReferenceCase& parallel = add("attention and MLP of one norm, tied");
  parallel.model.parallel_blocks = parallel.model.tied_embeddings = true;
  parallel.rules.rotary.neighbours = parallel.rules.norm_centered = true;
  parallel.rules.logit_scale = 0.25, parallel.model.qk_norm = true;
  set_layers(parallel.model, {{3, {}}, {{}, {}, false, Mixer::attention, true, false}});
  ReferenceCase& weighed = add("experts of weighed rows, gate of the shared one");
  weighed.model.experts = Experts{3, 1, 5, 7, true};
  weighed.rules.weighs_expert_inputs = weighed.rules.router.sigmoid = true;
  weighed.rules.router.normalized = false;
  ReferenceCase& limited = add("biases of experts, limits");
  limited.model.experts = Experts{4, 2, 6, 0, false, true};
  limited.rules.activation = sim::MlpActivation::quick_gelu;
  limited.rules.activation_limit = 0.5, limited.rules.up_offset = 1;
  ReferenceCase& nemotron = add("two matrices, neighbours rotate");
  nemotron.model.gated_mlp = false;
  nemotron.rules.rotary.neighbours = true, nemotron.rules.activation = sim::MlpActivation::gelu;
  ReferenceCase& gpt_oss = add("sinks, windows, experts");
  gpt_oss.model.sinks = true;
  gpt_oss.model.experts = Experts{4, 2, 6, 0};
  set_layers(gpt_oss.model, {{3, {}}, {}});
  ReferenceCase& dropping = add("experts that drop");
  dropping.model.experts = Experts{4, 2, 6, 5};
  dropping.rules.drops = sim::drops_beyond(3);
  dropping.rules.micro_batch = 2;
  ReferenceCase& deepseek = add("latent, groups of experts, predictions");
  deepseek.model.kv_heads = 4, deepseek.model.latent = Latent{5, 7, 2, 3};
  deepseek.model.experts = Experts{6, 2, 5, 6};
  deepseek.model.experts->corrects_scores = true;
  deepseek.model.prediction_layers = 2;
  deepseek.rules.router = {true, true, 2.5, 3, 2};
  set_layers(deepseek.model, {{{}, {}, true}, {}});
  ReferenceCase& lite = add("latent without a latent row of queries, sinks");
  lite.model.kv_heads = 4, lite.model.latent = Latent{0, 5, 3, 4}, lite.model.sinks = true;
  lite.rules.rotary.neighbours = true;
  ReferenceCase& tied_predictions = add("predictions, tied");
  tied_predictions.model.tied_embeddings = true, tied_predictions.model.prediction_layers = 1;
  ReferenceCase& qwen3_next = add("gated delta net");
  qwen3_next.model.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 3, 5, 3, false};
  set_layers(qwen3_next.model, {{{}, {}, false, Mixer::recurrence}, {}});
  ReferenceCase& nemotron_h = add("Mamba-2, layers of one part");
  nemotron_h.model.recurrence = Recurrence{RecurrenceRule::decay, 2, 4, 5, 3, 4, true};
  nemotron_h.model.gated_mlp = false;
  nemotron_h.model.layers = 3;
  set_layers(nemotron_h.model, {{{}, {}, false, Mixer::recurrence, false},
                                {{}, {}, false, Mixer::attention, false},
                                {{}, {}, false, Mixer::none}});
  ReferenceCase& lfm2 = add("short convolutions, experts behind the first layer");
  lfm2.model.convolution = ShortConvolution{3, false};
  lfm2.model.qk_norm = lfm2.model.tied_embeddings = true;
  lfm2.model.experts = Experts{4, 2, 5, 0, false, false, true};
  lfm2.model.layers = 3;
  lfm2.rules.router.sigmoid = true;
  set_layers(lfm2.model, {{{}, {}, true, Mixer::convolution}, {}, {{}, {}, false, Mixer::convolution}});
  ReferenceCase& biased = add("short convolutions with biases, alone");
  biased.model.convolution = ShortConvolution{4, true};
  set_layers(biased.model, {{{}, {}, false, Mixer::convolution, false}, {}});
  return cases;
}

// Three sequences of 9 tokens, two documents each, and some labels that are ignored.
inline sim::ReferenceBatch tiny_batch(const Transformer& model) {
  return sim::draw_batch({model.vocab, 3, 9, 2, 0.2, 0, 5});
}

}  // namespace cp::testing
