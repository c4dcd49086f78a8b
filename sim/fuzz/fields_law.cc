#include "sim/fuzz/fields_law.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/plan/operations.h"
#include "shared/plan/plan_text.h"
#include "traces/plan_proto.h"

namespace cp::sim {
namespace {

// How many changes are tried of one plan. Chosen: a few of each of many plans reach all fields, and the law
// stays cheap next to the rest of a case.
constexpr int kChanges = 8;

// Lists the changes of a plan that may be changed; those of nested types are named here one by one, as the
// digest has no list of them.
class Changes {
 public:
  struct Change {
    std::string what;
    std::function<void()> make;
  };

  explicit Changes(Plan& plan) : plan_(plan) {
    StepId id = 0;
    for (Segment& segment : plan.segments) {
      if (Step* step = std::get_if<Step>(&segment)) {
        of_step(*step, id++);
        continue;
      }
      Repeat& repeat = std::get<Repeat>(segment);
      add("count", repeat.count);
      for (Step& step : repeat.steps) of_step(step, id++);
    }
  }
  const std::vector<Change>& all() const { return all_; }

 private:
  void may(std::string_view what, std::function<void()> make) {
    all_.push_back({where_ + std::string(what), std::move(make)});
  }
  template <std::integral T>
  void add(std::string_view what, T& value) {
    may(what, [&value] { ++value; });
  }
  // A number of what the plan has `count` of: stays one, so that the text can name it.
  void add_index(std::string_view what, std::int32_t& index, std::size_t count) {
    if (count > 1)
      may(what, [&index, count] {
        index = static_cast<std::int32_t>((index + 1) % static_cast<std::int32_t>(count));
      });
  }

  void of_step(Step& step, StepId id) {
    where_ = str("step ", id, " ");
    add_index("stream", step.stream, plan_.streams.size());
    for (Edge& edge : step.after) {
      add("edge.step", edge.step);
      add("edge.iterations_back", edge.iterations_back);
    }
    may("one edge more", [&step] { step.after.push_back({0, 3}); });
    visit_operation(step.work, [&](auto& op) {
      visit_fields(op, [&](std::string_view name, auto& field) {
        where_ = str("step ", id, " ", operation_name(step.work), " ", name, " ");
        of_field(name, field);
      });
    });
  }

  void of_field(std::string_view name, std::int32_t& value) {
    if (name == "group") return add_index("", value, plan_.groups.size());
    add("", value);
  }
  void of_field(std::string_view, bool& value) {
    may("", [&value] { value = !value; });
  }
  void of_field(std::string_view, double& value) {
    may("", [&value] { value += 0.5; });
  }
  void of_field(std::string_view, ReduceOp& op) {
    may("", [&op] { op = op == ReduceOp::sum ? ReduceOp::max : ReduceOp::sum; });
  }
  void of_field(std::string_view, RowOperation& op) {
    may("", [&op] { op = op == RowOperation::rotary ? RowOperation::rms_norm : RowOperation::rotary; });
  }
  void of_field(std::string_view, AttentionEngine& engine) {
    may("", [&engine] {
      engine = engine == AttentionEngine::exact ? AttentionEngine::fused : AttentionEngine::exact;
    });
  }
  void of_field(std::string_view, RecurrenceRule& rule) {
    may("",
        [&rule] { rule = rule == RecurrenceRule::decay ? RecurrenceRule::delta : RecurrenceRule::decay; });
  }
  void of_field(std::string_view, std::vector<std::int64_t>& values) {
    for (std::int64_t& value : values) add("", value);
    may("one number more", [&values] { values.push_back(7); });
  }
  void of_field(std::string_view, Digest& digest) {
    add("high", digest.high);
    add("low", digest.low);
  }
  void of_field(std::string_view, View& view) {
    if (is_absent(view)) {
      may("that was absent", [&view] { view = flat_view(0, 0, 1); });
      return;
    }
    add_index("buffer", view.buffer, plan_.buffers.size());
    add("offset", view.offset);
    for (std::int64_t& size : view.shape) add("shape", size);
    for (std::int64_t& stride : view.strides) add("strides", stride);
    may("one dimension more", [&view] {
      view.shape.push_back(1);
      view.strides.push_back(1);
    });
    add("advance.stride", view.advance.stride);
    add("advance.period", view.advance.period);
    add("advance.phase", view.advance.phase);
  }
  void of_field(std::string_view name, std::vector<View>& views) {
    for (View& view : views) of_field(name, view);
    may("one view more", [&views] { views.push_back(flat_view(0, 0, 1)); });
  }
  void of_field(std::string_view name, std::vector<Transfer>& transfers) {
    for (Transfer& transfer : transfers) {
      add("peer", transfer.peer);
      of_field(name, transfer.view);
    }
    if (!transfers.empty()) may("one transfer less", [&transfers] { transfers.pop_back(); });
  }
  void of_field(std::string_view, std::vector<MaskSlice>& slices) {
    for (MaskSlice& slice : slices) {
      add("q_begin", slice.q_begin);
      add("q_len", slice.q_len);
      add("k_begin", slice.k_begin);
      add("k_len", slice.k_len);
      may("kind", [&slice] {
        slice.kind = slice.kind == MaskSlice::Kind::full     ? MaskSlice::Kind::causal
                     : slice.kind == MaskSlice::Kind::causal ? MaskSlice::Kind::window
                                                             : MaskSlice::Kind::full;
      });
      add("diagonal", slice.diagonal);
      add("window", slice.window);
    }
    may("one slice more", [&slices] { slices.emplace_back(); });
  }

