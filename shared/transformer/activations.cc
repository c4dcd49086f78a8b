#include "shared/transformer/activations.h"

#include <algorithm>
#include <span>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp {
namespace {

// What is said of each, in the order of Activation: its name, which layers have it, whether it is cheap to
// compute again, as norms, activation functions and gates are, and whether it is f32 whatever the dtype of
// the rows.
struct Facts {
  Activation what;
  std::string_view name;
  Having owner;
  bool cheap = false, f32 = false;
};
constexpr Having kRecurrence = having(Mixer::recurrence), kConvolution = having(Mixer::convolution);
constexpr std::array<Facts, kActivations> kFacts = {{
    {Activation::norm1, "norm1", Having::mixer, true},
    {Activation::qk, "qk", Having::attention},
    {Activation::qk_squares, "qk_squares", Having::attention, false, true},
    {Activation::q_latent, "q_latent", Having::attention},
    {Activation::kv_latent, "kv_latent", Having::attention},
    {Activation::normed_q_latent, "normed_q_latent", Having::attention, true},
    {Activation::normed_kv_latent, "normed_kv_latent", Having::attention, true},
    {Activation::q, "q", Having::attention},
    {Activation::k, "k", Having::attention},
    {Activation::v, "v", Having::attention},
    {Activation::latent, "latent", Having::attention},
    {Activation::out, "out", Having::attention},
    {Activation::lse, "lse", Having::attention, false, true},
    {Activation::saved_q, "saved_q", Having::attention},
    {Activation::saved_k, "saved_k", Having::attention},
    {Activation::saved_v, "saved_v", Having::attention},
    {Activation::saved_latent, "saved_latent", Having::attention},
    {Activation::saved_out, "saved_out", Having::attention},
    {Activation::gates, "gates", Having::attention},
    {Activation::gated_out, "gated_out", Having::attention, true},
    {Activation::projected, "projected", kRecurrence},
    {Activation::halo, "halo", kRecurrence},
    {Activation::recurrent_q, "recurrent_q", kRecurrence},
    {Activation::recurrent_k, "recurrent_k", kRecurrence},
    {Activation::recurrent_v, "recurrent_v", kRecurrence},
    {Activation::log_decay, "log_decay", kRecurrence, false, true},
    {Activation::beta, "beta", kRecurrence, false, true},
    {Activation::recurrent_out, "recurrent_out", kRecurrence},
    {Activation::states, "states", kRecurrence, false, true},
    {Activation::transitions, "transitions", kRecurrence, false, true},
    {Activation::kept_q, "kept_q", kRecurrence},
    {Activation::kept_k, "kept_k", kRecurrence},
    {Activation::kept_v, "kept_v", kRecurrence},
    {Activation::kept_log_decay, "kept_log_decay", kRecurrence, false, true},
    {Activation::kept_beta, "kept_beta", kRecurrence, false, true},
    {Activation::normed_out, "normed_out", kRecurrence, true},
    {Activation::convolution, "convolution", kConvolution},
    {Activation::convolution_in, "convolution_in", kConvolution, true},
    {Activation::convolution_halo, "convolution_halo", kConvolution},
    {Activation::convolved_out, "convolved_out", kConvolution, true},
    {Activation::attended, "attended", Having::mixer},
    {Activation::mid, "mid", Having::both},
    {Activation::norm2, "norm2", Having::mlp, true},
    {Activation::mlp_out, "mlp_out", Having::mlp},
    {Activation::router, "router", Having::experts},
    {Activation::route, "route", Having::experts},
    {Activation::expert_in, "expert_in", Having::experts},
    {Activation::expert_weight, "expert_weight", Having::experts, false, true},
    {Activation::expert_gate_up, "expert_gate_up", Having::experts},
    {Activation::expert_activated, "expert_activated", Having::experts, true},
    {Activation::gate_up, "gate_up", Having::dense},
    {Activation::activated, "activated", Having::dense, true},
    {Activation::shared_gate, "shared_gate", Having::experts},
    {Activation::shared_gate_up, "shared_gate_up", Having::experts},
    {Activation::shared_activated, "shared_activated", Having::experts, true},
    {Activation::joined, "joined", Having::anything, true},
}};
static_assert([] {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (static_cast<std::size_t>(kFacts[i].what) != i) return false;
  }
  return true;
}());

std::size_t index_of(Activation what) { return static_cast<std::size_t>(what); }
const Facts& facts_of(Activation what) { return kFacts[index_of(what)]; }

// What a chunk of rows after the other makes in the same place.
bool is_in_chunks(Activation what) { return what == Activation::gate_up || what == Activation::activated; }

}  // namespace

