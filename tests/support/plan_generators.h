// Random plans for the forms of a plan (protobuf, text, digest): every operation, every field, ids that name
// something. Otherwise arbitrary: they make no sense to the checker.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <rapidcheck.h>

#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp::testing {

// Draws from rapidcheck, so it works inside of rc::gen::exec and of properties alone.
class PlanDraw {
 public:
  Plan plan() {
    plan_.self = number<Rank>(0, 2000);
    plan_.target = target();
    plan_.groups = list<Group>(1, 3, [&] { return group(); });
    plan_.streams = list<std::string>(1, 3, [&] { return text(); });
    plan_.arena_bytes = number<std::int64_t>(0, 1 << 20);
    plan_.inputs = digest();
    // Buffers and edges name steps, so the number of these comes first.
    const auto sizes = list<int>(0, 4, [&] { return number(-1, 3); });  // -1: a step of its own
    for (const int size : sizes) num_steps_ += size < 0 ? 1 : size;
    plan_.buffers = list<Buffer>(1, 4, [&] { return buffer(); });
    for (const int size : sizes) plan_.segments.push_back(segment(size));
    return std::move(plan_);
  }

  std::string text() {
    return *rc::gen::element<std::string>("", "x", "dp", "grad k, slot 0", "\"quoted\" \\ {x: 1}", "γ → δ",
                                          "a\nb");
  }
  Digest digest() { return {*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint64_t>()}; }
  DType dtype() { return *rc::gen::element(DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64); }
  ReduceOp reduce_op() {
    return *rc::gen::element(ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product);
  }
  Group group() {
    return {text(), list<Rank>(1, 5, [&] { return number<Rank>(0, 1 << 20); })};
  }

  // Both ends included.
  template <class Int>
  Int number(Int least, Int most) {
    return *rc::gen::inRange<Int>(least, static_cast<Int>(most + 1));
  }
  template <class T, class Draw>
  std::vector<T> list(int least, int most, Draw&& draw) {
    std::vector<T> values;
    const int size = number(least, most);
    for (int i = 0; i < size; ++i) values.push_back(draw());
    return values;
  }

 private:
  Target target() {
    Target target;
    target.name = text();
    for (int i = number(0, 3); i > 0; --i) target.collectives.insert(text());
    for (int i = number(0, 3); i > 0; --i) target.kernels.insert(text());
    for (int i = number(0, 5); i > 0; --i) target.dtypes.insert(dtype());
    target.alignment_bytes = number<std::int64_t>(1, 4096);
    if (*rc::gen::arbitrary<bool>()) {
      FusedAttention& fused = target.fused_attention.emplace();
      if (*rc::gen::arbitrary<bool>()) fused.dtypes.insert(dtype());
      fused.head_dim_multiple = number<std::int64_t>(1, 16);
      fused.max_head_dim_forward = large(), fused.max_head_dim_backward = large();
      fused.window = *rc::gen::arbitrary<bool>(), fused.window_tail = *rc::gen::arbitrary<bool>(),
      fused.packed = *rc::gen::arbitrary<bool>();
      fused.sm_count = large();
    }
    return target;
  }

  Buffer buffer() {
    Buffer buffer{.name = text(), .dtype = dtype()};
    buffer.kind =
        *rc::gen::element(BufferKind::input, BufferKind::output, BufferKind::inout, BufferKind::temporary);
    const std::int64_t most =
        buffer.kind == BufferKind::temporary ? plan_.arena_bytes : std::int64_t{1} << 40;
    buffer.numel = number<std::int64_t>(0, most / size_bytes(buffer.dtype));
    if (buffer.kind == BufferKind::temporary)
      buffer.offset_bytes = number<std::int64_t>(0, most - buffer.bytes());
    buffer.first_use = number<StepId>(-1, num_steps_ - 1);
    buffer.last_use = number<StepId>(-1, num_steps_ - 1);
    return buffer;
  }

  Segment segment(int size) {
    if (size < 0) return step();
    Repeat repeat{.count = number<std::int64_t>(0, 100), .steps = {}};
    for (int i = 0; i < size; ++i) repeat.steps.push_back(step());
    return repeat;
  }

  Step step() {
    Step step;
    step.stream = index(plan_.streams);
    step.work = *rc::gen::arbitrary<bool>() ? Work(any_of<Kernel>()) : Work(any_of<Collective>());
    visit_operation(step.work, [&](auto& op) { fill(op); });
    step.after = list<Edge>(0, 2, [&] {
      return Edge{number<StepId>(0, num_steps_ - 1), number<std::int32_t>(0, 3)};
    });
    step.label = text();
    return step;
  }

  // An alternative of the variant, with defaults.
  template <class Variant>
  Variant any_of() {
    return any_of<Variant>(number<std::size_t>(0, std::variant_size_v<Variant> - 1),
                           std::make_index_sequence<std::variant_size_v<Variant>>{});
  }
  template <class Variant, std::size_t... kIndices>
  static Variant any_of(std::size_t chosen, std::index_sequence<kIndices...>) {
    Variant made;
    ((chosen == kIndices ? static_cast<void>(made.template emplace<kIndices>()) : static_cast<void>(0)), ...);
    return made;
  }

  template <class Op>
  void fill(Op& op) {
    if constexpr (requires { op.group; }) op.group = index(plan_.groups);
    visit_fields(op, [&]<class Field>(std::string_view name, Field& field) {
      if constexpr (std::is_same_v<Field, View>) {
        if (may_be_absent<Op>(name) && *rc::gen::arbitrary<bool>()) return;
      }
      draw(field, op);
    });
  }