  void of_field(std::string_view, AttentionDropout& dropout) {
    may("probability", [&dropout] { dropout.probability += 0.25; });
    add("layer", dropout.layer);
    add("first_batch", dropout.first_batch);
    add("first_head", dropout.first_head);
    add("heads", dropout.heads);
    for (IndexSet* rows : {&dropout.queries, &dropout.keys}) {
      for (Run& run : *rows) {
        add("begin", run.begin), add("run", run.run), add("stride", run.stride), add("count", run.count);
      }
      may("one run more", [rows] { rows->push_back({0, 1, 1, 1}); });
    }
  }

  void of_field(std::string_view name, std::int64_t& value) { add(name, value); }
  void of_field(std::string_view, ActivationFunction& function) {
    may("function", [&function] {
      function = function == ActivationFunction::silu ? ActivationFunction::relu : ActivationFunction::silu;
    });
  }
  void of_field(std::string_view, IndexSet& rows) {
    for (Run& run : rows)
      add("begin", run.begin), add("run", run.run), add("stride", run.stride), add("count", run.count);
    may("one run more", [&rows] { rows.push_back({0, 1, 1, 1}); });
  }
  void of_field(std::string_view, std::vector<ColumnMove>& moves) {
    for (ColumnMove& move : moves)
      visit_rule_fields(move, [&](std::string_view name, auto& field) { of_field(name, field); });
    may("one move more", [&moves] { moves.emplace_back(); });
  }
  void of_field(std::string_view, std::vector<ConvolvedRun>& runs) {
    for (ConvolvedRun& run : runs)
      visit_rule_fields(run, [&](std::string_view name, auto& field) { of_field(name, field); });
    may("one run more", [&runs] { runs.emplace_back(); });
  }
  void of_field(std::string_view, RowRule& rule) {
    may("another rule", [&rule] {
      if (std::holds_alternative<SlotsRule>(rule)) {
        rule = NormRule{};
      } else {
        rule = SlotsRule{};
      }
    });
    std::visit(
        [&](auto& chosen) {
          visit_rule_fields(chosen, [&](std::string_view name, auto& field) { of_field(name, field); });
        },
        rule);
  }

