#include "sim/accuracy/validate/published_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/error.h"
#include "shared/transformer/memory_reading.h"
#include "sim/accuracy/validate/served_rows.h"
#include "sim/accuracy/validate/step_columns.h"
#include "sim/accuracy/validate/training_steps.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/presets/csv.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/evaluate.h"

namespace cp::sim {
namespace {

using Metric = PublishedStep::Metric;

// How far apart two rows count whose products have another precision, in doublings of a size. Chosen. It only
// decides which published row is shown as the nearest.
constexpr double kOtherPrecision = 0.5;

Metric metric_of(const CsvRow& row) {
  const std::string& metric = row.text("metric");
  if (metric == "tokens_per_second_per_gpu") return Metric::tokens_per_s_per_gpu;
  if (metric == "peak_memory_gib") return Metric::peak_memory_gib;
  return Metric::milliseconds;
}

PlanQuestion question_of(const CsvRow& row) {
  PlanQuestion question;
  const bool training = row.text("phase") == "training";
  question.model =
      load_model(row.text("model") == "Llama-3-405B" ? "llama-3.1-405b" : row.text("model")).model;
  question.cluster = find_cluster("h100-96gb-500w", static_cast<int>(row.whole("gpus") + 7) / 8);
  question.software = find_software(training ? "torchtitan" : "meta-serving");
  question.software.linear_precision = products_of(row);
  question.workload.phase = training ? Phase::training : Phase::prefill;
  question.workload.seq_len = row.whole("seq_len");
  question.workload.global_batch = row.whole("batch_per_replica") * row.whole("dp_shard");
  return question;
}

ParallelLayout layout_of(const CsvRow& row, const PlanQuestion& question) {
  ParallelLayout layout;
  layout.dp_shard = static_cast<int>(row.whole("dp_shard")), layout.tp = static_cast<int>(row.whole("tp"));
  layout.cp = static_cast<int>(row.whole("cp")), layout.pp = static_cast<int>(row.whole("pp"));
  layout.micro_batch = row.whole("batch_per_replica");
  layout.strategy.balance = parse_balance(question.software.balance);
  layout.strategy.send_empty = question.software.send_empty;
  layout.recompute = recompute_of(row);
  return layout;
}

double distance(const PlanQuestion& a, const PlanQuestion& b) {
  const auto ratio = [](double x, double y) { return std::abs(std::log2(x / y)); };
  const auto parameters = [](const PlanQuestion& q) {
    return static_cast<double>(parameter_counts(q.model).total);
  };
  const bool as_precise = a.software.linear_precision == b.software.linear_precision;
  return (as_precise ? 0 : kOtherPrecision) + ratio(parameters(a), parameters(b)) +
         ratio(static_cast<double>(a.workload.seq_len), static_cast<double>(b.workload.seq_len)) +
         ratio(a.cluster.num_gpus(), b.cluster.num_gpus()) +
         ratio(a.cluster.gpu.tflops_16, b.cluster.gpu.tflops_16);
}

NearestMeasurement measurement_of(const PublishedStep& step) {
  NearestMeasurement of{step.source, step.what, unit_of(step.metric), step.measured, predict(step)};
  of.is_rate = step.metric == Metric::tokens_per_s_per_gpu;
  of.unscored = step.oddity;
  return of;
}

// Whether the ranks have equal shares of a causal mask: Ulysses alone splits heads, so rows do not matter;
// otherwise each rank must have rows from both ends.
bool is_even(const ParallelLayout& layout) {
  return layout.cp == layout.strategy.ulysses_degree ||
         layout.strategy.balance.kind != Balance::Kind::contiguous;
}

// "+19.9 %", of the time.
std::string signed_error(const NearestMeasurement& of) {
  const double percent = std::round(of.error() * 1e3) / 10;
  return str(percent < 0 ? "" : "+", percent, " %");
}

}  // namespace

std::string words_of(const PublishedStep& step) {
  const ParallelLayout& layout = step.layout;
  std::string text = str(step.question.model.name, ", ", layout.world(), " GPUs, ",
                         step.question.workload.seq_len, " tokens, ", name(step.question.workload.phase));
  if (layout.tp > 1) text += str(", tp ", layout.tp);
  if (layout.cp > 1) text += str(", cp ", layout.cp, " ", to_string(layout.strategy.balance));
  if (step.question.software.linear_precision == LinearPrecision::fp8) text += ", FP8 products";
  return text;
}

std::vector<PublishedStep> published_steps() {
  std::vector<PublishedStep> steps;
  for (const CsvRow& row : validation_table("end_to_end")) {
    if (row.text("phase").empty() || row.text("cp").empty()) continue;  // of a kernel alone
    PublishedStep step{row.where(),         row.text("source"), "", question_of(row), {}, metric_of(row),
                       row.number("value"), row.text("oddity")};
    step.layout = layout_of(row, step.question);
    step.what = words_of(step);
    const bool unstated = row.text("balance") == "unstated";
    if (unstated) step.oddity = "the source does not say how the sequence is balanced";
    steps.push_back(step);
    if (!unstated) continue;
    step.layout.strategy.balance.kind = Balance::Kind::contiguous;
    step.what = words_of(step);
    steps.push_back(std::move(step));
  }
  return steps;
}

double predict(const PublishedStep& step) {
  const PlanQuestion& question = step.question;
  if (step.metric == Metric::peak_memory_gib) {
    return static_cast<double>(
               memory_of({question.model, question.workload, step.layout}, memory_rules(question)).used()) /
           kGiB;
  }
  Evaluator evaluator(question);
  const Candidate candidate = evaluator.evaluate(step.layout);
  switch (step.metric) {
    case Metric::tokens_per_s_per_gpu:
      return candidate.tokens_per_s_per_gpu;
    case Metric::milliseconds:
      return candidate.step_us / 1e3;
    case Metric::peak_memory_gib:
      break;
  }
  return 0;
}

std::string unit_of(Metric metric) {
  switch (metric) {
    case Metric::tokens_per_s_per_gpu:
      return "tokens/s/GPU";
    case Metric::milliseconds:
      return "ms";
    case Metric::peak_memory_gib:
      return "GiB";
  }
  return {};
}

std::vector<NearestMeasurement> published_measurements() {
  std::vector<NearestMeasurement> measurements;
  for (const PublishedStep& step : published_steps()) {
    if (step.metric != Metric::peak_memory_gib) measurements.push_back(measurement_of(step));
  }
  return measurements;
}

std::optional<NearestMeasurement> nearest_measurement(const PlanQuestion& question,
                                                      const ParallelLayout* layout) {
  if (question.workload.phase == Phase::decode) return nearest_served(question, layout);
  std::vector<PublishedStep> steps = published_steps();
  for (PublishedStep& step : training_steps()) steps.push_back(std::move(step));
  std::erase_if(steps, [&](const PublishedStep& step) {
    return step.metric == Metric::peak_memory_gib || step.question.workload.phase != question.workload.phase;
  });
  if (steps.empty()) return std::nullopt;
  const auto key = [&](const PublishedStep& step) {
    const bool as_even = layout == nullptr || is_even(*layout) == is_even(step.layout);
    return std::pair(distance(step.question, question), as_even ? 0 : 1);
  };
  const auto nearest = std::min_element(steps.begin(), steps.end(),
                                        [&](const auto& a, const auto& b) { return key(a) < key(b); });
  NearestMeasurement found = measurement_of(*nearest);
  for (const PublishedStep& other : steps) {
    if (other.where != nearest->where || other.what == nearest->what) continue;
    found.unscored += str("; read as ", to_string(other.layout.strategy.balance), ": ",
                          signed_error(measurement_of(other)));
  }
  return found;
}

}  // namespace cp::sim
