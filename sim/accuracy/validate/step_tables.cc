// Steps of whole models.
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/accuracy/validate/memory_width.h"
#include "sim/accuracy/validate/published_steps.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/accuracy/validate/training_steps.h"
#include "sim/planner/search/doubt.h"

namespace cp::sim::detail {
namespace {

using Metric = PublishedStep::Metric;

double step_us(const PublishedStep& step, double value) {
  if (step.metric == Metric::milliseconds) return value * 1e3;
  const Workload& workload = step.question.workload;
  return static_cast<double>(workload.tokens()) / (value * step.layout.world()) * 1e6;
}

ValidationRow row_of(const PublishedStep& step) {
  ValidationRow row{.where = step.where, .what = step.what};
  const double predicted = predict(step);
  const bool memory = step.metric == Metric::peak_memory_gib;
  row.measured = memory ? step.measured : step_us(step, step.measured);
  row.predicted = memory ? predicted : step_us(step, predicted);
  row.oddity = step.oddity;
  if (memory) return row;
  const Candidate candidate = weighed(step.question, step.layout);
  row.low = row.predicted * candidate.low_us / candidate.step_us;
  row.high = row.predicted * candidate.high_us / candidate.step_us;
  return row;
}

ValidationTable table_of(bool memory) {
  ValidationTable table{.cluster = "h100-96gb-500w", .software = "torchtitan, meta-serving"};
  for (const PublishedStep& step : published_steps()) {
    if ((step.metric == Metric::peak_memory_gib) == memory) table.rows.push_back(row_of(step));
  }
  return table;
}

// Each row's by the other rows: what plans print is of all of them.
void set_memory_intervals(std::vector<ValidationRow>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<double> others;
    for (std::size_t other = 0; other < rows.size(); ++other) {
      if (other != i) others.push_back(rows[other].measured / rows[other].predicted);
    }
    const MemoryWidth width = memory_width_of(std::move(others));
    if (width.rows == 0) continue;
    rows[i].low = rows[i].predicted * width.low, rows[i].high = rows[i].predicted * width.high;
  }
}

}  // namespace

ValidationTable end_to_end() {
  ValidationTable table = table_of(false);
  table.cluster = "each row's", table.software = "torchtitan, meta-serving, megatron";
  for (const PublishedStep& step : training_steps()) table.rows.push_back(row_of(step));
  table.in_sample_rule = "nothing is set by a row; the attention kernel alone set the clock at 500 W";
  table.target_median = 0.10, table.target_worst = 0.18;
  table.target_origin = "stated beforehand for whole steps: 10 % in the median, 18 % at worst";
  table.interval_origin =
      "the doubt of each rate and of the software, as cpsim plan prints it; these rows set the software's "
      "part";
  return table;
}

ValidationTable end_to_end_memory() {
  ValidationTable table = table_of(true);
  table.in_sample_rule = "nothing is set by a row; each row's interval is of the other rows' errors";
  table.target_worst = 0.15;
  table.target_origin = "chosen when the table was made; no number is set by it";
  table.interval_origin = "the other rows";
  table.unit = "GiB";
  set_memory_intervals(table.rows);
  return table;
}

}  // namespace cp::sim::detail
