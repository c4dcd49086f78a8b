// Steps of whole models.
#include "shared/base/text.h"
#include "sim/validate/published_steps.h"
#include "sim/validate/tables.h"
#include "sim/validate/training_steps.h"

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
  return row;
}

ValidationTable table_of(bool memory) {
  ValidationTable table{.cluster = "h100-96gb-500w", .software = "torchtitan, meta-serving"};
  table.target_worst = 0.15;
  for (const PublishedStep& step : published_steps()) {
    if ((step.metric == Metric::peak_memory_gib) == memory) table.rows.push_back(row_of(step));
  }
  return table;
}

}  // namespace

ValidationTable end_to_end() {
  ValidationTable table = table_of(false);
  table.cluster = "each row's", table.software = "torchtitan, meta-serving, megatron";
  for (const PublishedStep& step : training_steps()) table.rows.push_back(row_of(step));
  table.in_sample_rule = "nothing is set by a row; the attention kernel alone set the clock at 500 W";
  table.target_median = 0.10, table.target_worst = 0.18;
  return table;
}

ValidationTable end_to_end_memory() {
  ValidationTable table = table_of(true);
  table.in_sample_rule = "nothing is set by a row";
  table.unit = "GiB";
  return table;
}

}  // namespace cp::sim::detail
