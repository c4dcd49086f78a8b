#include "sim/accuracy/validate/training_steps.h"

#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/accuracy/validate/step_columns.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/cost/presets/csv.h"
#include "sim/planner/models/read_model.h"

namespace cp::sim {
namespace {

int small(const CsvRow& row, std::string_view column) {
  return static_cast<int>(std::lround(row.number(column)));
}
// Each preset is read once for all rows.
class Presets {
 public:
  Cluster cluster(const CsvRow& row) {
    const std::string& name = row.text("cluster");
    Cluster cluster = read(clusters_, name, [&] { return find_cluster(name, 1); });
    const int gpus = small(row, "gpus");
    if (gpus < cluster.node.gpus) return part_of_node(std::move(cluster), gpus);
    cluster.nodes = gpus / cluster.node.gpus;
    validate_cluster(cluster);
    return cluster;
  }
  const Transformer& model(const std::string& name) {
    return read(models_, name, [&] { return load_model(name).model; });
  }
  const SoftwareProfile& software(const std::string& name) {
    return read(software_, name, [&] { return find_software(name); });
  }

 private:
  template <class Value, class Read>
  static const Value& read(std::map<std::string, Value>& known, const std::string& name, Read&& read) {
    const auto found = known.find(name);
    return found != known.end() ? found->second : known.emplace(name, read()).first->second;
  }

  std::map<std::string, Cluster> clusters_;
  std::map<std::string, Transformer> models_;
  std::map<std::string, SoftwareProfile> software_;
};

PlanQuestion question_of(const CsvRow& row, Presets& presets) {
  PlanQuestion question;
  question.model = presets.model(row.text("model"));
  question.cluster = presets.cluster(row);
  question.software = presets.software(row.text("software"));
  // The attention kernels of its source's own settings, where these are not the implementation's choice of
  // today.
  const std::string& kernel = row.text("kernels");
  if (!kernel.empty())
    question.software = with_attention_kernel(std::move(question.software), question.cluster, kernel);
  question.software.linear_precision = products_of(row);
  question.workload.phase = Phase::training;
  question.workload.dtype = DType::bf16;
  question.workload.seq_len = row.whole("seq_len");
  question.workload.global_batch = row.whole("global_batch");
  return question;
}

ParallelLayout layout_of(const CsvRow& row, const SoftwareProfile& software) {
  ParallelLayout layout;
  layout.dp_shard = small(row, "dp"), layout.tp = small(row, "tp"), layout.cp = small(row, "cp");
  layout.pp = small(row, "pp"), layout.virtual_stages = small(row, "virtual_stages");
  layout.micro_batch = row.whole("micro_batch");
  layout.recompute = recompute_of(row);
  layout.strategy.balance = parse_balance(software.balance);
  layout.strategy.send_empty = software.send_empty;
  layout.strategy.input_dtype_gradients = !software.dkv_f32;
  return layout;
}

double tokens_per_s_per_gpu(const CsvRow& row, const PlanQuestion& question) {
  const std::string& metric = row.text("metric");
  if (metric == "tokens_per_second_per_gpu") return row.number("value");
  if (metric == "model_tflops_per_gpu") return row.number("value") * 1e12 / flops_counted_by_nemo(question);
  throw InvalidInput(str(row.where(), ": unknown metric '", metric,
                         "'; use tokens_per_second_per_gpu or model_tflops_per_gpu"));
}

std::string oddity_of(const CsvRow& row) {
  if (const std::string& said = row.text("oddity"); !said.empty()) return said;
  return row.text("balance") == "unstated" ? "the source does not say how the sequence is balanced" : "";
}

}  // namespace

double flops_counted_by_nemo(const PlanQuestion& question) {
  const Transformer& model = question.model;
  const auto real = [](std::int64_t number) { return static_cast<double>(number); };
  const double hidden = real(model.hidden), kv = real(model.kv_heads) / real(model.q_heads);
  // Flops of a layer over hidden^2. A weight costs 2 flops in each of three passes (forward, and two
  // backward): 12 are of q and o, 12 x kv of k and v, 18 x of the three products of the MLP, and the last
  // term is of the two products of attention with all pairs.
  const double of_layer =
      12 + 12 * kv + 18 * real(model.intermediate) / hidden + 12 * real(question.workload.seq_len) / hidden;
  return hidden * (real(model.layers) * hidden * of_layer + 6 * real(model.vocab));
}

std::vector<PublishedStep> training_steps() {
  std::vector<PublishedStep> steps;
  Presets presets;
  for (const CsvRow& row : validation_table("training_steps")) {
    PublishedStep step{row.where(), row.text("source"), "", question_of(row, presets), {}, {},
                       0,           oddity_of(row)};
    step.metric = PublishedStep::Metric::tokens_per_s_per_gpu;
    step.measured = tokens_per_s_per_gpu(row, step.question);
    step.layout = layout_of(row, step.question.software);
    const auto add = [&] {
      step.what = str(row.text("cluster"), ": ", words_of(step));
      steps.push_back(step);
    };
    add();
    if (row.text("balance") != "unstated") continue;
    step.layout.strategy.balance.kind = Balance::Kind::contiguous;
    add();
  }
  return steps;
}

}  // namespace cp::sim
