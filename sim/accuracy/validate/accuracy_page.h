// Makes docs/accuracy.md, the page of what `cpsim validate` finds, and the lines of it that stand in the
// README.
#pragma once

#include <string>
#include <vector>

#include "sim/accuracy/validate/validate.h"

namespace cp::sim {

// All that `cpsim validate` finds if no table is named.
struct Accuracy {
  std::vector<ValidationTable> tables;
  std::vector<FreeParameter> parameters;
  std::vector<WidthCheck> widths;
};
// Computes it on `threads` threads. The result does not depend on their number.
Accuracy accuracy(int threads);

std::string accuracy_page(const Accuracy& accuracy);
// The README's lines: a table with a row for each kind of prediction and, behind an empty line, a sentence on
// the intervals and the choices.
std::vector<std::string> accuracy_lines(const Accuracy& accuracy);

// Numbers in words. percent_text(0.08) is "8.0 %", and signed_percent_text() also has the sign. target_text()
// is the table's target, and whether it is met: "8.0 % / 15.0 %, met", "..., MISSED".
std::string percent_text(double share);
std::string signed_percent_text(double share);
std::string target_text(const ValidationTable& table);
std::string rows_in_words(int rows);  // "1 row", "12 rows"

}  // namespace cp::sim
