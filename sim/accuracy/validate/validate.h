// Compares predictions with published measurements. Every row of the tables in sim/cost/presets/validation is
// predicted as `cpsim estimate` or `cpsim plan` would answer it. Rows whose measurements set a parameter (in
// sample) are kept apart from the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/source.h"

namespace cp::sim {

struct ValidationRow {
  std::string where = {};              // "ring_attention_a800_h800.csv:12"
  std::string what = {};               // the row in words
  double measured = 0, predicted = 0;  // microseconds, unless the table's unit says otherwise
  bool in_sample = false;              // its measurement set a parameter of the prediction
  std::string oddity = {};             // why it is printed and not scored; else empty
  std::string grid = {};               // rows of one grid are alternatives to each other; empty: of none
  // The printed interval, which shall contain eight measurements in ten; 0 and 0 if none is printed.
  double low = 0, high = 0;
  std::uint32_t rules = 0;  // bit i: the table's rule i chooses this row of its grid
  // What of the alternatives is modelled apart from the others; empty: not said.
  std::string strategy = {};
  // Rows of one kind are checked together, if the table has several kinds.
  std::string kind = {};

  double error() const { return predicted / measured - 1; }
  bool has_interval() const { return high > 0; }
  bool inside() const { return low <= measured && measured <= high; }
  bool scored() const { return !in_sample && oddity.empty(); }
};

struct ErrorSummary {
  int rows = 0;
  double median = 0, p90 = 0, worst = 0;  // of the absolute relative errors
  double signed_median = 0;               // below 0: predicted too fast
};

// How many rows have their measurement inside of the printed interval.
struct CoverageSummary {
  int rows = 0, inside = 0;
  double share() const { return rows == 0 ? 0 : static_cast<double>(inside) / rows; }
};

// How well the prediction tells which of several alternatives is fastest. A choice is right if the chosen
// alternative takes at most 5 % longer, as measured, than the fastest one. The regret is how much longer it
// takes, as a share.
struct OrderingSummary {
  int grids = 0, right = 0;
  double median_regret = 0, mean_regret = 0, worst_regret = 0;
};

// The rows that are not scored for one reason, and the table's errors if they were.
struct Exclusion {
  std::string reason;
  int rows = 0;
  double signed_median = 0;  // of these rows
  ErrorSummary with;
};

struct ValidationTable {
  std::string name = {};  // "ring_attention_a800_h800, forward"
  std::string cluster = {}, software = {};
  std::string in_sample_rule = {};  // which rows set which parameters
  std::vector<ValidationRow> rows = {};
  std::string unit = "us";  // of what was measured; "GiB"
  // The errors that are to be reached out of sample (0: not stated), and where these targets come from.
  double target_median = 0, target_p90 = 0, target_worst = 0;
  std::string target_origin = {};
  // Why the target is missed, shown by measurements. Empty: a miss is a failure.
  std::string miss_reason = {};
  std::string interval_origin = {};  // what the intervals of the rows rest on
  // Rules that choose without a model: "always zigzag". At most 32, as many as ValidationRow::rules has bits.
  std::vector<std::string> rules = {};
  // Kernels were made as fast as rows of the table say: this is no answer of a command.
  bool rescaled = false;

  ErrorSummary summary(bool in_sample) const;  // of the rows that are scored
  CoverageSummary coverage() const;            // of the rows that are scored
  OrderingSummary orderings() const;           // of the alternatives that are predicted to be fastest
  // The same for what rule i chooses, over the grids in which it chooses something.
  OrderingSummary orderings_of_rule(std::size_t rule) const;
  std::vector<Exclusion> exclusions() const;  // in the order in which the reasons appear

  // Whether all targets that are stated are reached out of sample. False if none is stated, or no row is
  // scored.
  bool within_target() const;
};

// The names of all tables, in the order in which they are printed.
std::vector<std::string> validation_names();
// Predicts one table. Throws InvalidInput that lists the names for an unknown one.
ValidationTable validate_table(std::string_view name);
// Predicts the named tables, or all if none is named, on `threads` threads. Throws as validate_table().
std::vector<ValidationTable> validate_tables(const std::vector<std::string>& names, int threads);

// The regret over the grids of all tables, and the coverage over all their rows. Tables that are no answers
// (`rescaled`) are left out.
OrderingSummary orderings_of(const std::vector<ValidationTable>& tables);
CoverageSummary coverage_of(const std::vector<ValidationTable>& tables);

// Summarizes absolute relative errors. The result's signed_median stays 0.
ErrorSummary summarize(std::vector<double> absolute_errors);

// A number of a software profile that was set by measurements.
struct FreeParameter {
  std::string software, name;
  Provenance provenance;
  double value = 0, neutral = 0;  // neutral: what it would be without the measurement
  std::string table;
  ErrorSummary with, without;  // errors out of sample
};
std::vector<FreeParameter> free_parameters(int threads = 1);
// Says what set the parameter: "measured: ring.csv, cp = 16, 51 rows". The command that set it is left out.
std::string set_by(const FreeParameter& parameter);

// A width of sim/cost/timeline/widths.h, beside the width that today's residuals would give.
struct WidthCheck {
  std::string name, rows_of;  // "a strategy of attention"; what was counted
  double in_use = 0;          // as it stands in the code
  int residuals = 0;
  double measured = 0;  // by all of them
  // The least and the greatest width if the residuals of one table, or of one GPU, are left out.
  double least = 0, most = 0;
};
// Checks the widths by the given tables, which are those of attention over ranks and of whole steps. A width
// whose table is missing is left out.
std::vector<WidthCheck> width_checks(const std::vector<ValidationTable>& tables);

}  // namespace cp::sim
