// Reads one line of a plan's text from left to right. Used by parse_plan() only.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan.h"
#include "shared/plan/plan_text.h"

namespace cp {

class TextReader {
 public:
  TextReader(std::string_view line, std::size_t number) : line_(line), rest_(line), number_(number) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw InvalidInput(
        str("plan text, line ", number_, ", column ", line_.size() - rest_.size() + 1, ": expected ",
            expected, rest_.empty() ? " at the end of the line" : str(" at '", rest_.substr(0, 30), "'")));
  }

  bool done() {
    skip_blanks();
    return rest_.empty();
  }
  void end() {
    if (!done()) fail("the end of the line");
  }
  bool next_is(char c) const { return !rest_.empty() && rest_.front() == c; }
  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail(str("'", token, "'"));
  }
  // A word after blanks, up to the next blank or one of the characters of values.
  std::string_view word() {
    skip_blanks();
    return token();
  }
  void keyword(std::string_view expected) {
    skip_blanks();
    const TextReader before = *this;
    if (token() != expected) before.fail(str("'", expected, "'"));
  }
  bool try_keyword(std::string_view expected) {
    skip_blanks();
    const std::string_view before = rest_;
    if (token() == expected) return true;
    rest_ = before;
    return false;
  }

  template <class T>
  T number() {
    skip_blanks();
    T value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::result_out_of_range) fail(str("a number of ", 8 * sizeof(T), " bits"));
    if (error != std::errc()) fail("a number");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  template <class Table>
  auto one_of(const Table& table) {
    skip_blanks();
    const TextReader before = *this;
    const std::string_view found = token();
    std::string known;
    for (const auto& [value, text] : table) {
      if (text == found) return value;
      known += str(known.empty() ? "" : ", ", text);
    }
    before.fail(str("one of ", known));
  }

  std::string quoted() {
    skip_blanks();
    expect("\"");
    std::string text;
    while (!take("\"")) {
      if (rest_.empty()) fail("a closing '\"'");
      if (take("\\x")) {
        text += static_cast<char>(hexadecimal(2));
      } else {
        if (take("\\") && !next_is('"') && !next_is('\\')) fail("'\"', '\\' or xNN after '\\'");
        text += rest_.front();
        rest_.remove_prefix(1);
      }
    }
    return text;
  }

  std::uint64_t hexadecimal(std::size_t digits) {
    std::uint64_t value = 0;
    const char* end = rest_.data() + std::min(digits, rest_.size());
    const auto [stopped, error] = std::from_chars(rest_.data(), end, value, 16);
    if (rest_.size() < digits || error != std::errc() || stopped != end || next_is('-')) {
      fail(str(digits, " hexadecimal digits"));
    }
    rest_.remove_prefix(digits);
    return value;
  }

  // ---- fields of operations ----

  void field(std::int32_t& value) { value = number<std::int32_t>(); }
  void field(std::int64_t& value) { value = number<std::int64_t>(); }
  void field(double& value) { value = number<double>(); }
  void field(bool& value) {
    constexpr std::array<std::pair<bool, std::string_view>, 2> kBools = {{{false, "false"}, {true, "true"}}};
    value = one_of(kBools);
  }
  void field(ReduceOp& value) { value = named<ReduceOp>(parse_reduce_op); }
  void field(RowOperation& value) { value = one_of(kRowOperations); }
  void field(AttentionEngine& value) { value = one_of(kAttentionEngines); }
  void field(ActivationFunction& value) { value = one_of(kActivationFunctions); }
  void field(RecurrenceRule& value) { value = one_of(kRecurrenceRules); }
  void field(DType& value) { value = named<DType>(parse_dtype); }
  void field(std::string& value) {
    value = token();
    if (value.empty()) fail("a name");
  }
  void field(Digest& digest) {
    skip_blanks();
    digest.high = hexadecimal(16);
    digest.low = hexadecimal(16);
  }
  void field(Edge& edge) {
    field(edge.step);
    if (take("@")) field(edge.iterations_back);
  }
  void field(View& view) {
    skip_blanks();
    expect("b"), field(view.buffer), expect("+"), field(view.offset), expect("[");
    view.shape = sizes();
    view.strides = take(":") ? sizes() : dense_view(0, 0, view.shape).strides;
    expect("]");
    if (!take("~")) return;
    field(view.advance.stride), expect("%"), field(view.advance.period), expect("+"),
        field(view.advance.phase);
  }
  void field(Transfer& transfer) {
    field(transfer.peer), expect(":"), field(transfer.view);
    if (take(">")) field(transfer.there);
  }
  void field(MaskSlice& slice) {
    field(slice.q_begin), expect("+"), field(slice.q_len), expect("/");
    field(slice.k_begin), expect("+"), field(slice.k_len), expect("/");
    slice.kind = one_of(kMaskKinds);
    expect("/"), field(slice.diagonal), expect("/"), field(slice.window);
  }
  void field(AttentionDropout& dropout) {
    field(dropout.probability);
    for (std::int64_t* number : {&dropout.layer, &dropout.first_batch, &dropout.first_head, &dropout.heads})
      expect("/"), field(*number);
    expect("/"), field(dropout.queries), expect("/"), field(dropout.keys);
  }
  void field(RowRule& rule) {
    skip_blanks();
    const TextReader before = *this;
    if (!choose_rule(rule, token())) before.fail(str("one of ", join(kRowRules, ", ")));
    std::visit(
        [&]<class Rule>(Rule& chosen) {
          visit_rule_fields(chosen, [&](std::string_view field_name, auto& value) {
            if (!may_be_left_out<Rule>(field_name)) {
              expect("/"), field(value);
            } else if (take(str("/", field_name, "="))) {
              field(value);
            }
          });
        },
        rule);
  }
  void field(ColumnMove& move) { parts_of_rule(move); }
  void field(ConvolvedRun& run) { parts_of_rule(run); }
  void field(Run& run) {
    field(run.begin), expect("+"), field(run.run);
    run.stride = run.run, run.count = 1;
    if (take("%")) field(run.stride), expect("*"), field(run.count);
  }
  template <class T>
  void field(std::vector<T>& values) {
    if (take_empty_list()) return;
    do {
      field(values.emplace_back());
    } while (take(","));
  }
  template <class T>
  void field(std::set<T>& values) {
    if (take_empty_list()) return;
    do {
      T value{};
      field(value);
      values.insert(std::move(value));
    } while (take(","));
  }

 private:
  template <class T>
  void parts_of_rule(T& part) {
    bool first = true;
    visit_rule_fields(part, [&](std::string_view, auto& value) {
      if (!first) expect(":");
      first = false;
      field(value);
    });
  }
  void skip_blanks() {
    while (next_is(' ') || next_is('\t') || next_is('\r')) rest_.remove_prefix(1);
  }
  std::string_view token() {
    const std::size_t size = std::min(rest_.find_first_of(" \t\r\n,=/:\""), rest_.size());
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }
  // "-" alone, not a negative number.
  bool take_empty_list() {
    skip_blanks();
    const bool empty = next_is('-') && (rest_.size() == 1 ||
                                        std::string_view(" \t\r/").find(rest_[1]) != std::string_view::npos);
    if (empty) rest_.remove_prefix(1);
    return empty;
  }
  template <class T, class Parse>
  T named(const Parse& parse) {
    skip_blanks();
    const TextReader before = *this;
    try {
      return parse(token());
    } catch (const InvalidInput& error) {
      before.fail(str("another word: ", error.what()));
    }
  }
  Shape sizes() {
    Shape shape;
    if (next_is(']') || next_is(':')) return shape;
    do {
      field(shape.emplace_back());
    } while (take("x"));
    return shape;
  }

  std::string_view line_, rest_;
  std::size_t number_;
};

}  // namespace cp
