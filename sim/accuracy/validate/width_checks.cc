// The widths of sim/cost/timeline/widths.h beside the residuals that they are derived from.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/accuracy/validate/validate.h"
#include "sim/cost/cluster/read_rates.h"
#include "sim/cost/presets/csv.h"
#include "sim/cost/timeline/widths.h"

namespace cp::sim {
namespace {

constexpr double kEight = 0.8;  // what intervals are said to hold: eight errors in ten (widths.h)

double share_below(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : detail::percentile(values, share);
}

double apart(double a, double b) { return std::abs(std::log(a / b)); }
double as_share(double log_ratio) { return std::expm1(log_ratio); }

// Residuals, by the table or GPU that each is of. Leaving one of these out shows whether it alone makes the
// width.
using Residuals = std::map<std::string, std::vector<double>>;

template <class Width>
WidthCheck check(std::string name, std::string rows_of, double in_use, const Residuals& residuals,
                 Width&& width) {
  WidthCheck result{std::move(name), std::move(rows_of), in_use};
  const auto without = [&](const std::string* left_out) {
    std::vector<double> all;
    for (const auto& [of, values] : residuals) {
      if (left_out == nullptr || of != *left_out) all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> all = without(nullptr);
  result.residuals = static_cast<int>(all.size());
  result.measured = result.least = result.most = all.empty() ? 0 : width(all);
  for (const auto& [of, values] : residuals) {
    const std::vector<double> others = without(&of);
    if (others.empty() || residuals.size() < 2) continue;
    result.least = std::min(result.least, width(others));
    result.most = std::max(result.most, width(others));
  }
  return result;
}

const ValidationTable* find(const std::vector<ValidationTable>& tables, std::string_view name) {
  const auto found =
      std::find_if(tables.begin(), tables.end(), [&](const auto& table) { return table.name == name; });
  return found == tables.end() ? nullptr : &*found;
}

// For two rows of one system and size by two strategies: how far off the predicted ratio of their times is.
Residuals of_strategies(const std::vector<ValidationTable>& tables) {
  Residuals residuals;
  for (const ValidationTable& table : tables) {
    if (table.rescaled) continue;
    std::map<std::string, std::vector<const ValidationRow*>> grids;
    for (const ValidationRow& row : table.rows) {
      if (!row.grid.empty() && !row.strategy.empty() && row.oddity.empty()) grids[row.grid].push_back(&row);
    }
    for (const auto& [name, rows] : grids) {
      for (std::size_t a = 0; a < rows.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
          if (rows[a]->strategy == rows[b]->strategy) continue;
          residuals[table.name].push_back(
              apart(rows[a]->predicted / rows[a]->measured, rows[b]->predicted / rows[b]->measured));
        }
      }
    }
  }
  return residuals;
}

// For one node of one kind that is in nccl_tests and in nccl_gpus: how far apart the two tables are. The
// latter is interpolated between its neighbouring sizes.
Residuals of_two_machines() {
  std::map<std::string, std::map<double, double>> series;  // us by bytes
  const auto key = [](const CsvRow& row) {
    return str(row.text("system"), " ", row.text("gpus"), " ", row.text("collective"));
  };
  for (const CsvRow& row : validation_table("nccl_gpus"))
    series[key(row)][row.number("total_bytes")] = row.number("microseconds");
  Residuals residuals;
  for (const CsvRow& row : validation_table("nccl_tests")) {
    const auto known = series.find(key(row));
    if (row.text("nodes") != "1" || known == series.end()) continue;
    const double bytes = row.number("total_bytes");
    const auto above = known->second.lower_bound(bytes);
    if (above == known->second.end() || (above == known->second.begin() && above->first != bytes)) continue;
    double us = above->second;
    if (above->first != bytes) {
      const auto below = std::prev(above);
      const double share = std::log(bytes / below->first) / std::log(above->first / below->first);
      us = below->second * std::pow(above->second / below->second, share);
    }
    residuals[key(row)].push_back(apart(row.number("microseconds"), us));
  }
  return residuals;
}

// The time of one pair at `head_dim`, by the line through the times at two other sizes.
double by_line(const AttentionRate& a, const AttentionRate& b, double head_dim) {
  const auto time = [](const AttentionRate& rate) { return rate.head_dim / rate.tflops; };
  return time(a) + (time(b) - time(a)) * (head_dim - a.head_dim) / (b.head_dim - a.head_dim);
}

struct OfSizes {
  Residuals between, beyond;
};

OfSizes of_head_sizes() {
  OfSizes residuals;
  for (const std::string& gpu : rates_names()) {
    // Of 16 bits, from which the width is taken for 8 as well; without sizes that were derived from others.
    std::map<std::pair<std::string, bool>, std::vector<AttentionRate>> by_kernel;
    for (const AttentionRate& rate : find_rates(gpu).attention) {
      if (rate.bits == 16 && is_first_hand(rate.provenance.origin))
        by_kernel[{rate.kernel, rate.backward}].push_back(rate);
    }
    for (auto& [kernel, rates] : by_kernel) {
      std::sort(rates.begin(), rates.end(),
                [](const auto& a, const auto& b) { return a.head_dim < b.head_dim; });
      for (std::size_t i = 0; i + 2 < rates.size(); ++i) {
        const AttentionRate &small = rates[i], &middle = rates[i + 1], &large = rates[i + 2];
        residuals.between[gpu].push_back(
            apart(by_line(small, large, middle.head_dim), middle.head_dim / middle.tflops));
        const double slowest = middle.head_dim / middle.tflops, fastest = small.head_dim / middle.tflops;
        const double line = std::clamp(by_line(middle, large, small.head_dim), fastest, slowest);
        const double doublings = std::log2(static_cast<double>(middle.head_dim) / small.head_dim);
        residuals.beyond[gpu].push_back(apart(line, small.head_dim / small.tflops) / doublings);
      }
    }
  }
  return residuals;
}

}  // namespace

std::vector<WidthCheck> width_checks(const std::vector<ValidationTable>& tables) {
  const auto eight_in_ten = [](const std::vector<double>& values) {
    return as_share(share_below(values, kEight));
  };
  const auto worst = [](const std::vector<double>& values) {
    return as_share(*std::max_element(values.begin(), values.end()));
  };
  std::vector<WidthCheck> checks;
  if (Residuals residuals = of_strategies(tables); !residuals.empty()) {
    // A median of |x| is 0.674 standard deviations; a pair has the errors of two.
    checks.push_back(check("a strategy of attention (standard deviation)",
                           "pairs of rows of one system and size by two strategies", widths::kOfStrategy,
                           residuals, [](const std::vector<double>& values) {
                             return share_below(values, 0.5) / 0.6745 / std::sqrt(2.0);
                           }));
  }
  if (const ValidationTable* table = find(tables, "ring_flash_attention")) {
    Residuals residuals;
    for (const ValidationRow& row : table->rows) {
      if (row.in_sample) residuals[row.what].push_back(apart(row.predicted, row.measured));
    }
    checks.push_back(check("a kernel's curve on another machine", "rows of one GPU, their worst",
                           widths::kKernelElsewhere, residuals, worst));
  }
  checks.push_back(check("a transfer's curve on another machine",
                         "rows of two machines of one kind, eight in ten", widths::kTransferElsewhere,
                         of_two_machines(), eight_in_ten));
  const OfSizes sizes = of_head_sizes();
  checks.push_back(check("a head size between two", "rates left out, eight in ten", widths::kBetweenSizes,
                         sizes.between, eight_in_ten));
  checks.push_back(check("a head size beyond all, a doubling", "rates left out, eight in ten",
                         widths::kBeyondSizes, sizes.beyond, eight_in_ten));
  if (const ValidationTable* table = find(tables, "usp_short")) {
    Residuals residuals;
    for (const ValidationRow& row : table->rows) {
      if (row.scored()) residuals[row.kind].push_back(apart(row.predicted, row.measured));
    }
    checks.push_back(check("what a host needs to issue a call", "rows that wait for it, eight in ten",
                           widths::kHost, residuals, eight_in_ten));
  }
  if (const ValidationTable* table = find(tables, "end_to_end")) {
    Residuals residuals;
    for (const ValidationRow& row : table->rows) {
      if (row.scored()) residuals[row.what].push_back(apart(row.predicted, row.measured));
    }
    // Nine in ten values of a normal distribution lie within this many standard deviations of its mean.
    constexpr double kNineInTen = 1.6449;
    checks.push_back(check(
        "the software as a whole (standard deviation)", "whole steps, nine in ten", widths::kOfAll, residuals,
        [&](const std::vector<double>& values) { return share_below(values, 0.9) / kNineInTen; }));
  }
  return checks;
}

}  // namespace cp::sim