Activations::Activations(StepWriter& writer, BufferKind kind)
    : writer_(writer),
      kind_(kind),
      layers_that_keep_(writer.context().layers_that_keep),
      on_host_(writer.context().layout.host_activations && writer.context().training) {
  for (int home = 0; home < kMostHomes; ++home) layers_at_[idx(home)] = writer.context().layers_at(home);
}

Activations::Activations(StepWriter& writer, const LayerPlace& alone)
    : writer_(writer), kind_(BufferKind::temporary), on_host_(false) {
  layers_at_[idx(alone.home)] = 1;
  layers_that_keep_[idx(alone.home)][alone.parts] = alone.recomputed ? 0 : 1;
}

bool Activations::keeps(Activation what, const LayerPlace& place) const {
  const StepContext& context = writer_.context();
  if (!context.training || place.recomputed) return false;
  if (context.layout.recompute.kind == Recompute::Kind::selective && facts_of(what).cheap) return false;
  if (context.layout.mlp_chunks > 1 && is_in_chunks(what)) return false;
  // Where attention computes on other parts than those at home, its backward pass reads these instead.
  const bool ulysses = context.strategy().ulysses_degree > 1,
             moves_q = ulysses || context.strategy().balance.kind == Balance::Kind::head_tail_exchange;
  if (context.layout.cp == 1) return true;
  const bool trades = context.recurrence && context.recurrence->strategy.scan == StateScan::heads;
  switch (what) {
    case Activation::recurrent_v:  // Mamba-2 adds it to the output
      return !trades || context.model.recurrence->rule == RecurrenceRule::decay;
    case Activation::recurrent_q:
    case Activation::recurrent_k:
    case Activation::log_decay:
    case Activation::beta:
      return !trades;
    default:
      break;
  }
  if (what == Activation::q) return !moves_q;
  if (what == Activation::k || what == Activation::v || what == Activation::latent) return !ulysses;
  // Where attention contracts the rows' gradients, too, nothing else reads the normalized ones.
  if (what == Activation::normed_kv_latent) return context.latent == LatentUse::nothing;
  return true;
}

BufferId Activations::stack(std::string_view name, DType dtype, std::int64_t numel, BufferKind kind) {
  std::string full = str("activations/", name);
  switch (kind) {
    case BufferKind::input:
      return writer_.builder().input(std::move(full), dtype, numel);
    case BufferKind::output:
      return writer_.builder().output(std::move(full), dtype, numel);
    case BufferKind::inout:
      return writer_.builder().inout(std::move(full), dtype, numel);
    case BufferKind::temporary:
      break;
  }
  return writer_.builder().temporary(std::move(full), dtype, numel);
}

// Of the stack at the home that the context is at. Forward the first layer's input has come from the stage
// before. Backward the gradient of the last one's output has come in its place, and is changed there.
BufferKind Activations::kind_of_inputs() const {
  const StepContext& context = writer_.context();
  const bool comes =
      kind_ == BufferKind::output  ? !context.first_stage && context.home() == context.homes.front()
      : kind_ == BufferKind::input ? !context.last_stage && context.home() == context.homes.back()
                                   : false;
  return comes ? BufferKind::inout : kind_;
}

StackIndex Activations::index(Activation what, const LayerPlace& place) const {
  return place.kept_with(facts_of(what).owner);
}

std::int64_t Activations::pieces(Activation what, const LayerPlace& place) const {
  return count_of(layers_that_keep_[idx(place.home)], facts_of(what).owner);
}

std::string Activations::stack_name(std::string_view name, int home) const {
  if (home == 0) return std::string(name);
  return str(name, ", ", to_string(strategy_at_home(writer_.context().layout, home).balance));
}

Window Activations::at(Activation what, const LayerPlace& place, std::int64_t numel) {
  const DType dtype = what == Activation::route ? DType::i32
                      : facts_of(what).f32      ? DType::f32
                                                : writer_.dtype();
  if (!keeps(what, place)) return writer_.working(facts_of(what).name, dtype, numel);
  Stack& stack = stacks_[idx(place.home)][index_of(what)];
  const StackIndex index = this->index(what, place);
  if (on_host()) {
    const Window window =
        slot(stack, stack_name(facts_of(what).name, place.home), dtype, numel, pieces(what, place), index);
    if (fetches_) fetch(stack, index);
    stack.made = true;
    return window;
  }
  if (stack.buffer < 0)
    stack.buffer =
        this->stack(stack_name(facts_of(what).name, place.home), dtype, pieces(what, place) * numel, kind_);
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
  send_slot(x_[idx(place.home)], place.input);
  for (std::size_t i = 0; i < kActivations; ++i) {
    Stack& stack = stacks_[idx(place.home)][i];
    if (stack.made) send_slot(stack, index(static_cast<Activation>(i), place));
    stack.made = false;
  }
}