  template <class Op>
  void draw(std::int32_t& field, const Op& op) {
    if constexpr (requires { op.root; }) {
      if (&field == &op.root) field = member(op.group);
    }
  }
  template <class Op>
  void draw(bool& field, const Op&) {
    field = *rc::gen::arbitrary<bool>();
  }
  template <class Op>
  void draw(double& field, const Op&) {
    field = *rc::gen::element(0.0, 1.0, -0.125, 0.1, 1e-300, std::numeric_limits<double>::infinity());
  }
  template <class Op>
  void draw(ReduceOp& field, const Op&) {
    field = reduce_op();
  }
  template <class Op>
  void draw(RowOperation& field, const Op&) {
    field = kRowOperations[number<std::size_t>(0, kRowOperations.size() - 1)].first;
  }
  template <class Op>
  void draw(AttentionEngine& field, const Op&) {
    field = *rc::gen::element(AttentionEngine::exact, AttentionEngine::fused);
  }
  template <class Op>
  void draw(RecurrenceRule& field, const Op&) {
    field = *rc::gen::element(RecurrenceRule::decay, RecurrenceRule::delta);
  }
  template <class Op>
  void draw(std::vector<std::int64_t>& field, const Op&) {
    field = list<std::int64_t>(0, 3, [&] { return large(); });
  }
  template <class Op>
  void draw(Digest& field, const Op&) {
    field = digest();
  }
  template <class Op>
  void draw(View& field, const Op&) {
    field = view();
  }
  template <class Op>
  void draw(std::vector<View>& field, const Op&) {
    field = list<View>(0, 3, [&] { return view(); });
  }
  template <class Op>
  void draw(std::vector<Transfer>& field, const Op& op) {
    field = list<Transfer>(0, 3, [&] { return Transfer{member(op.group), view()}; });
  }
  template <class Op>
  void draw(AttentionDropout& field, const Op&) {
    if (*rc::gen::arbitrary<bool>()) return;
    const auto rows = [this] {
      return list<Run>(0, 2, [this] {
        return Run{number<std::int64_t>(0, 9), number<std::int64_t>(1, 3), number<std::int64_t>(1, 5),
                   number<std::int64_t>(1, 3)};
      });
    };
    const auto small = [this] { return number<std::int64_t>(0, 9); };
    field.probability = 0.125 * number<int>(1, 7);
    field.layer = small(), field.first_batch = small(), field.first_head = small(), field.heads = small();
    field.queries = rows(), field.keys = rows();
  }
  template <class Op>
  void draw(std::int64_t& field, const Op&) {
    field = large();
  }
  template <class Op>
  void draw(ActivationFunction& field, const Op&) {
    field =
        *rc::gen::element(ActivationFunction::silu, ActivationFunction::gelu, ActivationFunction::gelu_tanh,
                          ActivationFunction::relu, ActivationFunction::relu2, ActivationFunction::quick_gelu,
                          ActivationFunction::identity);
  }
  template <class Op>
  void draw(IndexSet& field, const Op&) {
    field = list<Run>(0, 2, [&] { return Run{large(), large(), large(), large()}; });
  }
  template <class Op>
  void draw(std::vector<ColumnMove>& field, const Op& op) {
    field = list<ColumnMove>(0, 3, [&] {
      ColumnMove move;
      visit_rule_fields(move, [&](std::string_view, auto& number) { draw(number, op); });
      return move;
    });
  }
  template <class Op>
  void draw(std::vector<ConvolvedRun>& field, const Op& op) {
    field = list<ConvolvedRun>(0, 3, [&] {
      ConvolvedRun run;
      visit_rule_fields(run, [&](std::string_view, auto& number) { draw(number, op); });
      return run;
    });
  }
  template <class Op>
  void draw(RowRule& field, const Op& op) {
    choose_rule(field, kRowRules[number<std::size_t>(0, kRowRules.size() - 1)]);
    std::visit(
        [&](auto& rule) { visit_rule_fields(rule, [&](std::string_view, auto& value) { draw(value, op); }); },
        field);
  }
  template <class Op>
  void draw(std::vector<MaskSlice>& field, const Op&) {
    field = list<MaskSlice>(0, 2, [&] {
      MaskSlice slice;
      slice.kind = *rc::gen::element(MaskSlice::Kind::full, MaskSlice::Kind::causal, MaskSlice::Kind::window);
      for (auto* size : {&slice.q_begin, &slice.q_len, &slice.k_begin, &slice.k_len, &slice.window})
        *size = large();
      slice.diagonal = large() - large();
      return slice;
    });
  }

  View view() {
    View view;
    view.buffer = index(plan_.buffers);
    view.offset = large() - large();
    view.shape = list<std::int64_t>(0, 4, [&] { return number<std::int64_t>(0, 5000); });
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) view.strides.push_back(large());
    if (*rc::gen::arbitrary<bool>()) view.advance = {large() - large(), number<std::int64_t>(0, 3), large()};
    return view;
  }

  std::int64_t large() {
    return *rc::gen::element<std::int64_t>(0, 1, 7, 128, (std::int64_t{1} << 31) + 1, std::int64_t{1} << 45);
  }
  template <class T>
  std::int32_t index(const std::vector<T>& values) {
    return number<std::int32_t>(0, static_cast<std::int32_t>(values.size()) - 1);
  }
  std::int32_t member(GroupId group) { return index(plan_.groups[static_cast<std::size_t>(group)].ranks); }

  Plan plan_;
  StepId num_steps_ = 0;
};

inline rc::Gen<Plan> any_plan_data() {
  return rc::gen::exec([] { return PlanDraw().plan(); });
}

}  // namespace cp::testing
