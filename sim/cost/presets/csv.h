// Tables as comma-separated values, the first line naming the columns: the validation tables and what users
// bring.
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
  // Throws InvalidInput at this line when there is no such column (it names the nearest one).
  const std::string& text(std::string_view column) const;
  // Also throws when the cell is no number: finite, decimal, nothing around it.
  double number(std::string_view column) const;
  // Also throws when the number has a fraction, or is beyond 2^53, where doubles have gaps.
  std::int64_t whole(std::string_view column) const;
  const std::map<std::string, std::string, std::less<>>& cells() const { return cells_; }

 private:
  std::string where_;
  std::map<std::string, std::string, std::less<>> cells_;
};

// Cells may be quoted ("a, b"; a quote inside is written twice); empty lines are skipped, lines may end in
// \r\n. Throws InvalidInput with file and line for a row with another number of cells than the first line, a
// column that has no name or the name of another, a quote that does not end, or text after a closing quote.
std::vector<CsvRow> read_csv(std::string_view text, std::string_view filename);

// A table of sim/cost/presets/validation by its name ("nccl_tests"). Throws InvalidInput that lists them.
std::vector<CsvRow> validation_table(std::string_view name);

}  // namespace cp::sim
