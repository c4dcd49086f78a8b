// Servers under load: time between tokens and to the first one, as `cpsim plan --phase decode --aggregated`
// answers them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/accuracy/validate/memory_width.h"
#include "sim/accuracy/validate/served_rows.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/cost/presets/csv.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/evaluate.h"

namespace cp::sim::detail {
namespace {

constexpr const char* kServedTokens = "served_tokens";
constexpr const char* kWaits = "more requests than the memory is likely to hold: some wait";

// Models, clusters and profiles by name, read once.
template <class Value>
class ReadOnce {
 public:
  template <class Read>
  const Value& of(const std::string& name, Read&& read) {
    const auto found = values_.find(name);
    return found != values_.end() ? found->second : values_.emplace(name, read(name)).first->second;
  }

 private:
  std::map<std::string, Value> values_;
};

struct Presets {
  ReadOnce<Transformer> models;
  ReadOnce<Cluster> clusters;
  ReadOnce<SoftwareProfile> software;
};

LinearPrecision precision_of(const CsvRow& row) {
  const std::string& text = row.text("linear_dtype");
  if (text == "bf16") return LinearPrecision::b16;
  if (text == "fp8") return LinearPrecision::fp8;
  if (text == "nvfp4") return LinearPrecision::nvfp4;
  throw InvalidInput(str(row.where(), ": unknown linear_dtype '", text, "'; use bf16, fp8 or nvfp4"));
}

// A question of one replica, on as many GPUs as it takes.
PlanQuestion question_of(const CsvRow& row, Presets& presets) {
  PlanQuestion question;
  question.model =
      presets.models.of(row.text("model"), [](const std::string& name) { return load_model(name).model; });
  const int tp = static_cast<int>(row.whole("tp"));
  question.cluster = presets.clusters.of(str(row.text("cluster"), " ", tp), [&](const std::string&) {
    const Cluster cluster = find_cluster(row.text("cluster"), 1);
    return tp < cluster.node.gpus ? part_of_node(cluster, tp) : cluster;
  });
  question.software =
      presets.software.of(row.text("software"), [](const std::string& name) { return find_software(name); });
  question.software.linear_precision = precision_of(row);
  question.software.fp8_cache = row.text("kv_dtype") == "fp8";
  Workload& workload = question.workload;
  workload.phase = Phase::decode;
  const double share = row.number("length_share");
  workload.cached = std::llround(share * row.number("prompt_tokens"));
  workload.new_tokens = std::llround(share * row.number("new_tokens"));
  workload.seq_len = workload.cached + workload.new_tokens;
  workload.global_batch = row.whole("requests");
  question.memory_width = measured_memory_width();
  question.aggregated = row.text("arrivals") == "together" ? Arrivals::together : Arrivals::spread;
  return question;
}

ParallelLayout layout_of(const CsvRow& row) {
  ParallelLayout layout;
  layout.tp = static_cast<int>(row.whole("tp"));
  layout.micro_batch = row.whole("requests");
  return layout;
}

std::string served_words(const CsvRow& row) {
  return str(row.text("model"), " ", row.text("cluster"), " ", row.text("software"), " ",
             row.text("linear_dtype"), " tp ", row.text("tp"), ", ", row.text("prompt_tokens"), " + ",
             row.text("new_tokens"), " tokens, ", row.text("requests"), " at once");
}

// The name of a grid: rows that differ in tp alone are alternatives to each other.
std::string group_of(const CsvRow& row) {
  std::string group;
  for (const char* column :
       {"model", "cluster", "software", "linear_dtype", "prompt_tokens", "new_tokens", "requests"})
    group += row.text(column) + " ";
  return group;
}

struct Served {
  double tpot_us = 0, ttft_us = 0;
  bool fits = true;
};

Served served(const CsvRow& row, Presets& presets) {
  const PlanQuestion question = question_of(row, presets);
  const ParallelLayout layout = layout_of(row);
  const Candidate candidate = Evaluator(question).evaluate(layout);
  return {candidate.step_us, candidate.ttft_us.value_or(0), candidate.likely_fits()};
}

template <class Fill>
ValidationTable served_table(Fill&& fill) {
  ValidationTable table{.cluster = "each row's cluster", .software = "trtllm, vllm, sglang"};
  Presets presets;
  for (const CsvRow& csv : validation_table(kServedTokens)) {
    ValidationRow row{.where = csv.where(), .what = served_words(csv)};
    row.in_sample = csv.text("sample") == "in";
    row.oddity = csv.text("oddity");
    const Served of_row = served(csv, presets);
    if (row.oddity.empty() && !of_row.fits) row.oddity = kWaits;
    if (fill(csv, of_row, row)) table.rows.push_back(std::move(row));
  }
  return table;
}

// How far apart two rows count that differ in their GPU, software or format, in doublings of a size: another
// GPU is as far as twice the length. Chosen. They only decide which published row is shown as the nearest.
constexpr double kOtherGpu = 1, kOtherSoftware = 1, kOtherFormat = 0.5;

double doublings(double a, double b) { return std::abs(std::log2(a / b)); }

double distance(const CsvRow& row, Presets& presets, const PlanQuestion& question,
                const ParallelLayout* layout) {
  const Transformer& model =
      presets.models.of(row.text("model"), [](const std::string& name) { return load_model(name).model; });
  const Cluster& cluster =
      presets.clusters.of(row.text("cluster"), [](const std::string& name) { return find_cluster(name, 1); });
  const auto parameters = [](const Transformer& of) {
    return static_cast<double>(parameter_counts(of).total);
  };
  const auto above_0 = [](std::int64_t count) {
    return static_cast<double>(std::max<std::int64_t>(1, count));
  };
  const Workload& asked = question.workload;
  const double share = row.number("length_share");
  double sum = doublings(parameters(model), parameters(question.model)) +
               doublings(share * row.number("prompt_tokens"), above_0(asked.cached)) +
               doublings(share * row.number("new_tokens"), above_0(asked.new_tokens));
  sum += cluster.gpu.name == question.cluster.gpu.name ? 0 : kOtherGpu;
  sum += row.text("software") == question.software.name ? 0 : kOtherSoftware;
  sum += precision_of(row) == question.software.linear_precision ? 0 : kOtherFormat;
  sum += (row.text("kv_dtype") == "fp8") == question.software.fp8_cache ? 0 : kOtherFormat;
  const std::int64_t replicas = layout == nullptr ? 1 : layout->dp();
  sum += doublings(row.number("requests"), above_0(asked.global_batch / replicas));
  return layout == nullptr ? sum : sum + doublings(row.number("tp"), layout->tp);
}

}  // namespace

ValidationTable served_tokens() {
  ValidationTable table = served_table([](const CsvRow& csv, const Served& predicted, ValidationRow& row) {
    row.measured = csv.number("tpot_ms") * kUsPerMs, row.predicted = predicted.tpot_us;
    row.grid = group_of(csv);
    return true;
  });
  table.in_sample_rule =
      "half of the groups, by a hash, set the host's time for a step and for a request in it; the others are "
      "scored";
  table.target_median = 0.15;
  table.target_origin = "stated beforehand for the time between tokens: 15 % in the median";
  return table;
}

// The time to the first token follows only if requests come together and are answered together. Otherwise it
// depends on how close after one another they come, which a client does not say.
ValidationTable served_prompts() {
  ValidationTable table = served_table([](const CsvRow& csv, const Served& predicted, ValidationRow& row) {
    if (csv.text("arrivals") != "together") return false;
    row.measured = csv.number("ttft_ms") * kUsPerMs, row.predicted = predicted.ttft_us;
    row.in_sample = false;
    return true;
  });
  table.software = "sglang";
  table.in_sample_rule = "nothing is set by a time to the first token";
  table.target_median = 0.15;
  table.target_origin = "as of served_tokens";
  table.miss_reason =
      "rows of one GPU waited for memory that was said to be free, and prompts that come together are read "
      "several in a step, "
      "which the steady state takes one by one";
  return table;
}

}  // namespace cp::sim::detail

namespace cp::sim {

std::optional<NearestMeasurement> nearest_served(const PlanQuestion& question, const ParallelLayout* layout) {
  using namespace detail;
  Presets presets;
  const std::vector<CsvRow> rows = validation_table(kServedTokens);
  const CsvRow* nearest = nullptr;
  double least = 0;
  for (const CsvRow& row : rows) {
    const double apart = distance(row, presets, question, layout);
    if (nearest == nullptr || apart < least) nearest = &row, least = apart;
  }
  if (nearest == nullptr) return std::nullopt;
  const Served of_row = served(*nearest, presets);
  NearestMeasurement found{str("aiconfigurator-core 0.12.0, silicon_sample.csv: ", nearest->text("version")),
                           served_words(*nearest), "ms between tokens", nearest->number("tpot_ms"),
                           of_row.tpot_us / 1e3};
  found.unscored = nearest->text("oddity");
  if (found.unscored.empty() && !of_row.fits) found.unscored = kWaits;
  return found;
}

}  // namespace cp::sim
