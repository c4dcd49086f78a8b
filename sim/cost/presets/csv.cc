#include "sim/cost/presets/csv.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "sim/cost/presets/embedded.h"

namespace cp::sim {
namespace {

// Takes the cells of one line; `begin` moves behind its end. A quoted cell may hold ends of lines.
std::vector<std::string> take_row(std::string_view text, std::size_t& begin, int& line,
                                  const std::string& where) {
  std::vector<std::string> cells(1);
  bool quoted = false, closed = false;
  for (; begin < text.size(); ++begin) {
    const char c = text[begin];
    if (quoted) {
      if (c == '"' && begin + 1 < text.size() && text[begin + 1] == '"') {
        cells.back() += text[++begin];
      } else if (c == '"') {
        quoted = false;
        closed = true;
      } else {
        line += c == '\n';
        cells.back() += c;
      }
    } else if (c == '\n') {
      break;
    } else if (c == '\r' && (begin + 1 == text.size() || text[begin + 1] == '\n')) {
      continue;
    } else if (c == ',') {
      cells.emplace_back();
      closed = false;
    } else if (closed) {
      throw InvalidInput(str(where, ": '", c, "' stands after the closing quote of cell ", cells.size(),
                             "; a quote inside of a cell is written twice"));
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else {
      cells.back() += c;
    }
  }
  if (quoted)
    throw InvalidInput(str(where, ": the quote of cell ", cells.size(), " does not end; close it with \""));
  ++begin;
  ++line;
  return cells;
}

void check_columns(const std::vector<std::string>& columns, const std::string& where) {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].empty())
      throw InvalidInput(str(where, ": column ", i + 1, " has no name; name each column in the first line"));
    if (!seen.insert(columns[i]).second) {
      throw InvalidInput(str(where, ": two columns are called '", columns[i], "'; rename one"));
    }
  }
}

}  // namespace

CsvRow::CsvRow(std::string where, std::map<std::string, std::string, std::less<>> cells)
    : where_(std::move(where)), cells_(std::move(cells)) {}

const std::string& CsvRow::text(std::string_view column) const {
  const auto found = cells_.find(column);
  if (found != cells_.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [name, cell] : cells_) names.push_back(name);
  throw InvalidInput(str(where_, ": there is no column '", column, "'; the nearest one is '",
                         nearest_name(column, names), "'"));
}

double CsvRow::number(std::string_view column) const {
  const std::string& cell = text(column);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value)) {
    throw InvalidInput(str(where_, ": ", column, " '", cell, "' is no number; write, for example, 12.5"));
  }
  return value;
}

std::int64_t CsvRow::whole(std::string_view column) const {
  constexpr double kExact = 1LL << 53;
  const double value = number(column);
  if (value != std::trunc(value) || std::abs(value) > kExact) {
    throw InvalidInput(str(where_, ": ", column, " '", text(column),
                           "' is no whole number below 2^53; write, for example, ",
                           std::abs(value) > kExact ? "9007199254740992" : str(std::llround(value))));
  }
  return static_cast<std::int64_t>(value);
}

std::vector<CsvRow> read_csv(std::string_view text, std::string_view filename) {
  std::vector<CsvRow> rows;
  std::vector<std::string> columns;
  int line = 1;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string where = str(filename, ":", line);
    std::vector<std::string> cells = take_row(text, begin, line, where);
    if (cells.size() == 1 && cells[0].empty()) continue;
    if (columns.empty()) {
      check_columns(cells, where);
      columns = std::move(cells);
      continue;
    }
    if (cells.size() != columns.size()) {
      throw InvalidInput(str(where, ": ", cells.size(), " cells, but the first line names ", columns.size(),
                             " columns; quote a cell that holds a comma"));
    }
    std::map<std::string, std::string, std::less<>> named;
    for (std::size_t i = 0; i < cells.size(); ++i) named.emplace(columns[i], std::move(cells[i]));
    rows.emplace_back(where, std::move(named));
  }
  if (columns.empty())
    throw InvalidInput(str(filename, ":1: the table is empty; its first line names the columns"));
  return rows;
}

std::vector<CsvRow> validation_table(std::string_view name) {
  const EmbeddedText& table = find_embedded(embedded_validation(), name, "validation table");
  return read_csv(table.text, str(table.name, ".csv"));
}

}  // namespace cp::sim
