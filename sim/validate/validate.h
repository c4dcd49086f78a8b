// Predictions held against published measurements: every row of the tables in sim/presets/validation, what set the parameters
// and what did not in columns of their own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cp::sim {

struct ValidationRow {
  std::string where = {};              // "ring_attention_a800_h800.csv:12"
  std::string what = {};               // the row in words
  double measured = 0, predicted = 0;  // microseconds, unless the table's unit says otherwise
  bool in_sample = false;              // its measurement set a parameter of the prediction
  std::string oddity = {};             // why it is printed and not scored; else empty
  std::string grid = {};               // rows of one grid are alternatives to each other; empty: of none

  double error() const { return predicted / measured - 1; }
};

struct ErrorSummary {
  int rows = 0;
  double median = 0, p90 = 0, worst = 0;  // of the absolute relative errors
};

// Which of several alternatives is fastest: told right when the one that is predicted fastest takes at most 5 % longer, as
// measured, than the one that is.
struct OrderingSummary {
  int grids = 0, right = 0;
};

struct ValidationTable {
  std::string name = {};  // "ring_attention_a800_h800, forward"
  std::string cluster = {}, software = {};
  std::string in_sample_rule = {};  // which rows set which parameters
  std::vector<ValidationRow> rows = {};
  std::string unit = "us";  // of what was measured; "GiB"
  // What is to be reached out of sample; 0: nothing is stated.
  double target_median = 0, target_p90 = 0, target_worst = 0;

  ErrorSummary summary(bool in_sample) const;  // of the rows that are scored
  OrderingSummary orderings() const;
  bool within_target() const;
};

// By name, in the order in which they are printed.
std::vector<std::string> validation_names();
// Throws InvalidInput with the names for an unknown one.
ValidationTable validate_table(std::string_view name);

ErrorSummary summarize(std::vector<double> absolute_errors);

// A number of a software profile that measurements have set.
struct FreeParameter {
  std::string software, name, source;
  double value = 0, neutral = 0;  // neutral: what it is without the measurement
  std::string table;
  ErrorSummary with, without;  // out of sample
};
std::vector<FreeParameter> free_parameters();

}  // namespace cp::sim
