// The tables that calibrate kernels and transfers: each size predicted from the others, as by a cluster that
// lacks it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/cost/cluster/curve.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim::detail {
namespace {

struct Measured {
  const CsvRow* row;
  double x, rate;  // a curve's point
  double amount;   // time is amount / rate, in us
  std::string size;
};

// A point that is left out makes a gap that no cluster's curve has. So the interval of a row is what eight in
// ten rows of the other series are off by.
void set_intervals(const std::vector<std::string>& names, ValidationTable& table) {
  constexpr double kEight = 0.8;  // what intervals are said to hold (widths.h)
  table.interval_origin = "errors of the other series in the table";
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    std::vector<double> others;
    for (std::size_t other = 0; other < table.rows.size(); ++other) {
      const ValidationRow& row = table.rows[other];
      if (names[other] != names[i]) others.push_back(std::abs(std::log(row.predicted / row.measured)));
    }
    std::sort(others.begin(), others.end());
    const double factor = std::exp(percentile(others, kEight));
    ValidationRow& row = table.rows[i];
    row.low = row.predicted / factor, row.high = row.predicted * factor;
  }
}

// Predicts the rows between the first and the last size of each series, each from the others.
void leave_one_out(const std::map<std::string, std::vector<Measured>>& series, ValidationTable& table) {
  std::vector<std::string> names;  // of the rows
  for (const auto& [name, rows] : series) {
    for (std::size_t left_out = 1; left_out + 1 < rows.size(); ++left_out) {
      std::vector<CurvePoint> points;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i != left_out) points.push_back({rows[i].x, rows[i].rate});
      }
      const Measured& it = rows[left_out];
      ValidationRow row{.where = it.row->where(), .what = str(name, " ", it.size)};
      row.measured = it.amount / it.rate;
      row.predicted = it.amount / Curve(std::move(points)).at(it.x);
      table.rows.push_back(std::move(row));
      names.push_back(name);
    }
  }
  set_intervals(names, table);
}

}  // namespace

ValidationTable flash_attention() {
  ValidationTable table{.cluster = "a800, h800", .software = "FlashAttention 2"};
  table.in_sample_rule = "each length is predicted from the other lengths";
  const std::vector<CsvRow> rows = validation_table("flash_attention_a800_h800");
  std::map<std::string, std::vector<Measured>> series;
  for (const CsvRow& row : rows) {
    const double length = row.number("seq_len");
    const double pairs = row.text("mask") == "causal" ? length * (length + 1) / 2 : length * length;
    for (const char* pass : {"forward", "backward"}) {
      const double us = row.number(str(pass, "_milliseconds")) * 1e3;
      series[str(row.text("gpu"), " ", row.text("mask"), " ", pass)].push_back(
          {&row, pairs, pairs / us, pairs, row.text("seq_len")});
    }
  }
  leave_one_out(series, table);
  table.target_median = 0.08, table.target_p90 = 0.20;
  table.target_origin = "stated beforehand for attention on rows that were left out: 8 % and 20 %";
  return table;
}

ValidationTable point_to_point() {
  ValidationTable table{.cluster = "a800, h800", .software = "NCCL"};
  table.in_sample_rule = "each payload is predicted from the other payloads";
  const std::vector<CsvRow> rows = validation_table("point_to_point_a800_h800");
  std::map<std::string, std::vector<Measured>> series;
  for (const CsvRow& row : rows) {
    const double bytes = row.number("payload_bytes");
    for (const std::string column : {"a800_intra_node_gbps", "a800_cross_node_8_pairs_gbps",
                                     "h800_intra_node_gbps", "h800_cross_node_8_pairs_gbps"}) {
      series[column.substr(0, column.size() - 5)].push_back(
          {&row, bytes, row.number(column), bytes * 1e-3, human_bytes(static_cast<std::int64_t>(bytes))});
    }
  }
  leave_one_out(series, table);
  table.target_median = 0.15, table.target_p90 = 0.30;
  table.target_origin = "stated beforehand for transfers of 1 to 64 MiB and for shorter ones: 15 % and 30 %";
  return table;
}

}  // namespace cp::sim::detail
