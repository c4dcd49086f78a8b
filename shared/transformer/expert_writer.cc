#include "shared/transformer/expert_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shared/transformer/row_rules_of.h"

namespace cp {

// The rows of all experts are dealt to them in equal numbers; the last ones may get fewer, or none: the
// regions of experts of row_operations.h.
template <class F>
void ExpertWriter::for_experts(const F& f) const {
  const std::int64_t rows = capacity(), experts = context_.sizes.experts, each = ceil_div(rows, experts),
                     whole = each == 0 ? 0 : rows / each;
  if (whole > 0) f(ExpertGroup{0, whole, 0, each});
  for (std::int64_t expert = whole; expert < experts; ++expert) {
    const std::int64_t first = std::min(rows, expert * each);
    f(ExpertGroup{expert, 1, first, std::min(rows, first + each) - first});
  }
}

View ExpertWriter::rows_of_group(const View& rows, const ExpertGroup& group) {
  const View all = rows_of(rows, group.first_row, group.count * group.rows);
  return of_experts(all, group.count, group.rows);
}

// As the operands of several products, or of one.
View ExpertWriter::of_experts(const View& all, std::int64_t count, std::int64_t rows) {
  if (count == 1) return all;
  View view = all;
  view.shape = {count, rows, all.shape[1]};
  view.strides = {rows * all.strides[0], all.strides[0], all.strides[1]};
  return view;
}

View ExpertWriter::matrices(const Weight& first, const Window& piece, const ExpertGroup& group) {
  return of_experts(first.part(0, group.count * first.rows).matrix(piece), group.count, first.rows);
}

// ---- biases ----

View ExpertWriter::own_rows(const View& rows, const ExpertGroup& group) {
  return rows_of(rows, group.first_row, group.count * group.rows);
}

View ExpertWriter::biases_of(const Weight& all, const Window& piece, const ExpertGroup& group) {
  return all.part(group.first, group.count).matrix(piece);
}

View ExpertWriter::biased_columns(const View& rows) const {
  const std::int64_t each = context_.sizes.expert_bias_columns;
  return columns_of(rows, context_.groups.tp() * each, each);
}

void ExpertWriter::add_biases(const Weight& biases, const Window& experts, const ExpertGroup& group,
                              const View& rows, const View* weights, const std::string& label) {
  if (biases.numel() == 0) return;
  std::vector<View> reads{biases_of(biases, experts, group)};
  if (weights != nullptr) reads.push_back(*weights);
  writer_.kernel({RowOperation::group_bias, std::move(reads), {}, {rows}}, label);
}

void ExpertWriter::bias_gradients(const Weight& biases, const GradientPlace& gradients,
                                  const ExpertGroup& group, std::vector<View> reads,
                                  std::vector<View> updates, const std::string& label) {
  const View place = biases_of(biases, gradients.window, group);
  RowKernel kernel{RowOperation::group_bias_backward, std::move(reads), {}, {}};
  (gradients.adds ? kernel.updates : kernel.writes).push_back(place);
  kernel.updates.insert(kernel.updates.end(), updates.begin(), updates.end());
  writer_.kernel(std::move(kernel), label);
}

// ---- what is kept ----

View ExpertWriter::routes(const LayerPlace& place) {
  const std::int64_t top_k = context_.model.experts->top_k;
  return activations_.at(A::route, place, context_.tokens * top_k).dense(0, {context_.tokens, top_k});
}

View ExpertWriter::router_logits(const LayerPlace& place) {
  return activations_.rows(A::router, place, context_.tokens, context_.model.experts->count);
}

ExpertWriter::Tokens ExpertWriter::expert_tokens(const LayerPlace& place) {
  return {activations_.rows(A::expert_in, place, capacity(), context_.hidden),
          activations_.at(A::expert_weight, place, capacity()).dense(0, {capacity(), 1})};
}

// ---- between ranks and experts ----

namespace {

View working_like(StepWriter& writer, const View& view, const std::string& name) {
  const DType dtype = writer.builder().dtype(view.buffer);
  return writer.working(name, dtype, view.numel()).dense(0, view.shape);
}

}  // namespace

View ExpertWriter::start_of_way(const View& last, const std::string& name) {
  return travels() ? working_like(writer_, last, name + " to send") : last;
}

void ExpertWriter::to_experts(const View& from, const View& to, const std::string& name) {
  if (!travels()) return;
  const View arrived = sorts() ? working_like(writer_, to, name + " arrived") : to;
  writer_.all_to_all(from, arrived, name + " to experts");
  if (sorts())
    writer_.kernel({RowOperation::dispatch, {arrived}, {to}, {}, slots_rule(context_)}, "sort " + name);
}

View ExpertWriter::end_of_way(const View& first, const std::string& name) {
  return travels() ? working_like(writer_, first, name + " returned") : first;
}

void ExpertWriter::from_experts(const View& from, const View& to, const std::string& name) {
  if (!travels()) return;
  View leaving = from;
  if (sorts()) {
    leaving = working_like(writer_, from, name + " to return");
    writer_.kernel({RowOperation::combine, {from}, {leaving}, {}, slots_rule(context_)}, "unsort " + name);
  }
  writer_.all_to_all(leaving, to, name + " from experts");
}

// ---- forward ----

void ExpertWriter::forward(const LayerPlace& place, const Window& layer, const Window& experts,
                           const View& rows, const View& partial) {
  const std::int64_t columns = context_.sizes.expert_columns, ups = context_.model.up_matrices() * columns;
  const View logits = router_logits(place), route = routes(place);
  const View weights = writer_.working("route weights", DType::f32, route.numel()).dense(0, route.shape);
  const LayerWeights& weights_of_layer = context_.layer[place.parts];
  writer_.matmul(rows, weights_of_layer.router.transposed(layer), logits, "router");
  if (weights_of_layer.router_bias.numel() > 0) {
    writer_.kernel({RowOperation::add_bias, {weights_of_layer.router_bias.flat(layer)}, {}, {logits}},
                   "router bias");
  }
  const Experts& model = *context_.model.experts;
  std::vector<View> scored{logits}, loads;
  if (model.corrects_scores) scored.push_back(writer_.score_correction(place.of_mlp));
  if (model.moves_corrections && context_.training && !again_) loads.push_back(writer_.loads(place.of_mlp));
  writer_.kernel(
      {RowOperation::route, std::move(scored), {weights, route}, std::move(loads), router_rule(context_)},
      "route");

  const Tokens in = expert_tokens(place);
  const Tokens sent{start_of_way(in.rows, "tokens"), start_of_way(in.weights, "weights")};
  writer_.kernel(
      {RowOperation::dispatch, {rows, weights, route}, {sent.rows, sent.weights}, {}, slots_rule(context_)},
      "dispatch");
  to_experts(sent.rows, in.rows, "tokens");
  to_experts(sent.weights, in.weights, "weights");

  const View gate_up = activations_.rows(A::expert_gate_up, place, capacity(), ups),
             activated = activations_.rows(A::expert_activated, place, capacity(), columns),
             out = writer_.working_rows("expert out", capacity(), context_.hidden);
  for_experts([&](const ExpertGroup& group) {
    writer_.matmul(rows_of_group(in.rows, group),
                   transposed(matrices(context_.experts.gate_up(group.first), experts, group)),
                   rows_of_group(gate_up, group), "expert gate, up");
    add_biases(context_.experts.gate_up_biases, experts, group, own_rows(gate_up, group), nullptr,
               "expert gate, up, biases");
  });
  writer_.kernel({RowOperation::gated_activation,
                  {gate_up, in.weights},
                  {activated},
                  {},
                  expert_activation_rule(context_.model)},
                 "activation");
  for_experts([&](const ExpertGroup& group) {
    writer_.matmul(rows_of_group(activated, group),
                   transposed(matrices(context_.experts.down(group.first), experts, group)),
                   rows_of_group(out, group), "expert down");
    const View weights_of_rows = own_rows(in.weights, group);
    add_biases(context_.experts.down_biases, experts, group, biased_columns(own_rows(out, group)),
               &weights_of_rows, "expert down, biases");
  });

  const View returned = end_of_way(out, "outputs");
  from_experts(out, returned, "outputs");
  writer_.kernel({RowOperation::combine, {returned, route}, {partial}, {}, slots_rule(context_)}, "combine");
}

// ---- backward ----

void ExpertWriter::backward(const LayerPlace& place, const Window& layer, const Window& experts,
                            const GradientPlace& layer_gradient, const GradientPlace& experts_gradient,
                            const View& rows, const View& d_out, const View& d_rows) {
  const std::int64_t columns = context_.sizes.expert_columns, ups = context_.model.up_matrices() * columns;
  const View route = routes(place), logits = router_logits(place);
  const Tokens in = expert_tokens(place);
  const View gate_up = activations_.rows(A::expert_gate_up, place, capacity(), ups),
             activated = activations_.rows(A::expert_activated, place, capacity(), columns);
  if (!place.recomputed && !activations_.keeps(A::expert_activated, place)) {
    writer_.kernel({RowOperation::gated_activation,
                    {gate_up, in.weights},
                    {activated},
                    {},
                    expert_activation_rule(context_.model)},
                   "activation again");
  }

  // The gradients go the way of the tokens: `combine` is undone by a dispatch of the output's gradients, and
  // at the end `dispatch` by a combine of the inputs' gradients. Each is the transpose of the other.
  const View d_expert_out = writer_.working_rows("d expert out", capacity(), context_.hidden);
  const View sent = start_of_way(d_expert_out, "d outputs");
  writer_.kernel({RowOperation::dispatch, {d_out, route}, {sent}, {}, slots_rule(context_)},
                 "combine backward");
  to_experts(sent, d_expert_out, "d outputs");

  const View d_activated = writer_.working_rows("d activated", capacity(), columns),
             d_gate_up = writer_.working_rows("d gate_up", capacity(), ups),
             d_in = writer_.working_rows("d expert in", capacity(), context_.hidden),
             d_weights = writer_.working("d expert weight", DType::f32, capacity()).dense(0, {capacity(), 1});
  for_experts([&](const ExpertGroup& group) {
    const Weight down = context_.experts.down(group.first);
    const View d = rows_of_group(d_expert_out, group);
    writer_.matmul(d, matrices(down, experts, group), rows_of_group(d_activated, group),
                   "expert down, dgrad");
    writer_.matmul(transposed(d), rows_of_group(activated, group),
                   matrices(down, experts_gradient.window, group), "expert down, wgrad",
                   experts_gradient.adds);
  });
  // The token's weight was multiplied in with the activation, so this kernel makes the weight's gradient too.
  writer_.kernel({RowOperation::gated_activation_backward,
                  {gate_up, in.weights, d_activated},
                  {d_gate_up, d_weights},
                  {},
                  expert_activation_rule(context_.model)},
                 "activation backward");
  for_experts([&](const ExpertGroup& group) {
    const Weight weight = context_.experts.gate_up(group.first);
    const View d = rows_of_group(d_gate_up, group);
    writer_.matmul(d, matrices(weight, experts, group), rows_of_group(d_in, group), "expert gate, up, dgrad");
    writer_.matmul(transposed(d), rows_of_group(in.rows, group),
                   matrices(weight, experts_gradient.window, group), "expert gate, up, wgrad",
                   experts_gradient.adds);
    if (!context_.model.experts->biases) return;
    bias_gradients(context_.experts.gate_up_biases, experts_gradient, group, {own_rows(d_gate_up, group)}, {},
                   "expert gate, up, biases backward");
    bias_gradients(context_.experts.down_biases, experts_gradient, group,
                   {biased_columns(own_rows(d_expert_out, group)),
                    biases_of(context_.experts.down_biases, experts, group), own_rows(in.weights, group)},
                   {own_rows(d_weights, group)}, "expert down, biases backward");
  });

  const Tokens back{end_of_way(d_in, "d tokens"), end_of_way(d_weights, "d weights")};
  from_experts(d_in, back.rows, "d tokens");
  from_experts(d_weights, back.weights, "d weights");
  writer_.kernel({RowOperation::combine, {back.rows, route}, {d_rows}, {}, slots_rule(context_)},
                 "dispatch backward");
  const View d_logits = writer_.working_rows("d router", context_.tokens, context_.model.experts->count);
  writer_.kernel(
      {RowOperation::route_backward, {logits, route, back.weights}, {d_logits}, {}, router_rule(context_)},
      "route backward");
  // d_rows holds the experts' part by now, and the router's is added to it.
  const Weight &router = context_.layer[place.parts].router, &bias = context_.layer[place.parts].router_bias;
  if (bias.numel() > 0) {
    writer_.kernel_with_gradients({RowOperation::add_bias, {d_logits}, {}, {}}, {bias}, layer_gradient,
                                  "router bias backward");
  }
  writer_.weight_gradient(transposed(d_logits), rows, router, layer_gradient, "router, wgrad");
  writer_.matmul(d_logits, router.matrix(layer), d_rows, "router, dgrad", true);
}

}  // namespace cp
