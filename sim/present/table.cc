#include "sim/present/table.h"

#include <algorithm>
#include <string_view>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  CP_INVARIANT(cells.size() == columns_.size(), cells.size(), " cells for ", columns_.size(), " columns");
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    titles.push_back(columns_[column].title);
    widths.push_back(width_of(titles.back()));
    for (const auto& row : rows_) widths.back() = std::max(widths.back(), width_of(row[column]));
  }
  std::string text = line(titles, widths);
  for (const auto& row : rows_) text += line(row, widths);
  return text;
}

std::string Table::line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) const {
  std::string text;
  for (std::size_t column = 0; column < cells.size(); ++column) {
    const std::string padding(widths[column] - width_of(cells[column]), ' ');
    if (column > 0) text += "  ";
    text += columns_[column].align == Align::right ? padding + cells[column] : cells[column] + padding;
  }
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace cp::sim
