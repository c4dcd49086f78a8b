#include "shared/transformer/activations.h"

#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::array<std::string_view, kActivations> kNames = {
    "norm1",         "qk",      "q",         "k",   "v",     "out",    "lse",   "saved_q",
    "saved_k",       "saved_v", "saved_out", "mid", "norm2", "router", "route", "expert_in",
    "expert_weight", "gate_up", "activated"};

std::size_t index_of(Activation what) { return static_cast<std::size_t>(what); }

// Norms and activation functions are cheap to compute again.
bool is_cheap(Activation what) {
  return what == Activation::norm1 || what == Activation::norm2 || what == Activation::activated;
}

}  // namespace

bool Activations::keeps(Activation what, const LayerPlace& place) const {
  const StepContext& context = writer_.context();
  if (!context.training || place.recomputed) return false;
  if (context.layout.recompute.kind == Recompute::Kind::selective && is_cheap(what)) return false;
  // Where attention computes on other parts than those at home, its backward pass reads these instead.
  const bool ulysses = context.attention.strategy.ulysses_degree > 1,
             moves_q =
                 ulysses || context.attention.strategy.balance.kind == Balance::Kind::head_tail_exchange;
  if (context.layout.cp == 1) return true;
  if (what == Activation::q) return !moves_q;
  if (what == Activation::k || what == Activation::v) return !ulysses;
  return true;
}

BufferId Activations::stack(std::string_view name, DType dtype, std::int64_t numel) {
  std::string full = str("activations/", name);
  switch (kind_) {
    case BufferKind::input:
      return writer_.builder().input(std::move(full), dtype, numel);
    case BufferKind::output:
      return writer_.builder().output(std::move(full), dtype, numel);
    default:
      return writer_.builder().temporary(std::move(full), dtype, numel);
  }
}

Window Activations::at(Activation what, const LayerPlace& place, DType dtype, std::int64_t numel) {
  if (!keeps(what, place)) return writer_.working(kNames[index_of(what)], dtype, numel);
  BufferId& buffer = stacks_[index_of(what)];
  if (buffer < 0) {
    const StepContext& context = writer_.context();
    const std::int64_t pieces = layers_that_keep(context.layers, context.layout.recompute);
    buffer = stack(kNames[index_of(what)], dtype, pieces * numel);
  }
  return in_stack(buffer, numel, place.kept);
}

View Activations::attention_operand(std::string_view name, const LayerPlace& place, std::int64_t numel) {
  static constexpr std::pair<std::string_view, Activation> kOperands[] = {
      {"q", Activation::q},
      {"k", Activation::k},
      {"v", Activation::v},
      {"out", Activation::out},
      {"lse", Activation::lse},
      {"saved_q", Activation::saved_q},
      {"saved_k", Activation::saved_k},
      {"saved_v", Activation::saved_v},
      {"saved_out", Activation::saved_out}};
  for (const auto& [known, what] : kOperands) {
    if (known != name) continue;
    return at(what, place, what == Activation::lse ? DType::f32 : writer_.dtype(), numel).flat(0, numel);
  }
  CP_INVARIANT(false, "attention has a buffer ", name);
  return {};
}

View Activations::x(StackIndex layer) {
  const StepContext& context = writer_.context();
  const std::int64_t piece = context.tokens_tp * context.hidden;
  if (!context.training) {
    if (x_ < 0) x_ = writer_.builder().temporary("working/x", writer_.dtype(), 2 * piece);
    return in_slot(x_, piece, layer, 2).dense(0, {context.tokens_tp, context.hidden});
  }
  if (x_ < 0) x_ = stack("x", writer_.dtype(), (context.layers + 1) * piece);
  return in_stack(x_, piece, layer).dense(0, {context.tokens_tp, context.hidden});
}

}  // namespace cp
