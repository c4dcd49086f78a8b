#include "shared/transformer/row_rules_of.h"

#include <algorithm>

namespace cp {

NormRule norm_rule(const Transformer& model, std::int64_t width) {
  NormRule rule{model.numerics.norm_eps, model.numerics.norm_unit_offset, 1, width};
  rule.centered = model.numerics.norm_centered;
  return rule;
}

NormRule qk_norm_rule(const StepContext& context) {
  const Transformer& model = context.model;
  const LocalSizes& sizes = context.sizes;
  NormRule rule = norm_rule(model, sizes.q_width);
  rule.more_groups = 1, rule.more_width = sizes.kv_width;
  // What follows is the rotation, which keeps the size of a head (its magnitude is 1 here): so a norm without
  // weights is the same before it as behind it.
  rule.unweighted = model.qk_norm_behind_rotary;
  if (rule.unweighted) rule.unit_offset = false;
  if (model.qk_norm_of_all_heads) {
    rule.ranks = context.layout.tp;
  } else {
    rule.groups = sizes.q_heads, rule.more_groups = sizes.kv_heads;
    rule.width = rule.more_width = model.head_dim;
  }
  return rule;
}

namespace {

// Of a head's columns those that are rotated; the others are copied.
struct Rotated {
  std::int64_t first = 0, count = 0;
};

// Heads of head_dim side by side, from column `from` of one matrix to column 0 of another.
void move_heads(RotaryRule& rule, std::int64_t source, std::int64_t from, std::int64_t target,
                std::int64_t heads, std::int64_t head_dim, const Rotated& rotated) {
  const auto move = [&](std::int64_t first, std::int64_t count, bool rotates) {
    if (count > 0)
      rule.moves.push_back({source, from + first, head_dim, target, first, head_dim, heads, count, rotates});
  };
  const std::int64_t end = rotated.first + rotated.count;
  move(0, rotated.first, false), move(rotated.first, rotated.count, true), move(end, head_dim - end, false);
}
// Neighbouring columns that are only copied.
void move_columns(RotaryRule& rule, std::int64_t source, std::int64_t from, std::int64_t target,
                  std::int64_t width) {
  rule.moves.push_back({source, from, 0, target, 0, 0, 1, width, false});
}

}  // namespace

RowRule rotary_rule(const StepContext& context, RotaryForm form, int kind) {
  if (!context.training) return {};
  const Transformer& model = context.model;
  const LocalSizes& sizes = context.sizes;
  // Pairs are rotated: of an odd number of columns one stays.
  const bool turns = model.kinds[idx(kind)].rotary;
  const std::int64_t dim = model.head_dim, odd = turns ? model.rotated_dim() % 2 : 0,
                     rotated = turns ? model.rotated_dim() - odd : 0;
  const bool first_ones = !model.latent && model.numerics.rotary_share < 1;
  const auto of_head = [&](std::int64_t width) { return Rotated{first_ones ? 0 : width - rotated, rotated}; };
  RotaryRule rule;
  rule.sequences = context.layout.micro_batch;
  rule.positions = context.positions();
  rule.interleaved = model.numerics.interleaved_rotary;
  move_heads(rule, 0, 0, 0, sizes.q_heads, dim, of_head(dim));
  if (const auto& [scale, floor] = model.numerics.temperature; !turns && scale != 0) {
    rule.temperature = scale, rule.floor = floor;
    for (ColumnMove& move : rule.moves) move.scaled = true;  // of queries alone
  }
  switch (form) {
    case RotaryForm::qkv:
      move_heads(rule, 0, sizes.q_width, 1, sizes.kv_heads, dim, of_head(dim));
      move_columns(rule, 0, sizes.q_width + sizes.kv_width, 2, sizes.v_width);
      break;
    case RotaryForm::qk_and_v:
      move_heads(rule, 0, sizes.q_width, 1, sizes.kv_heads, dim, of_head(dim));
      move_columns(rule, 1, 0, 2, sizes.v_width);
      break;
    case RotaryForm::latent_rows:
      move_heads(rule, 1, 0, 1, 1, model.latent->kv_row(), of_head(model.latent->kv_row()));
      break;
    case RotaryForm::expanded: {
      const std::int64_t heads = sizes.kv_heads, copied = dim - rotated - odd, values = model.v_head_dim(),
                         each = copied + values;
      if (copied > 0) rule.moves.push_back({1, 0, each, 1, 0, dim, heads, copied, false});
      if (odd > 0) rule.moves.push_back({2, 0, 0, 1, copied, dim, heads, odd, false});
      if (rotated > 0) rule.moves.push_back({2, odd, 0, 1, copied + odd, dim, heads, rotated, true});
      rule.moves.push_back({1, copied, each, 2, 0, values, heads, values, false});
      break;
    }
  }
  return rule;
}

GatedNormRule gated_norm_rule(const StepContext& context) {
  const Recurrence& r = context.sizes.recurrence;
  return {r.rule == RecurrenceRule::delta ? r.value_dim : r.value_width() / r.key_heads,
          context.model.numerics.norm_eps};
}

ActivationRule activation_rule(const Transformer& model) {
  const Numerics& numerics = model.numerics;
  return {numerics.activation, model.gated_mlp, numerics.activation_limit, numerics.up_offset, false};
}

ActivationRule expert_activation_rule(const Transformer& model) {
  ActivationRule rule = activation_rule(model);
  rule.weighs_inputs = model.numerics.weighs_expert_inputs;
  return rule;
}

VocabularyRule vocabulary_rule(const StepContext& context) {
  const std::int64_t each = context.sizes.vocab,
                     first = std::min(context.model.vocab, context.groups.tp() * each);
  VocabularyRule rule;
  rule.first = first, rule.count = std::min(each, context.model.vocab - first);
  rule.scale = context.model.numerics.embedding_scale;
  rule.softcap = context.model.numerics.logit_softcap;
  rule.logit_scale = context.model.numerics.logit_scale;
  return rule;
}

RouterRule router_rule(const StepContext& context) {
  RouterRule rule = context.model.numerics.router;
  rule.ranks = context.layout.ep;
  return rule;
}

RouterRule shared_gate_rule() {
  RouterRule rule;
  rule.sigmoid = true, rule.normalized = false;
  return rule;
}

SlotsRule slots_rule(const StepContext& context) { return {context.model.experts->count, context.layout.ep}; }

OptimizerRule optimizer_rule(const Optimizer& optimizer) {
  return {optimizer.states, optimizer.beta1, optimizer.beta2,
          optimizer.eps,    optimizer.decay, optimizer.max_norm};
}

}  // namespace cp
