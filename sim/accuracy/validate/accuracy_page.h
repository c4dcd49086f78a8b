// docs/accuracy.md: what `cpsim validate` finds, as a page, and the lines of it that stand in the README.
#pragma once

#include <string>
#include <vector>

#include "sim/accuracy/validate/validate.h"

namespace cp::sim {

// All that `cpsim validate` without names finds.
struct Accuracy {
  std::vector<ValidationTable> tables;
  std::vector<FreeParameter> parameters;
  std::vector<WidthCheck> widths;
};
// On so many threads; the same for any number.
Accuracy accuracy(int threads);

std::string accuracy_page(const Accuracy& accuracy);
// A table with a row for each kind of prediction; and, behind an empty line, a sentence on the intervals and
// the choices.
std::vector<std::string> accuracy_lines(const Accuracy& accuracy);

// "8.0 %"; of a target "8.0 % / 15.0 %, met", "..., MISSED".
std::string percent_text(double share);
std::string signed_percent_text(double share);
std::string target_text(const ValidationTable& table);
std::string rows_in_words(int rows);  // "1 row", "12 rows"

}  // namespace cp::sim