  Plan& plan_;
  std::string where_;
  std::vector<Change> all_;
};

}  // namespace

std::int64_t num_field_changes(const Plan& plan) {
  Plan copy = plan;
  return static_cast<std::int64_t>(Changes(copy).all().size());
}

ChangedPlan with_field_changed(const Plan& plan, std::int64_t number) {
  ChangedPlan changed{plan, {}};
  const Changes changes(changed.plan);
  const Changes::Change& change = changes.all().at(static_cast<std::size_t>(number));
  change.make();
  changed.what = change.what;
  return changed;
}

Plan draw_steps(std::uint64_t seed) {
  Numbers numbers(seed);
  Plan plan;
  plan.target = host_target();
  plan.streams = {"s0", "s1"};
  for (const char* name : {"b0", "b1", "b2"}) {
    Buffer buffer;
    buffer.name = name;
    buffer.kind = BufferKind::inout;
    buffer.numel = 64;
    plan.buffers.push_back(buffer);
  }
  // Views, slices and scales need not fit each other: the plan is only compared, and written as text.
  const auto view = [&] {
    Shape shape;
    for (int dim = 0; dim < 4; ++dim) shape.push_back(numbers.in(1, 3));
    View made = dense_view(static_cast<BufferId>(numbers.below(3)), numbers.in(0, 8), std::move(shape));
    if (numbers.one_in(2)) made.strides.back() = 2;
    if (numbers.one_in(3)) made.advance = {numbers.in(-2, 2), numbers.in(0, 3), numbers.in(0, 3)};
    return made;
  };
  const auto maybe = [&] { return numbers.one_in(2) ? view() : View{}; };
  const auto slices = [&] {
    std::vector<MaskSlice> all(numbers.below(3) + 1);
    for (MaskSlice& slice : all) {
      slice = {numbers.in(0, 3), numbers.in(0, 9), numbers.in(0, 3), numbers.in(0, 9)};
      slice.kind = numbers.of({MaskSlice::Kind::full, MaskSlice::Kind::causal, MaskSlice::Kind::window});
      if (slice.kind != MaskSlice::Kind::full) slice.diagonal = numbers.in(-4, 4);
      if (slice.kind == MaskSlice::Kind::window) slice.window = numbers.in(1, 5);
    }
    return all;
  };
  const auto engine = [&] { return numbers.of({AttentionEngine::exact, AttentionEngine::fused}); };
  const auto scale = [&] { return static_cast<double>(numbers.in(1, 8)) / 4; };
  const auto step = [&](Kernel kernel) {
    Step made{static_cast<StreamId>(numbers.below(2)), std::move(kernel), {}, {}};
    if (!plan.segments.empty()) made.after.push_back({0, 0});
    plan.segments.emplace_back(std::move(made));
  };
  const auto softcap = [&] { return numbers.one_in(2) ? scale() : 0; };
  const auto rows = [&] {
    return IndexSet{{numbers.in(0, 9), numbers.in(1, 3), numbers.in(1, 4), numbers.in(1, 3)}};
  };
  const auto dropout = [&] {
    if (numbers.one_in(2)) return AttentionDropout{};
    return AttentionDropout{
        scale() / 4, numbers.in(0, 3), numbers.in(0, 3), numbers.in(0, 3), numbers.in(1, 9), rows(), rows()};
  };
  const auto rule = [&] { return numbers.of({RecurrenceRule::decay, RecurrenceRule::delta}); };
  const auto starts = [&] {
    std::vector<std::int64_t> all;
    for (std::size_t i = numbers.below(3); i > 0; --i) all.push_back(numbers.in(1, 9));
    return all;
  };
  const auto row_rule = [&]() -> RowRule {
    const auto size = [&] { return numbers.in(0, 9); };
    switch (numbers.below(11)) {
      case 1:
        return NormRule{scale(), numbers.one_in(2), size(),           size(), size(), size(),
                        size(),  numbers.one_in(2), numbers.one_in(2)};
      case 2:
        return RotaryRule{
            {{size(), size(), size(), size(), size(), size(), size(), size(), numbers.one_in(2)}},
            size(),
            rows(),
            numbers.one_in(2)};
      case 3:
        return ActivationRule{numbers.of({ActivationFunction::silu, ActivationFunction::gelu_tanh,
                                          ActivationFunction::identity}),
                              numbers.one_in(2)};
      case 4:
        return VocabularyRule{size(), size(), scale(), scale(), scale(), numbers.in(-100, 3)};
      case 5:
        return RouterRule{numbers.one_in(2), size(), size(), numbers.one_in(2), scale(), size()};
      case 6:
        return SlotsRule{size(), size()};
      case 7:
        return SquaredNormRule{starts()};
      case 8:
        return OptimizerRule{size(), scale(), scale(), scale(), scale(), scale()};
      case 9:
        return ConvolutionRule{size(), size(),  {{size(), size(), numbers.one_in(2), numbers.one_in(2)}},
                               size(), scale(), numbers.one_in(2)};
      case 10:
        return GatedNormRule{size(), scale()};
      default:
        return {};
    }
  };
  switch (numbers.below(11)) {
    case 10:
      step(RowKernel{numbers.of({RowOperation::rms_norm, RowOperation::optimizer}),
                     {view()},
                     {view()},
                     {view()},
                     row_rule()});
      break;
    case 5:
      step(RecurrenceForward{view(), view(), view(), view(), view(), maybe(), view(), starts(), scale(),
                             rule(), maybe()});
      break;
    case 6:
      step(RecurrenceSummary{view(), view(), view(), view(), view(), maybe(), rule()});
      break;
    case 7:
      step(RecurrenceSummaryGradient{view(), view(), view(), view(), view(), view(), scale(), rule()});
      break;
    case 8:
      step(RecurrenceJoin{view(), view(), view(), numbers.one_in(2), numbers.one_in(2)});
      break;
    case 9:
      step(RecurrenceBackward{view(), view(), view(), view(), view(), maybe(), view(), maybe(), view(),
                              view(), view(), view(), view(), view(), starts(), scale(), rule()});
      break;
    case 0:
      step(AttentionForward{view(), view(), view(), view(), view(), scale(), slices(), engine(), maybe(),
                            softcap(), dropout(), maybe()});
      break;
    case 1:
      step(AttentionBackward{view(), view(), view(), view(), view(), maybe(), maybe(), maybe(), maybe(),
                             scale(), slices(), numbers.one_in(2), numbers.one_in(2), maybe(), engine(),
                             maybe(), softcap(), dropout(), maybe()});
      break;
    case 3:
      step(AttentionSinkGradient{view(), view(), view(), view(), view()});
      break;
    case 2:
      step(AttentionDelta{view(), view(), view()});
      break;
    default:
      step(AttentionMerge{view(), maybe(), view(), maybe(), {view()}, {}});
  }
  step(Fill{view(), static_cast<double>(numbers.in(-2, 2))});
  return plan;
}

void check_fields(const Plan& plan, std::uint64_t seed, const Trial& trial) {
  const std::int64_t changes = num_field_changes(plan);
  if (changes == 0) return;
  Numbers numbers(seed);
  const Digest known = digest(plan);
  const std::string text = to_text(plan);
  for (int i = 0; i < kChanges; ++i) {
    const ChangedPlan changed = with_field_changed(plan, numbers.in(0, changes - 1));
    trial.require(digest(changed.plan) != known, "fields", "two plans of rank ", plan.self,
                  " that differ in ", changed.what, " alone have one digest, ", to_string(known));
    trial.require(to_text(changed.plan) != text, "fields", "two plans of rank ", plan.self,
                  " that differ in ", changed.what, " alone have one text");
  }
}

void check_texts(const Plan& plan, const Trial& trial) {
  trial.property("texts", [&] {
    trial.require(parse_plan(to_text(plan)) == plan, "texts", "the plan of rank ", plan.self,
                  " does not come back from its text");
    trial.require(parse_plan_bytes(serialize_plan(plan)) == plan, "texts", "the plan of rank ", plan.self,
                  " does not come back from its bytes");
  });
}

}  // namespace cp::sim
