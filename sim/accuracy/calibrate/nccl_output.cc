#include "sim/accuracy/calibrate/nccl_output.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

using Words = std::vector<std::string>;

Words words_of(std::string_view line) {
  std::istringstream in{std::string(line)};
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::optional<double> number_in(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool all_digits(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

// "[1,0]<stdout>:" of mpirun --tag-output.
std::string_view without_tag(std::string_view line) {
  const std::string_view mark = "<stdout>:";
  const std::size_t at = line.find(mark);
  return line.starts_with('[') && at != std::string_view::npos ? line.substr(at + mark.size()) : line;
}

// What stands before NCCL's log, "node1:4711:4725 [0] NCCL INFO ...". Its host may touch the row's last word,
// a number.
std::string_view without_log(std::string_view line) {
  const std::size_t log = line.find(" NCCL ");
  if (log == std::string_view::npos) return line;
  const std::size_t bracket = line.rfind('[', log);
  std::size_t begin = bracket == std::string_view::npos ? log : bracket;
  while (begin > 0 && line[begin - 1] == ' ') --begin;
  while (begin > 0 && line[begin - 1] != ' ') --begin;  // host:pid:tid
  std::size_t host = begin;
  while (host < line.size() && (std::isdigit(static_cast<unsigned char>(line[host])) || line[host] == '-'))
    ++host;
  const bool touches = host < line.size() && std::isalpha(static_cast<unsigned char>(line[host]));
  return line.substr(0, touches ? host : begin);
}

double half_last_digit(std::string_view number) {
  const std::size_t dot = number.find('.');
  const std::size_t decimals = dot == std::string_view::npos ? 0 : number.size() - dot - 1;
  return 0.5 * std::pow(10.0, -static_cast<double>(decimals));
}

class Reader {
 public:
  explicit Reader(std::string_view filename) : filename_(filename) {}

  void take(std::string_view raw) {
    ++line_;
    const std::string_view line = trim(without_log(without_tag(raw)));
    if (line.starts_with('#')) return take_comment(words_of(line.substr(1)));
    Words words = words_of(line);
    if (words.empty()) return;
    // size, count and a type; after a log in its middle a row goes on with numbers alone.
    const bool begins =
        words.size() > 2 && all_digits(words[0]) && all_digits(words[1]) && !number_in(words[2]);
    const bool goes_on = !pending_.empty() && std::all_of(words.begin(), words.end(), [](const auto& word) {
      return word == "N/A" || number_in(word);
    });
    if (!begins && !goes_on) return;
    if (begins && !pending_.empty()) fail_short();
    if (begins) begun_ = line_;
    pending_.insert(pending_.end(), words.begin(), words.end());
    if (pending_.size() > index_of("busbw")) end_row();
  }

  NcclOutput finish() {
    if (!pending_.empty()) fail_short();
    if (output_.rows.empty()) {
      throw InvalidInput(str(
          filename_, ":", std::max(1, line_), ": there is no row of nccl-tests in ", line_,
          " lines; give what, for example, all_gather_perf -b 1K -e 1G -f 2 prints, whose rows begin with "
          "size and count"));
    }
    output_.nodes = static_cast<int>(hosts_.size());
    output_.gpus = static_cast<int>(ranks_.size());
    return std::move(output_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InvalidInput(str(filename_, ":", line, ": ", message));
  }

  [[noreturn]] void fail_short() const {
    fail(begun_, str("the row of size ", pending_[0], " is cut short: ", pending_.size(),
                     " values, but busbw is column ", index_of("busbw") + 1,
                     "; remove the row, or run with NCCL_DEBUG=WARN so that no log lies within the table"));
  }

  // Of the first column of that name, which is the one out of place.
  std::size_t index_of(std::string_view column) const {
    return static_cast<std::size_t>(std::find(columns_.begin(), columns_.end(), column) - columns_.begin());
  }

  void take_comment(const Words& words) {
    // Collective test starting: all_gather_perf
    if (words.size() >= 4 && words[0] == "Collective" && words[2] == "starting:") output_.test = words[3];
    if (words.size() > 2 && words[0] == "size" && words[1] == "count") take_header(words);
    //  Rank  0 Group  0 Pid  4711 on  node1 device  0 [0x1b] NVIDIA H800
    if (words.size() < 4 || words[0] != "Rank" || !all_digits(words[1])) return;
    const auto on = std::find(words.begin() + 2, words.end(), "on");
    if (on == words.end() || on + 1 == words.end()) return;
    ranks_.insert(words[1]);
    hosts_.insert(*(on + 1));
  }

  void take_header(const Words& words) {
    if (!pending_.empty()) fail_short();
    columns_ = words;
    for (const char* column : {"time", "algbw", "busbw"}) {
      if (index_of(column) == columns_.size())
        fail(line_, str("the header names no column '", column,
                        "'; nccl-tests prints: size count type redop root time "
                        "algbw busbw #wrong"));
    }
  }

  double value(std::string_view column) const {
    const std::string& word = pending_[index_of(column)];
    if (const auto number = number_in(word)) return *number;
    fail(line_, str(column, " '", word, "' of size ", pending_[0],
                    " is no number; remove the row, or measure it again"));
  }

  void end_row() {
    const std::size_t wrong = index_of("busbw") + 1;
    NcclRow row{str(filename_, ":", line_), value("size"), value("time"), value("algbw"), value("busbw")};
    row.algorithm_rounding = half_last_digit(pending_[index_of("algbw")]);
    row.bus_rounding = half_last_digit(pending_[index_of("busbw")]);
    if (wrong < pending_.size() && number_in(pending_[wrong]).value_or(0) != 0) {
      fail(line_, str("#wrong is ", pending_[wrong], " at size ", pending_[0],
                      ": the results were wrong, so the time says nothing; measure it again"));
    }
    if (row.bytes > 0) {
      if (row.time_us <= 0)
        fail(line_, str("the time of size ", pending_[0], " is ", row.time_us,
                        " us; it must be above 0; remove the row"));
      output_.rows.push_back(std::move(row));
    }
    pending_.clear();
  }

  std::string_view filename_;
  int line_ = 0;
  Words columns_ = {"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"};
  Words pending_;  // the words of a row so far
  int begun_ = 0;  // the line where it begins
  std::set<std::string> ranks_, hosts_;
  NcclOutput output_;
};

}  // namespace

NcclOutput read_nccl_output(std::string_view text, std::string_view filename) {
  Reader reader(filename);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    reader.take(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return reader.finish();
}

}  // namespace cp::sim
