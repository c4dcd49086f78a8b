#include "sim/present/plan/plan_inputs.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/scenario/plan_fixed.h"

namespace cp::sim {
namespace {

using sim::Cluster;
using sim::PlanQuestion;

// "8.03 B", "405 B", "124 M".
std::string human_parameters(std::int64_t count) {
  const double value = static_cast<double>(count);
  return value >= 1e12  ? fmt::format("{:.3g} T", value / 1e12)
         : value >= 1e9 ? fmt::format("{:.3g} B", value / 1e9)
                        : fmt::format("{:.3g} M", value / 1e6);
}

std::string model_text(const PlanQuestion& question) {
  const Transformer& model = question.model;
  const ParameterCounts counts = parameter_counts(model);
  std::string text = fmt::format("{}: {} parameters", model.name, human_parameters(counts.total));
  if (model.experts) {
    text += fmt::format(" ({} active; {} experts, {} of them for a token)", human_parameters(counts.active),
                        model.experts->count, model.experts->top_k);
  }
  text += fmt::format(", {} layers of {}, {} heads ({} kv) of {}", model.layers, human_count(model.hidden),
                      model.q_heads, model.kv_heads, model.head_dim);
  if (model.window) text += fmt::format(", window {}", human_count(*model.window));
  return text + (question.model_source.empty() ? "" : str("; ", question.model_source));
}

std::string plural(std::int64_t count, std::string_view what) {
  return str(human_count(count), " ", what, count == 1 ? "" : "s");
}

std::string workload_text(const PlanQuestion& question) {
  const Workload& w = question.workload;
  if (w.phase == Phase::training) {
    return fmt::format("training: {} of {} tokens a step ({} tokens), {}, products {}, {}, gradients {}",
                       plural(w.global_batch, "sequence"), human_count(w.seq_len), human_count(w.tokens()),
                       name(w.dtype), linear_dtype_name(question), to_string(w.optimizer),
                       name(w.gradient_dtype));
  }
  const std::string requests = str(plural(w.global_batch, "request"), " at once");
  const std::string dtypes =
      str(name(w.dtype), ", products ", linear_dtype_name(question),
          fp8_attention(question) ? ", attention fp8" : "", ", KV cache ", cache_dtype_name(question));
  if (w.phase == Phase::prefill) {
    const std::string of = w.cached > 0 ? str(" of ", human_count(w.seq_len)) : "";
    return fmt::format("prefill: {}, {}{} tokens to read, {}", requests, human_count(w.seq_len - w.cached),
                       of, dtypes);
  }
  std::string text = fmt::format("decode: {}, {} after {} cached, {}", requests,
                                 plural(w.new_tokens, "new token"), human_count(w.cached), dtypes);
  if (question.aggregated)
    text += str(", prompts are read on the same GPUs, of requests that come ",
                *question.aggregated == sim::Arrivals::spread ? "spread" : "together");
  if (question.max_ttft_ms)
    text += fmt::format(", first token within {}", human_us(1e3 * *question.max_ttft_ms));
  return text;
}

std::string cluster_text(const PlanQuestion& question) {
  const Cluster& cluster = question.cluster;
  const int gpus = cluster.num_gpus();
  const double usable = static_cast<double>(usable_bytes(question)) / (1024.0 * 1024 * 1024);
  return fmt::format("{} of {}: {} {}, {:.1f} GiB of each to use{}", plural(cluster.nodes, "node"),
                     cluster.name, human_count(gpus), cluster.gpu.name, usable,
                     question.max_memory_gib ? " (--max-memory)" : "");
}

// How the field that counts is known: the first of those that the cluster has.
std::string origin(const Cluster& cluster, const std::vector<std::string>& fields) {
  for (const std::string& field : fields) {
    if (const sim::Source* source = cluster.source_of(field)) return to_string(source->provenance.origin);
  }
  return "unknown";
}

// Rates that are known alike stand together.
std::string rates_text(const Cluster& cluster) {
  std::vector<std::pair<std::string, std::string>> rates = {
      {"attention", origin(cluster, {"attention[0].tflops", "rates"})},
      {"products", origin(cluster, {"matmul_efficiency", "rates"})},
      {"memory", origin(cluster, {"memory_efficiency"})}};
  if (!cluster.collectives.empty())
    rates.emplace_back("collectives", origin(cluster, {"collectives[0].time_us"}));
  if (cluster.node.nvlink_domain > 1)
    rates.emplace_back("NVLink", origin(cluster, {"transfer.intra_node", "node.nvlink_gbps"}));
  if (cluster.nodes > 1)
    rates.emplace_back("network", origin(cluster, {"transfer.inter_node", "network.nic_gbps"}));
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const auto& [rate, how] : rates) {
    const auto known = std::find_if(groups.begin(), groups.end(),
                                    [&, &how = how](const auto& group) { return group.first == how; });
    if (known == groups.end()) {
      groups.push_back({how, {rate}});
    } else {
      known->second.push_back(rate);
    }
  }
  std::vector<std::string> words;
  for (const auto& [how, names] : groups) words.push_back(str(join(names, ", "), " ", how));
  return join(words, "; ");
}

std::string software_text(const PlanQuestion& question) {
  const sim::SoftwareProfile& software = question.software;
  std::int64_t known = 0;
  const std::vector<std::string> free = {"forward_progress", "backward_progress", "merge_passes",
                                         "pack_passes", "kernel_issue_us"};
  for (const sim::Source& source : software.sources) {
    if (std::find(free.begin(), free.end(), source.field) == free.end()) continue;
    if (is_first_hand(source.provenance.origin)) ++known;
  }
  std::vector<std::string> frameworks;
  for (const sim::Framework framework : question.frameworks) {
    frameworks.push_back(str(sim::facts(framework).title, " ", sim::facts(framework).version));
  }
  return str(software.name,
             known == 0 ? ": overlap and overheads are assumed"
                        : str(": ", known, " of ", free.size(), " numbers measured"),
             frameworks.empty() ? "" : str("; layouts that ", join(frameworks, " and "), " can say"));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> plan_inputs(const PlanQuestion& question) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const std::string& warning : question.warnings) lines.emplace_back("warning", warning);
  lines.insert(lines.end(), {{"model", model_text(question)},
                             {"workload", workload_text(question)},
                             {"cluster", cluster_text(question)},
                             {"rates", rates_text(question.cluster)},
                             {"software", software_text(question)}});
  if (const std::string fixed = fixed_text(question.fixed); !fixed.empty())
    lines.emplace_back("fixed", fixed);
  if (!question.assumptions.empty()) lines.emplace_back("assumed", join(question.assumptions, "; "));
  return lines;
}

}  // namespace cp::sim
