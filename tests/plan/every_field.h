// A plan with every operation and every kind of field, and a visit to a small change of each field in turn.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp::test {

// Changes one thing of a value at a time, calls f, and puts it back.
template <class F>
class Variations {
 public:
  explicit Variations(const F& f) : f_(f) {}

  // Another value, of a type that `of` does not know.
  template <class T>
  void with(T& place, T changed) {
    std::swap(place, changed);
    f_();
    std::swap(place, changed);
  }

  void of(std::int32_t& value) { with(value, value + 1); }
  void of(std::int64_t& value) { with(value, value + 1); }
  void of(double& value) { with(value, value + 0.5); }
  void of(bool& value) { with(value, !value); }
  void of(std::string& value) { with(value, value + "'"); }
  void of(ReduceOp& value) { with(value, value == ReduceOp::max ? ReduceOp::min : ReduceOp::max); }
  void of(RowOperation& value) {
    with(value, value == RowOperation::rotary ? RowOperation::optimizer : RowOperation::rotary);
  }
  void of(AttentionEngine& value) {
    with(value, value == AttentionEngine::exact ? AttentionEngine::fused : AttentionEngine::exact);
  }
  void of(RecurrenceRule& value) {
    with(value, value == RecurrenceRule::decay ? RecurrenceRule::delta : RecurrenceRule::decay);
  }
  void of(DType& value) { with(value, value == DType::bf16 ? DType::i64 : DType::bf16); }
  void of(BufferKind& value) {
    with(value, value == BufferKind::input ? BufferKind::inout : BufferKind::input);
  }
  void of(Digest& value) {
    with(value.high, value.high + 1);
    with(value.low, value.low + 1);
  }
  void of(Advance& value) { of(value.stride), of(value.period), of(value.phase); }
  void of(View& value) {
    of(value.buffer), of(value.offset), of(value.shape), of(value.strides), of(value.advance);
    std::swap(value.shape, value.strides);
    if (value.shape != value.strides) f_();
    std::swap(value.shape, value.strides);
    with(value, View{});
  }
  void of(Transfer& value) { of(value.peer), of(value.view), of(value.there); }
  void of(MaskSlice& value) {
    of(value.q_begin), of(value.q_len), of(value.k_begin), of(value.k_len);
    with(value.kind, value.kind == MaskSlice::Kind::full ? MaskSlice::Kind::causal : MaskSlice::Kind::full);
    with(value.kind,
         value.kind == MaskSlice::Kind::window ? MaskSlice::Kind::causal : MaskSlice::Kind::window);
    of(value.diagonal), of(value.window);
  }
  void of(Run& value) { of(value.begin), of(value.run), of(value.stride), of(value.count); }
  void of(AttentionDropout& value) {
    of(value.probability), of(value.layer), of(value.first_batch), of(value.first_head), of(value.heads);
    of(value.queries), of(value.keys);
  }
  void of(ActivationFunction& value) {
    with(value, value == ActivationFunction::silu ? ActivationFunction::identity : ActivationFunction::silu);
  }
  void of(ColumnMove& value) {
    visit_rule_fields(value, [&](std::string_view, auto& field) { of(field); });
  }
  void of(ConvolvedRun& value) {
    visit_rule_fields(value, [&](std::string_view, auto& field) { of(field); });
  }
  void of(RowRule& value) {
    with(value, value.index() == 0 ? RowRule(NormRule{}) : RowRule());
    std::visit(
        [&](auto& rule) { visit_rule_fields(rule, [&](std::string_view, auto& field) { of(field); }); },
        value);
  }
  void of(Edge& value) { of(value.step), of(value.iterations_back); }
  template <class T>
  void of(std::vector<T>& values) {
    for (T& value : values) of(value);
    values.push_back(T{});
    f_();
    values.pop_back();
  }
  template <class T>
  void of(std::set<T>& values) {
    const std::set<T> before = values;
    for (const T& value : before) {
      values.erase(value);
      f_();
      values.insert(value);
    }
  }

  // All that is part of a plan's meaning.
  void of(Plan& plan) {
    of(plan.self), of(plan.arena_bytes), of(plan.symmetric_bytes), of(plan.inputs);
    of(plan.target.name), of(plan.target.collectives), of(plan.target.kernels), of(plan.target.dtypes);
    of(plan.target.alignment_bytes);
    visit_fields(*plan.target.fused_attention, [&](std::string_view, auto& field) { of(field); });
    with(plan.target.fused_attention, std::optional<FusedAttention>());
    for (Group& group : plan.groups) of(group.name), of(group.ranks), of(group.copy_engine);
    for (Buffer& buffer : plan.buffers) {
      of(buffer.symmetric);
      of(buffer.kind), of(buffer.dtype), of(buffer.numel), of(buffer.offset_bytes);
      of(buffer.first_use), of(buffer.last_use);
    }
    plan.streams.push_back("one more");
    f_();
    plan.streams.pop_back();
    for (Segment& segment : plan.segments) {
      std::visit(Overloaded{[&](Step& step) { of(step); },
                            [&](Repeat& repeat) {
                              of(repeat.count);
                              for (Step& step : repeat.steps) of(step);
                            }},
                 segment);
    }
    of_structure(plan);
  }

