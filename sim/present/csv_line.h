// A line of comma-separated values. It is quoted so that read_csv() (sim/cost/presets/csv.h) takes it, and
// numbers have all their digits.
#pragma once

#include <charconv>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace cp::sim {

// Appends to `out`, which must outlive this. end() closes the line.
class CsvLine {
 public:
  explicit CsvLine(std::string& out) : out_(out) {}

  CsvLine& add(std::string_view text) {
    separate();
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
      out_ += text;
      return *this;
    }
    out_ += '"';
    for (const char c : text) {
      if (c == '"') out_ += '"';
      out_ += c;
    }
    out_ += '"';
    return *this;
  }
  CsvLine& add(double value) { return add_number(value); }
  CsvLine& add(std::int64_t value) { return add_number(value); }
  CsvLine& add(int value) { return add_number(value); }
  void end() { out_ += '\n'; }

 private:
  template <class Number>
  CsvLine& add_number(Number value) {
    separate();
    char digits[40];  // to_chars() of a double needs at most 24, and of an int64 at most 20
    const auto result = std::to_chars(std::begin(digits), std::end(digits), value);
    out_.append(digits, result.ptr);
    return *this;
  }
  void separate() {
    if (!first_) out_ += ',';
    first_ = false;
  }

  std::string& out_;
  bool first_ = true;
};

}  // namespace cp::sim
