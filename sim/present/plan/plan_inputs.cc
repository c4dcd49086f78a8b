#include "sim/present/plan/plan_inputs.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/parallel_layout.h"
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

// ", window 128 in 18 of them, 3 of them without experts".
std::string kinds_text(const Transformer& model) {
  const std::vector<std::int64_t> layers = layers_of_kinds(model);
  // What queries see, and in how many layers; or what layers have in attention's place.
  std::vector<std::pair<std::string, std::int64_t>> seen;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerKind& kind = model.kinds[i];
    std::string text;
    if (const MixerFacts* facts = facts_of(kind.mixer); facts != nullptr)
      text = str(", ", facts->text(model));
    if (kind.mixer == Mixer::none) text = ", an MLP alone";
    if (!kind.has_mlp && kind.mixer == Mixer::attention) text = ", attention alone";
    if (kind.window) text += fmt::format(", window {}", human_count(*kind.window));
    if (kind.chunk) text += fmt::format(", chunks of {}", human_count(*kind.chunk));
    const auto is_same = [&](const auto& one) { return one.first == text; };
    if (std::none_of(seen.begin(), seen.end(), is_same)) seen.emplace_back(text, 0);
    std::find_if(seen.begin(), seen.end(), is_same)->second += layers[i];
  }
  std::string all;
  for (const auto& [text, count] : seen) {
    all += text;
    if (!text.empty() && count < model.layers) all += fmt::format(" in {} of them", count);
  }
  const ByParts<std::int64_t> of_parts = layers_of_parts(model, layers);
  if (model.experts && model.has(Mlp::dense))
    all += fmt::format(", {} of them without experts", count_of(of_parts, Mlp::dense));
  return all;
}

std::string model_text(const PlanQuestion& question) {
  const Transformer& model = question.model;
  const ParameterCounts counts = parameter_counts(model);
  std::string text = model_clause(question);
  if (model.experts) {
    text += fmt::format(" ({} active; {} experts, {} of them for a token{})", human_parameters(counts.active),
                        model.experts->count, model.experts->top_k,
                        model.experts->shared > 0 ? ", beside a shared one" : "");
  }
  text += fmt::format(", {} layers of {}, {} heads", model.layers, human_count(model.hidden), model.q_heads);
  if (model.latent) {
    text += fmt::format(" of {} (values of {}) from latent rows of {}", model.head_dim, model.v_head_dim(),
                        model.latent->kv_row());
  } else {
    text += fmt::format(" ({} kv) of {}", model.kv_heads, model.head_dim);
  }
  text += kinds_text(model);
  if (model.prediction_layers > 0)
    text += fmt::format(", and {} that predict{} further tokens", model.prediction_layers,
                        model.prediction_layers == 1 ? "s" : "");
  return text + (question.model_source.empty() ? "" : str("; ", question.model_source));
}

std::string plural(std::int64_t count, std::string_view what) {
  return str(human_count(count), " ", what, count == 1 ? "" : "s");
}

std::string workload_text(const PlanQuestion& question) {
  std::vector<std::string> clauses = workload_clauses(question);
  if (question.workload.phase == Phase::training)
    clauses.front() += str(" (", human_count(question.workload.tokens()), " tokens)");
  return join(clauses, ", ");
}

// Returns how the deciding field is known: it is the first of `fields` that the cluster has.
std::string origin(const Cluster& cluster, const std::vector<std::string>& fields) {
  for (const std::string& field : fields) {
    if (const sim::Source* source = cluster.source_of(field)) return to_string(source->provenance.origin);
  }
  return "unknown";
}

// Rates whose origins are alike stand together.
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

std::string model_clause(const PlanQuestion& question) {
  const ParameterCounts counts = parameter_counts(question.model);
  return fmt::format("{}: {} parameters", question.model.name, human_parameters(counts.total));
}

std::vector<std::string> workload_clauses(const PlanQuestion& question) {
  const Workload& w = question.workload;
  const std::string products = str("products ", linear_dtype_name(question));
  if (w.phase == Phase::training) {
    const std::int64_t documents = std::max<std::int64_t>(1, std::ssize(w.cu_seqlens) - 1);
    return {str("training: ", plural(w.global_batch, "sequence"), " of ", human_count(w.seq_len),
                " tokens a step", documents > 1 ? str(", of ", documents, " documents each") : ""),
            std::string(name(w.dtype)), products, to_string(w.optimizer),
            str("gradients ", name(w.gradient_dtype))};
  }
  std::vector<std::string> clauses = {
      str(name(w.phase), ": ", plural(w.global_batch, "request"), " at once")};
  if (w.phase == Phase::prefill) {
    const std::string of = w.cached > 0 ? str(" of ", human_count(w.seq_len)) : "";
    clauses.push_back(str(human_count(w.seq_len - w.cached), of, " tokens to read"));
  } else {
    clauses.push_back(str(plural(w.new_tokens, "new token"), " after ", human_count(w.cached), " cached"));
  }
  clauses.insert(clauses.end(), {std::string(name(w.dtype)), products});
  if (fp8_attention(question)) clauses.emplace_back("attention fp8");
  clauses.push_back(str("KV cache ", cache_dtype_name(question)));
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!facts->is_described(question.model)) continue;
    const std::int64_t layers =
        count_of(layers_of_parts(question.model, layers_of_kinds(question.model)), facts->mixer);
    clauses.push_back(str(facts->cached_name, ", ",
                          human_bytes(layers * facts->request_bytes(question.model, w.dtype)), " a request"));
  }
  if (w.phase == Phase::prefill) return clauses;
  if (question.aggregated)
    clauses.push_back(str("prompts are read on the same GPUs, of requests that come ",
                          *question.aggregated == sim::Arrivals::spread ? "spread" : "together"));
  if (question.max_ttft_ms)
    clauses.push_back(str("first token within ", human_us(1e3 * *question.max_ttft_ms)));
  return clauses;
}

std::vector<std::string> cluster_clauses(const PlanQuestion& question) {
  const Cluster& cluster = question.cluster;
  return {str(plural(cluster.nodes, "node"), " of ", cluster.name, ": ", human_count(cluster.num_gpus()), " ",
              cluster.gpu.name),
          fmt::format("{:.1f} GiB of each to use{}", static_cast<double>(usable_bytes(question)) / kGiB,
                      question.max_memory_gib ? " (--max-memory)" : "")};
}

std::vector<std::pair<std::string, std::string>> plan_inputs(const PlanQuestion& question) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const std::string& warning : question.warnings) lines.emplace_back("warning", warning);
  lines.insert(lines.end(), {{"model", model_text(question)},
                             {"workload", workload_text(question)},
                             {"cluster", join(cluster_clauses(question), ", ")},
                             {"rates", rates_text(question.cluster)},
                             {"software", software_text(question)}});
  if (const std::string fixed = fixed_text(question.fixed); !fixed.empty())
    lines.emplace_back("fixed", fixed);
  if (!question.assumptions.empty()) lines.emplace_back("assumed", join(question.assumptions, "; "));
  return lines;
}

}  // namespace cp::sim
