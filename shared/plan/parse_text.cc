#include <algorithm>
#include <optional>
#include <utility>

#include "shared/plan/operations.h"
#include "shared/plan/text_reader.h"

namespace cp {
namespace {

// An operation of each kind, to be found by its name.
template <class Variant, std::size_t... kIndex>
std::optional<Variant> make_operation(std::string_view name, std::index_sequence<kIndex...>) {
  std::optional<Variant> made;
  ((kOperationName<std::variant_alternative_t<kIndex, Variant>> == name
        ? static_cast<void>(made.emplace(std::variant_alternative_t<kIndex, Variant>{}))
        : static_cast<void>(0)),
   ...);
  return made;
}
template <class Variant>
std::optional<Variant> make_operation(std::string_view name) {
  return make_operation<Variant>(name, std::make_index_sequence<std::variant_size_v<Variant>>());
}

class Parser {
 public:
  Plan parse(std::string_view text) {
    std::size_t number = 0;
    while (!text.empty()) {
      const std::size_t size = std::min(text.find('\n'), text.size());
      TextReader line(text.substr(0, size), ++number);
      text.remove_prefix(std::min(size + 1, text.size()));
      if (!line.done()) parse_line(line);
    }
    TextReader end("", number + 1);
    if (!seen_plan_) end.fail("a line 'plan rank ...'");
    if (repeat_) end.fail("'end' of the repeat");
    return std::move(plan_);
  }

 private:
  void parse_line(TextReader& line) {
    const TextReader start = line;
    const std::string_view kind = line.word();
    if (kind == "plan") {
      header(line);
    } else if (kind == "target") {
      target(line);
    } else if (kind == "stream") {
      numbered(line, plan_.streams.size());
      plan_.streams.push_back(line.quoted());
    } else if (kind == "group") {
      numbered(line, plan_.groups.size());
      Group& group = plan_.groups.emplace_back();
      group.name = line.quoted();
      line.keyword("ranks"), line.field(group.ranks);
      group.copy_engine = line.try_keyword("copy_engine");
    } else if (kind == "buffer") {
      buffer(line);
    } else if (kind == "step") {
      step(line);
    } else if (kind == "repeat") {
      if (repeat_) start.fail("'end' of the repeat before");
      repeat_.emplace().count = line.number<std::int64_t>();
    } else if (kind == "end") {
      if (!repeat_) start.fail("a repeat before 'end'");
      plan_.segments.emplace_back(std::move(*repeat_));
      repeat_.reset();
    } else {
      start.fail("one of plan, target, stream, group, buffer, step, repeat, end");
    }
    line.end();
  }

  static void numbered(TextReader& line, std::size_t expected) {
    line.done();
    const TextReader before = line;
    if (line.number<std::size_t>() != expected) before.fail(str("the number ", expected));
  }

  void header(TextReader& line) {
    seen_plan_ = true;
    line.keyword("rank"), line.field(plan_.self);
    line.keyword("inputs"), line.field(plan_.inputs);
    line.keyword("arena"), line.field(plan_.arena_bytes);
    if (line.try_keyword("symmetric")) line.field(plan_.symmetric_bytes);
  }
  void target(TextReader& line) {
    plan_.target = Target{};
    plan_.target.name = line.quoted();
    line.keyword("alignment"), line.field(plan_.target.alignment_bytes);
    line.keyword("collectives"), line.field(plan_.target.collectives);
    line.keyword("kernels"), line.field(plan_.target.kernels);
    line.keyword("dtypes"), line.field(plan_.target.dtypes);
    if (line.try_keyword("sm_only")) line.field(plan_.target.sm_only);
    if (line.try_keyword("fused_attention")) fields(line, plan_.target.fused_attention.emplace());
  }
  void buffer(TextReader& line) {
    numbered(line, plan_.buffers.size());
    Buffer& buffer = plan_.buffers.emplace_back();
    buffer.name = line.quoted();
    buffer.kind = line.one_of(kBufferKinds);
    line.done(), line.field(buffer.dtype);
    line.field(buffer.numel);
    buffer.symmetric = line.try_keyword("symmetric");
    if (!line.try_keyword("at")) return;
    line.field(buffer.offset_bytes);
    line.keyword("used"), line.field(buffer.first_use), line.expect(".."), line.field(buffer.last_use);
  }

  template <class Op>
  static void fields(TextReader& line, Op& op) {
    visit_fields(op, [&](std::string_view field_name, auto& value) {
      if (!may_be_left_out<Op>(field_name)) {
        line.keyword(field_name);
      } else if (!line.try_keyword(field_name)) {
        return;
      }
      line.expect("="), line.field(value);
    });
  }

  void step(TextReader& line) {
    numbered(line, static_cast<std::size_t>(next_step_++));
    Step step;
    line.keyword("on"), line.field(step.stream);
    line.done();
    const TextReader before = line;
    const std::string_view name = line.word();
    if (auto kernel = make_operation<Kernel>(name)) {
      step.work = std::move(*kernel);
    } else if (auto collective = make_operation<Collective>(name)) {
      step.work = std::move(*collective);
    } else {
      before.fail("the name of an operation");
    }
    visit_operation(step.work, [&](auto& op) { fields(line, op); });
    if (line.try_keyword("after")) line.field(step.after);
    if (!line.done()) step.label = line.quoted();
    if (repeat_) {
      repeat_->steps.push_back(std::move(step));
    } else {
      plan_.segments.emplace_back(std::move(step));
    }
  }

  Plan plan_;
  bool seen_plan_ = false;
  std::optional<Repeat> repeat_;  // the open one
  StepId next_step_ = 0;
};

}  // namespace

Plan parse_plan(std::string_view text) { return Parser().parse(text); }

}  // namespace cp
