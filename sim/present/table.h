// Table: rows of text in aligned columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cp::sim {

enum class Align : std::uint8_t { left, right };

struct Column {
  std::string title;
  Align align = Align::left;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // `cells` must have one cell for each column.
  void add_row(std::vector<std::string> cells);

  // The titles, and then the rows. A line has no spaces at its end. Widths count characters, not bytes of
  // UTF-8.
  std::string text() const;

 private:
  std::string line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cp::sim