  // People's words: no part of the meaning.
  void of_words(Plan& plan) {
    for (std::string& stream : plan.streams) of(stream);
    for (Buffer& buffer : plan.buffers) of(buffer.name);
    for (Segment& segment : plan.segments) {
      if (Step* step = std::get_if<Step>(&segment)) of(step->label);
    }
  }

 private:
  void of(Step& step) {
    of(step.stream), of(step.after);
    visit_operation(step.work,
                    [&](auto& op) { visit_fields(op, [&](std::string_view, auto& field) { of(field); }); });
  }

  // The last step in front of the Repeat at the end, or in it.
  void of_structure(Plan& plan) {
    const Plan before = plan;
    Repeat last = std::get<Repeat>(plan.segments.back());
    plan.segments.pop_back();
    f_();
    plan.segments.emplace_back(last.steps.front());
    last.steps.erase(last.steps.begin());
    plan.segments.emplace_back(last);
    f_();
    plan = before;
    std::swap(plan.segments[0], plan.segments[1]);
    f_();
    plan = before;
  }

  const F& f_;
};

template <class Variant, std::size_t... kIndex>
void add_each(std::vector<Step>& steps, std::index_sequence<kIndex...>) {
  (steps.push_back({0, Variant(std::variant_alternative_t<kIndex, Variant>{}), {}, {}}), ...);
}

inline Plan plan_with_every_field() {
  Plan plan;
  plan.self = 3;
  plan.target = host_target();
  plan.target.fused_attention = FusedAttention{.dtypes = {DType::f16, DType::bf16}};
  plan.groups = {{"cp", {3, 1}}, {"tp", {2, 3}}};
  plan.buffers = {{"x", BufferKind::input, DType::f32, 64, false, 0, -1, -1},
                  {"t", BufferKind::temporary, DType::i32, 8, false, 16, 0, 1}};
  plan.streams = {"compute", "comm"};
  plan.arena_bytes = 48;
  plan.inputs = {5, 6};
  std::vector<Step> steps;
  add_each<Kernel>(steps, std::make_index_sequence<std::variant_size_v<Kernel>>());
  for (const std::string_view name : kRowRules) {
    RowKernel kernel;
    choose_rule(kernel.rule, name);
    if (kernel.rule.index() == 0) continue;
    if (auto* rotary = std::get_if<RotaryRule>(&kernel.rule))
      rotary->moves = {{1, 2, 3, 0, 5, 6, 7, 8, true}}, rotary->positions = {{0, 2, 4, 3}, {20, 1, 1, 1}};
    if (auto* convolution = std::get_if<ConvolutionRule>(&kernel.rule))
      convolution->runs = {{0, 2, true, true}, {0, 5, false, false}};
    if (auto* norm = std::get_if<SquaredNormRule>(&kernel.rule)) norm->copies = {1, 8};
    steps.push_back({0, Kernel(std::move(kernel)), {}, {}});
  }
  add_each<Collective>(steps, std::make_index_sequence<std::variant_size_v<Collective>>());
  for (Step& step : steps) {
    step.after = {{1, 0}, {2, 1}};
    step.label = "label";
    visit_operation(step.work, [](auto& op) {
      visit_fields(op, [](std::string_view, auto& field) {
        using T = std::remove_reference_t<decltype(field)>;
        if constexpr (std::is_same_v<T, View>) field = dense_view(0, 3, {2, 3}, {6, 2, 1});
        if constexpr (std::is_same_v<T, std::vector<View>>) field = {dense_view(0, 3, {2, 3}, {6, 2, 1})};
        if constexpr (std::is_same_v<T, std::vector<Transfer>>) field = {{1, flat_view(0, 0, 4)}};
        if constexpr (std::is_same_v<T, std::vector<MaskSlice>>)
          field = {{1, 2, 3, 4, MaskSlice::Kind::causal, 5, 6}};
        if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) field = {2, 5};
        if constexpr (std::is_same_v<T, AttentionDropout>)
          field = {0.25, 1, 2, 3, 4, {{0, 2, 2, 1}}, {{1, 2, 3, 4}, {20, 1, 1, 1}}};
      });
    });
    plan.segments.emplace_back(step);
  }
  plan.segments.emplace_back(Repeat{4, {steps[0], steps.back()}});
  return plan;
}

}  // namespace cp::test
