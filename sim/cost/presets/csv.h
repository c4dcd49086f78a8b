// Reads tables of comma-separated values, whose first line names the columns: the validation tables, and
// tables that users bring.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cp::sim {

class CsvRow {
 public:
  CsvRow(std::string where, std::map<std::string, std::string, std::less<>> cells);

  const std::string& where() const { return where_; }  // "table.csv:12"
  bool has(std::string_view column) const { return cells_.find(column) != cells_.end(); }
  // The text of a cell. Throws InvalidInput that names this line and the nearest column if there is no such
  // column.
  const std::string& text(std::string_view column) const;
  // Also throws if the cell is not a number: finite, decimal, with nothing around it.
  double number(std::string_view column) const;
  // Also throws if the number has a fraction, or is beyond 2^53, where doubles have gaps.
  std::int64_t whole(std::string_view column) const;
  const std::map<std::string, std::string, std::less<>>& cells() const { return cells_; }

 private:
  std::string where_;
  std::map<std::string, std::string, std::less<>> cells_;
};

// Reads the rows of a table. Cells may be quoted ("a, b"; a quote inside is written twice). Empty lines are
// skipped, and lines may end in \r\n.
//
// Throws InvalidInput with file and line if the table is empty, a row has another number of cells than the
// first line, a column has no name or the name of another, a quote does not end, or text follows a closing
// quote.
std::vector<CsvRow> read_csv(std::string_view text, std::string_view filename);

// Returns a table of sim/cost/presets/validation by its name ("nccl_tests"). Throws InvalidInput that lists
// the names.
std::vector<CsvRow> validation_table(std::string_view name);

}  // namespace cp::sim
