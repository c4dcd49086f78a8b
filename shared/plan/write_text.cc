#include <array>
#include <charconv>
#include <concepts>
#include <set>
#include <utility>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan_text.h"

namespace cp {
namespace {

class Writer {
 public:
  std::string plan(const Plan& plan) {
    put("plan rank ", plan.self, " inputs ", to_string(plan.inputs), " arena ", plan.arena_bytes);
    if (plan.symmetric_bytes != 0) put(" symmetric ", plan.symmetric_bytes);
    put("\n");
    const Target& target = plan.target;
    put("target "), quoted(target.name);
    put(" alignment ", target.alignment_bytes, " collectives "), list(target.collectives);
    put(" kernels "), list(target.kernels);
    put(" dtypes "), list(target.dtypes);
    if (!target.sm_only.empty()) put(" sm_only "), list(target.sm_only);
    if (target.fused_attention) put(" fused_attention"), fields(*target.fused_attention);
    put("\n");
    for (std::size_t i = 0; i < plan.streams.size(); ++i)
      put("stream ", i, " "), quoted(plan.streams[i]), put("\n");
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      put("group ", i, " "), quoted(plan.groups[i].name);
      put(" ranks "), list(plan.groups[i].ranks);
      put(plan.groups[i].copy_engine ? " copy_engine\n" : "\n");
    }
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) buffer(i, plan.buffers[i]);
    for (const Segment& segment : plan.segments) {
      std::visit(Overloaded{[&](const Step& only) { step(only); },
                            [&](const Repeat& repeat) {
                              put("repeat ", repeat.count, "\n");
                              for (const Step& inner : repeat.steps) put("  "), step(inner);
                              put("end\n");
                            }},
                 segment);
    }
    return std::move(text_);
  }

 private:
  void put(std::string_view text) { text_ += text; }
  void put(char c) { text_ += c; }
  template <std::integral T>
  void put(T value) {
    text_ += std::to_string(value);
  }
  template <class First, class Second, class... Rest>
  void put(const First& first, const Second& second, const Rest&... rest) {
    put(first), put(second);
    (put(rest), ...);
  }

  void quoted(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    put('"');
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        put('\\', c);
      } else if (byte < 0x20 || byte == 0x7f) {
        put("\\x", kDigits[byte >> 4], kDigits[byte & 15]);
      } else {
        put(c);
      }
    }
    put('"');
  }

  void buffer(std::size_t id, const Buffer& buffer) {
    put("buffer ", id, " "), quoted(buffer.name);
    put(" ", name_in(kBufferKinds, buffer.kind), " ", name(buffer.dtype), " ", buffer.numel);
    if (buffer.symmetric) put(" symmetric");
    if (buffer.offset_bytes != 0 || buffer.first_use != -1 || buffer.last_use != -1) {
      put(" at ", buffer.offset_bytes, " used ", buffer.first_use, "..", buffer.last_use);
    }
    put("\n");
  }

  void step(const Step& step) {
    put("step ", next_step_++, " on ", step.stream, " ");
    visit_operation(step.work, [&](const auto& op) {
      put(kOperationName<std::remove_cvref_t<decltype(op)>>), fields(op);
    });
    if (!step.after.empty()) put(" after "), list(step.after);
    if (!step.label.empty()) put(" "), quoted(step.label);
    put("\n");
  }

  template <class Op>
  void fields(const Op& op) {
    visit_fields(op, [&](std::string_view field_name, const auto& value) {
      if (may_be_left_out<Op>(field_name) && value == std::remove_cvref_t<decltype(value)>{}) return;
      put(" ", field_name, "="), field(value);
    });
  }

  template <class Range>
  void list(const Range& values) {
    if (values.empty()) put('-');
    bool first = true;
    for (const auto& value : values) {
      if (!first) put(',');
      first = false;
      field(value);
    }
  }

  void field(const std::string& text) { put(std::string_view(text)); }
  void field(std::int32_t value) { put(value); }
  void field(std::int64_t value) { put(value); }
  void field(bool value) { put(value ? "true" : "false"); }
  void field(ReduceOp op) { put(name(op)); }
  void field(RowOperation operation) { put(name(operation)); }
  void field(AttentionEngine engine) { put(name_in(kAttentionEngines, engine)); }
  void field(ActivationFunction function) { put(name_in(kActivationFunctions, function)); }
  void field(RecurrenceRule rule) { put(name_in(kRecurrenceRules, rule)); }
  void field(DType dtype) { put(name(dtype)); }
  void field(const Digest& digest) { put(std::string_view(to_string(digest))); }
  void field(double value) {
    std::array<char, 40> digits{};
    // Shortest, exact.
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    put(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
  }
  void field(const Edge& edge) {
    put(edge.step);
    if (edge.iterations_back != 0) put('@', edge.iterations_back);
  }
  void field(const View& view) {
    put('b', view.buffer, '+', view.offset, '[');
    sizes(view.shape);
    if (view.strides != dense_view(0, 0, view.shape).strides) put(':'), sizes(view.strides);
    put(']');
    const Advance& advance = view.advance;
    if (advance != Advance{}) put('~', advance.stride, '%', advance.period, '+', advance.phase);
  }
  void sizes(const Shape& shape) { put(std::string_view(join(shape, "x"))); }
  void field(const Transfer& transfer) {
    put(transfer.peer, ':'), field(transfer.view);
    if (!is_absent(transfer.there)) put('>'), field(transfer.there);
  }
  void field(const MaskSlice& slice) {
    put(slice.q_begin, '+', slice.q_len, '/', slice.k_begin, '+', slice.k_len, '/');
    put(name_in(kMaskKinds, slice.kind), '/', slice.diagonal, '/', slice.window);
  }
  void field(const AttentionDropout& dropout) {
    field(dropout.probability);
    put('/', dropout.layer, '/', dropout.first_batch, '/', dropout.first_head, '/', dropout.heads, '/');
    list(dropout.queries), put('/'), list(dropout.keys);
  }
  // The rule's name, and its fields behind a slash each, with their names if they may be left out; those of
  // the members of lists behind a colon.
  void field(const RowRule& rule) {
    put(kRowRules[rule.index()]);
    std::visit(
        [&]<class Rule>(const Rule& chosen) {
          visit_rule_fields(chosen, [&](std::string_view field_name, const auto& value) {
            if (may_be_left_out<Rule>(field_name)) {
              if (value == std::remove_cvref_t<decltype(value)>{}) return;
              put('/', field_name, '=');
            } else {
              put('/');
            }
            field(value);
          });
        },
        rule);
  }
  void field(const ColumnMove& move) { parts_of_rule(move); }
  void field(const ConvolvedRun& run) { parts_of_rule(run); }
  template <class T>
  void parts_of_rule(const T& part) {
    bool first = true;
    visit_rule_fields(part, [&](std::string_view, const auto& value) {
      if (!first) put(':');
      first = false;
      field(value);
    });
  }
  // begin+run, and %stride*count if there are several blocks.
  void field(const Run& run) {
    put(run.begin, '+', run.run);
    if (run.count != 1 || run.stride != run.run) put('%', run.stride, '*', run.count);
  }
  template <class T>
  void field(const std::vector<T>& values) {
    list(values);
  }
  void field(const std::set<DType>& values) { list(values); }

  std::string text_;
  StepId next_step_ = 0;
};

}  // namespace

std::string to_text(const Plan& plan) { return Writer().plan(plan); }

}  // namespace cp
