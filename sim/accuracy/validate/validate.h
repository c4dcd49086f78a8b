// Predictions held against published measurements: every row of the tables in sim/cost/presets/validation as
// `cpsim estimate` or `cpsim plan` would answer it, what set the parameters and what did not in columns of
// their own.
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
  double low = 0, high = 0;   // the printed interval, which is to hold eight in ten; 0 and 0: none is printed
  std::uint32_t rules = 0;    // bit i: what the table's rule i chooses in the grid
  std::string strategy = {};  // what of alternatives is modelled apart; empty: not said
  std::string kind = {};      // rows of one kind are checked together where the table has several

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

// Whose measurement lies in the printed interval.
struct CoverageSummary {
  int rows = 0, inside = 0;
  double share() const { return rows == 0 ? 0 : static_cast<double>(inside) / rows; }
};

// Which of several alternatives is fastest: told right when the one that is chosen takes at most 5 % longer,
// as measured, than the one that is. Regret: how much longer it takes, as a share.
struct OrderingSummary {
  int grids = 0, right = 0;
  double median_regret = 0, mean_regret = 0, worst_regret = 0;
};

// Rows that are not scored for one reason, and what the table would say with them.
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
  // What is to be reached out of sample; 0: not stated. And where that comes from.
  double target_median = 0, target_p90 = 0, target_worst = 0;
  std::string target_origin = {};
  std::string miss_reason = {};         // why it is missed, by measurements; empty: a miss is a failure
  std::string interval_origin = {};     // what the rows' intervals rest on
  std::vector<std::string> rules = {};  // that choose without a model: "always zigzag"; at most 32
  bool rescaled = false;                // kernels made as fast as rows of the table: no answer of a command

  ErrorSummary summary(bool in_sample) const;  // of the rows that are scored
  CoverageSummary coverage() const;            // of the rows that are scored
  OrderingSummary orderings() const;           // of what is predicted fastest
  // Of what rule i chooses, over the grids where it chooses something.
  OrderingSummary orderings_of_rule(std::size_t rule) const;
  std::vector<Exclusion> exclusions() const;  // by first appearance
  bool within_target() const;
};

// By name, in the order in which they are printed.
std::vector<std::string> validation_names();
// Throws InvalidInput with the names for an unknown one.
ValidationTable validate_table(std::string_view name);
// Those, or all where none is named, on so many threads.
std::vector<ValidationTable> validate_tables(const std::vector<std::string>& names, int threads);

// Regret over the grids of all tables that are answers; coverage over all their rows.
OrderingSummary orderings_of(const std::vector<ValidationTable>& tables);
CoverageSummary coverage_of(const std::vector<ValidationTable>& tables);

ErrorSummary summarize(std::vector<double> absolute_errors);

// A number of a software profile that measurements have set.
struct FreeParameter {
  std::string software, name;
  Provenance provenance;
  double value = 0, neutral = 0;  // neutral: what it is without the measurement
  std::string table;
  ErrorSummary with, without;  // out of sample
};
std::vector<FreeParameter> free_parameters(int threads = 1);
// "measured: ring.csv, cp = 16, 51 rows"; without the command that set it.
std::string set_by(const FreeParameter& parameter);

// A width of sim/cost/timeline/widths.h beside the residuals that it is derived from.
struct WidthCheck {
  std::string name, rows_of;  // "a strategy of attention"; what was counted
  double in_use = 0;          // as it stands in the code
  int residuals = 0;
  double measured = 0;         // by all of them
  double least = 0, most = 0;  // by all but those of one table, or of one GPU
};
// `tables`: of attention over ranks, and of steps; those that are not there leave their width out.
std::vector<WidthCheck> width_checks(const std::vector<ValidationTable>& tables);

}  // namespace cp::sim