void Activations::begin_fetching(const LayerPlace& place) {
  if (!on_host()) return;
  fetches_ = true;
  for (Stack& stack : stacks_[idx(place.home)]) stack.fetched = false;
  x(place.input);  // the slots
  x_[idx(place.home)].fetched = false;
  fetch(x_[idx(place.home)], place.input);
}

namespace {

using Operand = std::pair<std::string_view, Activation>;

Activation operand_of(std::span<const Operand> operands, std::string_view name) {
  const auto found = std::find_if(operands.begin(), operands.end(),
                                  [&](const Operand& operand) { return operand.first == name; });
  CP_INVARIANT(found != operands.end(), "a mixer has a buffer ", name);
  return found->second;
}

}  // namespace

View Activations::attention_operand(std::string_view name, const LayerPlace& place, std::int64_t numel) {
  static constexpr Operand kOperands[] = {{"q", Activation::q},
                                          {"k", Activation::k},
                                          {"v", Activation::v},
                                          {"latent", Activation::latent},
                                          {"out", Activation::out},
                                          {"lse", Activation::lse},
                                          {"saved_q", Activation::saved_q},
                                          {"saved_k", Activation::saved_k},
                                          {"saved_v", Activation::saved_v},
                                          {"saved_latent", Activation::saved_latent},
                                          {"saved_out", Activation::saved_out}};
  const Activation what = operand_of(kOperands, name);
  return at(what, place, numel).flat(0, numel);
}

View Activations::recurrence_operand(std::string_view name, const LayerPlace& place, std::int64_t numel) {
  static constexpr Operand kOperands[] = {
      {"q", Activation::recurrent_q},       {"k", Activation::recurrent_k},
      {"v", Activation::recurrent_v},       {"log_decay", Activation::log_decay},
      {"beta", Activation::beta},           {"out", Activation::recurrent_out},
      {"saved_states", Activation::states}, {"saved_transitions", Activation::transitions},
      {"saved_q", Activation::kept_q},      {"saved_k", Activation::kept_k},
      {"saved_v", Activation::kept_v},      {"saved_log_decay", Activation::kept_log_decay},
      {"saved_beta", Activation::kept_beta}};
  const Activation what = operand_of(kOperands, name);
  return at(what, place, numel).flat(0, numel);
}

View Activations::x(StackIndex input) {
  const StepContext& context = writer_.context();
  const std::int64_t piece = context.tokens_tp * context.hidden;
  const Shape shape{context.tokens_tp, context.hidden};
  const int home = context.home();
  Stack& stack = x_[idx(home)];
  BufferId& buffer = stack.buffer;
  if (!context.training) {
    if (buffer < 0) buffer = writer_.builder().temporary("working/x", writer_.dtype(), kSlots * piece);
    return in_slot(buffer, piece, input, kSlots).dense(0, shape);
  }
  const std::string name = stack_name("x", home);
  // No backward pass reads what the last layer made; of all stages but the last one it has the gradients
  // there. Where stacks are in host memory, it is not sent.
  const bool hands_on = context.homes.back() == home && (kind_ != BufferKind::input || !context.last_stage);
  const std::int64_t layers = layers_at_[idx(home)], pieces = layers + (hands_on ? 1 : 0);
  if (on_host()) return slot(stack, name, writer_.dtype(), piece, layers, input).dense(0, shape);
  if (buffer < 0) buffer = this->stack(name, writer_.dtype(), pieces * piece, kind_of_inputs());
  return in_stack(buffer, piece, input).dense(0, shape);
}

// ---- between stages ----

// As large as the rows at either end of the stage.
View Activations::between_stages() {
  const StepContext& context = writer_.context();
  if (between_stages_ < 0) {
    const std::int64_t rows =
        std::max(context.rows_at(context.homes.front()), context.rows_at(context.homes.back()));
    between_stages_ =
        writer_.builder().inout("activations/between stages", writer_.dtype(), rows * context.hidden);
  }
  return dense_view(between_stages_, 0, {context.tokens_tp, context.hidden});
}

View Activations::arrived() { return on_host() ? between_stages() : x({}); }
View Activations::handed_on(StackIndex last) { return on_host() ? between_stages() : x(last); }

void Activations::take_arrived() {
  if (on_host()) writer_.copy(between_stages(), x({}), "rows of the stage before");
}

void Activations::hand_on(StackIndex last) {
  if (on_host()) writer_.copy(x(last), between_stages(), "rows for the next stage");
}

}  // namespace cp
