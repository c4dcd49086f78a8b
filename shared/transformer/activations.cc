#include "shared/transformer/activations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::array<std::string_view, kActivations> kNames = {"norm1",
                                                               "qk",
                                                               "q_latent",
                                                               "kv_latent",
                                                               "normed_q_latent",
                                                               "normed_kv_latent",
                                                               "q",
                                                               "k",
                                                               "v",
                                                               "out",
                                                               "lse",
                                                               "saved_q",
                                                               "saved_k",
                                                               "saved_v",
                                                               "saved_out",
                                                               "attended",
                                                               "mid",
                                                               "norm2",
                                                               "mlp_out",
                                                               "router",
                                                               "route",
                                                               "expert_in",
                                                               "expert_weight",
                                                               "expert_gate_up",
                                                               "expert_activated",
                                                               "gate_up",
                                                               "activated",
                                                               "shared_gate_up",
                                                               "shared_activated"};

std::size_t index_of(Activation what) { return static_cast<std::size_t>(what); }

// Norms and activation functions are cheap to compute again.
bool is_cheap(Activation what) {
  switch (what) {
    case Activation::norm1:
    case Activation::normed_q_latent:
    case Activation::normed_kv_latent:
    case Activation::norm2:
    case Activation::activated:
    case Activation::shared_activated:
    case Activation::expert_activated:
      return true;
    default:
      return false;
  }
}

// What a chunk of rows after the other makes in the same place.
bool is_in_chunks(Activation what) { return what == Activation::gate_up || what == Activation::activated; }

// What layers with one MLP alone have; no value: all have it.
std::optional<Mlp> mlp_with(Activation what) {
  if (is_in_chunks(what)) return Mlp::dense;
  if (what >= Activation::router) return Mlp::experts;
  return std::nullopt;
}

}  // namespace

bool Activations::keeps(Activation what, const LayerPlace& place) const {
  const StepContext& context = writer_.context();
  if (!context.training || place.recomputed) return false;
  if (context.layout.recompute.kind == Recompute::Kind::selective && is_cheap(what)) return false;
  if (context.layout.mlp_chunks > 1 && is_in_chunks(what)) return false;
  // Where attention computes on other parts than those at home, its backward pass reads these instead.
  const bool ulysses = context.strategy().ulysses_degree > 1,
             moves_q = ulysses || context.strategy().balance.kind == Balance::Kind::head_tail_exchange;
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

StackIndex Activations::index(Activation what, const LayerPlace& place) const {
  return mlp_with(what) ? place.kept_of_mlp : place.kept;
}

std::int64_t Activations::pieces(Activation what) const {
  const ByMlp<std::int64_t>& kept = writer_.context().layers_that_keep;
  const std::optional<Mlp> mlp = mlp_with(what);
  return mlp ? kept[*mlp] : kept[Mlp::dense] + kept[Mlp::experts];
}

Window Activations::at(Activation what, const LayerPlace& place, DType dtype, std::int64_t numel) {
  if (!keeps(what, place)) return writer_.working(kNames[index_of(what)], dtype, numel);
  Stack& stack = stacks_[index_of(what)];
  const StackIndex index = this->index(what, place);
  if (on_host()) {
    const Window window = slot(stack, kNames[index_of(what)], dtype, numel, pieces(what), index);
    if (fetches_) fetch(stack, index);
    stack.made = true;
    return window;
  }
  if (stack.buffer < 0) stack.buffer = this->stack(kNames[index_of(what)], dtype, pieces(what) * numel);
  return in_stack(stack.buffer, numel, index);
}

// ---- in host memory ----

namespace {

// One slot is used by the layer at work, the other one is being emptied or filled (activations.h).
constexpr int kSlots = 2;

}  // namespace

BufferId Activations::host_stack(std::string_view name, DType dtype, std::int64_t numel) {
  std::string full = str("host/activations/", name);
  return kind_ == BufferKind::input ? writer_.builder().input(std::move(full), dtype, numel)
                                    : writer_.builder().output(std::move(full), dtype, numel);
}

Window Activations::slot(Stack& stack, std::string_view name, DType dtype, std::int64_t piece,
                         std::int64_t pieces, StackIndex index) {
  if (stack.buffer < 0) {
    stack.buffer = writer_.builder().temporary(str("activations/", name), dtype, kSlots * piece);
    stack.host = host_stack(name, dtype, pieces * piece);
    stack.piece = piece;
  }
  return in_slot(stack.buffer, piece, index, kSlots);
}

void Activations::send_slot(const Stack& stack, StackIndex index) {
  if (stack.piece == 0) return;
  PlanBuilder& builder = writer_.builder();
  builder.add(builder.stream("to_host"),
              Copy{in_slot(stack.buffer, stack.piece, index, kSlots).flat(0, stack.piece),
                   in_stack(stack.host, stack.piece, index).flat(0, stack.piece)},
              "activations to the host");
}

void Activations::fetch(Stack& stack, StackIndex index) {
  if (stack.fetched || stack.piece == 0) return;
  stack.fetched = true;
  PlanBuilder& builder = writer_.builder();
  builder.add(builder.stream("from_host"),
              Copy{in_stack(stack.host, stack.piece, index).flat(0, stack.piece),
                   in_slot(stack.buffer, stack.piece, index, kSlots).flat(0, stack.piece)},
              "activations from the host");
}

void Activations::send(const LayerPlace& place) {
  if (!on_host()) return;
  send_slot(x_, place.layer);
  for (std::size_t i = 0; i < kActivations; ++i) {
    Stack& stack = stacks_[i];
    if (stack.made) send_slot(stack, index(static_cast<Activation>(i), place));
    stack.made = false;
  }
}

void Activations::begin_fetching(const LayerPlace& place) {
  if (!on_host()) return;
  fetches_ = true;
  for (Stack& stack : stacks_) stack.fetched = false;
  x(place.layer);  // the slots
  x_.fetched = false;
  fetch(x_, place.layer);
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

View Activations::positions() {
  const StepContext& context = writer_.context();
  const std::int64_t rows = context.workload.seq_len, width = context.model.rotated_dim();
  if (positions_ < 0) positions_ = writer_.builder().input("activations/positions", DType::f32, rows * width);
  return dense_view(positions_, 0, {std::min(rows, context.tokens), width});
}

View Activations::x(StackIndex layer) {
  const StepContext& context = writer_.context();
  const std::int64_t piece = context.tokens_tp * context.hidden;
  const Shape shape{context.tokens_tp, context.hidden};
  BufferId& buffer = x_.buffer;
  if (!context.training) {
    if (buffer < 0) buffer = writer_.builder().temporary("working/x", writer_.dtype(), kSlots * piece);
    return in_slot(buffer, piece, layer, kSlots).dense(0, shape);
  }
  // What the last layer makes is the loss's, and is not sent.
  if (on_host()) return slot(x_, "x", writer_.dtype(), piece, context.layers, layer).dense(0, shape);
  if (buffer < 0) buffer = stack("x", writer_.dtype(), (context.layers + 1) * piece);
  return in_stack(buffer, piece, layer).dense(0, shape);
}

}  // namespace cp
