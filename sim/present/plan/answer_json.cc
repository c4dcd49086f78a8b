#include "sim/present/plan/answer_json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shared/context_parallel/strategy.h"
#include "sim/cost/cluster/cluster_fields.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/software_fields.h"
#include "sim/present/plan/headline.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

template <class Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// ---- the question ----

ordered_json model_json(const PlanQuestion& question) {
  const Transformer& m = question.model;
  const ParameterCounts counts = parameter_counts(m);
  ordered_json experts;
  if (m.experts) {
    experts = {{"count", m.experts->count},
               {"top_k", m.experts->top_k},
               {"intermediate", m.experts->intermediate},
               {"shared", m.experts->shared}};
  }
  ordered_json recurrence;
  if (m.recurrence) {
    const Recurrence& r = *m.recurrence;
    recurrence = {{"rule", cp::name(r.rule)},
                  {"key_heads", r.key_heads},
                  {"value_heads", r.value_heads},
                  {"key_dim", r.key_dim},
                  {"value_dim", r.value_dim},
                  {"convolution", r.convolution},
                  {"convolution_bias", r.convolution_bias}};
  }
  ordered_json convolution;
  if (m.convolution) convolution = {{"taps", m.convolution->taps}, {"bias", m.convolution->bias}};
  ordered_json kinds = ordered_json::array();
  const std::vector<std::int64_t> layers = layers_of_kinds(m);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    kinds.push_back({{"layers", layers[i]},
                     {"window", or_null(m.kinds[i].window)},
                     {"chunk", or_null(m.kinds[i].chunk)},
                     {"mixer", name(m.kinds[i].mixer)},
                     {"mlp", name(m.parts_of(m.kinds[i]).mlp)}});
  }
  return {{"name", m.name},
          {"source", question.model_source},
          {"hidden", m.hidden},
          {"layers", m.layers},
          {"q_heads", m.q_heads},
          {"kv_heads", m.kv_heads},
          {"head_dim", m.head_dim},
          {"intermediate", m.intermediate},
          {"vocab", m.vocab},
          {"max_seq_len", m.max_seq_len},
          {"tied_embeddings", m.tied_embeddings},
          {"qkv_bias", m.qkv_bias},
          {"qk_norm", m.qk_norm},
          {"qk_norm_of_all_heads", m.qk_norm_of_all_heads},
          {"norms_before", m.norms_before},
          {"norms_behind", m.norms_behind},
          {"parallel_blocks", m.parallel_blocks},
          {"sinks", m.sinks},
          {"softcap", m.softcap == 0 ? ordered_json() : ordered_json(m.softcap)},
          {"gated_attention", m.gated_attention},
          {"gated_mlp", m.gated_mlp},
          {"latent", m.latent ? ordered_json{{"q_rank", m.latent->q_rank},
                                             {"kv_rank", m.latent->kv_rank},
                                             {"rope_dim", m.latent->rope_dim},
                                             {"v_head_dim", m.latent->v_head_dim}}
                              : ordered_json()},
          {"recurrence", recurrence},
          {"convolution", convolution},
          {"window", m.kinds.size() == 1 ? or_null(m.kinds.front().window) : ordered_json()},
          {"layer_kinds", kinds},
          {"experts", experts},
          {"prediction_layers", m.prediction_layers},
          {"parameters", counts.total},
          {"active_parameters", counts.active}};
}

ordered_json workload_json(const PlanQuestion& question) {
  const Workload& w = question.workload;
  return {{"phase", name(w.phase)},
          {"seq_len", w.seq_len},
          {"global_batch", w.global_batch},
          {"cached", w.cached},
          {"new_tokens", w.new_tokens},
          {"dtype", name(w.dtype)},
          {"linear_dtype", linear_dtype_name(question)},
          {"attention_dtype", fp8_attention(question) ? "fp8" : name(w.dtype)},
          {"kv_dtype", cache_dtype_name(question)},
          {"aggregated", !question.aggregated                       ? ordered_json()
                         : *question.aggregated == Arrivals::spread ? ordered_json("spread")
                                                                    : ordered_json("together")},
          {"gradient_dtype", name(w.gradient_dtype)},
          {"optimizer", to_string(w.optimizer)},
          {"expert_imbalance", w.expert_imbalance},
          {"attention_dropout", w.attention_dropout},
          {"cu_seqlens", w.cu_seqlens}};
}

ordered_json value_json(std::string_view field, ordered_json value, const Source* source) {
  return {{"field", field},
          {"value", std::move(value)},
          {"origin", source ? ordered_json(to_string(source->provenance.origin)) : ordered_json()},
          {"source", source ? ordered_json(source->provenance.source) : ordered_json()}};
}

ordered_json points_json(const Curve& curve) {
  ordered_json points = ordered_json::array();
  for (const CurvePoint& point : curve.points()) points.push_back({point.x, point.y});
  return points;
}

ordered_json cluster_json(const Cluster& cluster) {
  ordered_json values = ordered_json::array();
  for_each_number(cluster, [&](std::string_view field, auto value, const Range&, Need) {
    values.push_back(value_json(field, value, cluster.source_of(field)));
  });
  for_each_curve(cluster, [&](std::string_view field, const Curve& curve) {
    if (!curve.empty()) values.push_back(value_json(field, points_json(curve), cluster.source_of(field)));
  });
  if (!cluster.rates.empty())
    values.push_back(value_json("rates", cluster.rates.gpu, cluster.source_of("rates")));
  return {{"name", cluster.name},
          {"nodes", cluster.nodes},
          {"gpus", cluster.num_gpus()},
          {"gpu", cluster.gpu.name},
          {"values", std::move(values)}};
}

ordered_json software_json(const SoftwareProfile& software) {
  ordered_json values = ordered_json::array();
  const auto add = [&](std::string_view field, ordered_json value) {
    values.push_back(value_json(field, std::move(value), find_source(software.sources, field)));
  };
  const auto add_number = [&](std::string_view field, double value, const Range&) { add(field, value); };
  for_each_parameter(software, add_number);
  for_each_number_of_facts(software, add_number);
  for_each_fact(software, [&](std::string_view field, const auto& value) { add(field, value); });
  for_each_optional_number(software, add_number);
  for_each_optional_fact(software, [&](std::string_view field, const auto& value) { add(field, value); });
  add("sharding_group", to_string(software.sharding_group));
  return {{"name", software.name}, {"values", std::move(values)}};
}

ordered_json fixed_json(const Fixed& fixed) {
  ordered_json out = ordered_json::object();
  const auto add = [&](const char* key, const auto& value) {
    if (value) out[key] = *value;
  };
  const auto add_text = [&](const char* key, const auto& value) {
    if (value) out[key] = to_string(*value);
  };
  add("dp_replicate", fixed.dp_replicate);
  add("dp_shard", fixed.dp_shard);
  add("cp", fixed.cp);
  add("tp", fixed.tp);
  add("pp", fixed.pp);
  add("ep", fixed.ep);
  add("virtual_stages", fixed.virtual_stages);
  add("strategy", fixed.strategy);
  add_text("balance", fixed.balance);
  add("ulysses_degree", fixed.ulysses_degree);
  add("inner_ring", fixed.inner_ring);
  if (fixed.ulysses_inner) out["axis_order"] = *fixed.ulysses_inner ? "ulysses_inner" : "ring_inner";
  if (fixed.rotation)
    out["rotation"] = *fixed.rotation == Strategy::Rotation::all_gather ? "all_gather" : "exchange";
  add("slots", fixed.slots);
  add("pieces", fixed.pieces);
  if (fixed.merges) out["merges"] = cp::name(*fixed.merges);
  if (fixed.window_core)
    out["window_strategy"] = *fixed.window_core ? cp::name(**fixed.window_core) : kSameCore;
  const auto add_own = [&](const char* key, const std::optional<std::optional<Balance>>& own) {
    if (own) out[key] = *own ? to_string(**own) : std::string(kSameCore);
  };
  add_own("window_balance", fixed.window_balance);
  if (fixed.scan) out["scan"] = cp::name(*fixed.scan);
  add_own("scan_balance", fixed.scan_balance);
  if (fixed.keys) out["keys"] = cp::name(*fixed.keys);
  add_text("sharding", fixed.sharding);
  add_text("order", fixed.order);
  add("micro_batch", fixed.micro_batch);
  add_text("recompute", fixed.recompute);
  add("loss_chunks", fixed.loss_chunks);
  add("mlp_chunks", fixed.mlp_chunks);
  add("zero", fixed.zero);
  if (fixed.reshard) out["reshard"] = reshard_text(*fixed.reshard);
  if (fixed.sync_once) out["sync"] = sync_text(*fixed.sync_once);
  add("prefetch", fixed.prefetch), add("bucket", fixed.bucket), add("threshold", fixed.threshold);
  if (fixed.sequence_parallel) out["sequence_parallel"] = *fixed.sequence_parallel ? "yes" : "no";
  if (fixed.host_activations) out["activations"] = *fixed.host_activations ? "host" : "gpu";
  return out;
}

ordered_json question_json(const PlanQuestion& question) {
  ordered_json baseline;
  if (question.baseline) baseline = question.baseline->text;
  std::vector<std::string_view> frameworks;
  for (const Framework framework : question.frameworks) frameworks.push_back(name(framework));
  return {{"model", model_json(question)},
          {"workload", workload_json(question)},
          {"cluster", cluster_json(question.cluster)},
          {"software", software_json(question.software)},
          {"frameworks", frameworks},
          {"fixed", fixed_json(question.fixed)},
          {"memory_width",
           {{"low", question.memory_width.low},
            {"high", question.memory_width.high},
            {"rows", question.memory_width.rows}}},
          {"max_memory_gib", or_null(question.max_memory_gib)},
          {"max_ttft_ms", or_null(question.max_ttft_ms)},
          {"baseline", std::move(baseline)},
          {"top", question.top},
          {"assumptions", question.assumptions}};
}

// ---- candidates ----

ordered_json layout_json(const ParallelLayout& l) {
  const bool split = l.cp > 1;
  return {{"gpus", l.world()},
          {"dp_replicate", l.dp_replicate},
          {"dp_shard", l.dp_shard},
          {"cp", l.cp},
          {"tp", l.tp},
          {"pp", l.pp},
          {"ep", l.ep},
          {"virtual_stages", l.virtual_stages},
          {"strategy", split ? ordered_json(to_string(l.strategy, l.cp)) : ordered_json()},
          {"core", split ? ordered_json(cp::name(l.strategy.core)) : ordered_json()},
          {"balance", split ? ordered_json(to_string(l.strategy.balance)) : ordered_json()},
          {"ulysses_degree", l.strategy.ulysses_degree},
          {"inner_ring", l.strategy.inner_ring},
          {"slots", l.strategy.slots},
          {"pieces", l.strategy.pieces},
          {"merges", cp::name(l.strategy.merges)},
          {"window_strategy", l.window_core ? ordered_json(cp::name(*l.window_core)) : ordered_json()},
          {"window_balance", l.window_balance ? ordered_json(to_string(*l.window_balance)) : ordered_json()},
          {"scan", cp::name(l.scan)},
          {"scan_balance", l.scan_balance ? ordered_json(to_string(*l.scan_balance)) : ordered_json()},
          {"keys", cp::name(l.keys)},
          {"sharding", to_string(l.sharding)},
          {"order", to_string(l.order)},
          {"micro_batch", l.micro_batch},
          {"recompute", to_string(l.recompute)},
          {"loss_chunks", l.loss_chunks},
          {"mlp_chunks", l.mlp_chunks},
          {"zero", l.zero_stage()},
          {"sequence_parallel", l.sequence_parallel},
          {"activations", l.host_activations ? "host" : "gpu"}};
}

ordered_json candidate_json(const Candidate& c) {
  ordered_json parts = ordered_json::object(), memory = ordered_json::object();
  for (const auto& [part, us] : c.parts) parts[std::string(name(part))] = us;
  for (const auto& [term, bytes] : terms(c.memory)) memory[std::string(term)] = bytes;
  memory["allocated"] = c.memory.allocated();
  memory["reserved"] = c.memory.reserved();
  memory["used"] = c.memory.used();
  memory["counted"] = c.memory.used() - c.memory.context;
  return {{"layout", to_string(c.layout)},
          {"layout_fields", layout_json(c.layout)},
          {"rank", c.rank},
          {"step_us", c.step_us},
          {"low_us", c.low_us},
          {"high_us", c.high_us},
          {"chance", c.chance},
          {"regret_us", c.regret_us},
          {"ttft_us", or_null(c.ttft_us)},
          {"tokens_per_s_per_gpu", c.tokens_per_s_per_gpu},
          {"mfu", c.mfu},
          {"exposed_us", c.exposed_us},
          {"bound", bound_text(c.bound)},
          {"parts_us", std::move(parts)},
          {"memory_bytes", std::move(memory)},
          {"usable_bytes", c.usable_bytes},
          {"left_bytes", c.left_bytes()},
          {"memory_low_bytes", c.memory_low_bytes},
          {"memory_high_bytes", c.memory_high_bytes},
          {"fits", !c.fits()         ? "no"
                   : c.likely_fits() ? "likely"
                                     : "unlikely"},
          {"nvlink_utilisation", c.nvlink_utilisation},
          {"nic_utilisation", c.nic_utilisation}};
}

ordered_json candidates_json(const std::vector<Candidate>& candidates) {
  ordered_json out = ordered_json::array();
  for (const Candidate& candidate : candidates) out.push_back(candidate_json(candidate));
  return out;
}

ordered_json classes_json(const std::vector<ClassBest>& classes) {
  ordered_json out = ordered_json::array();
  for (const ClassBest& best : classes) {
    out.push_back({{"name", best.name},
                   {"candidate", best.candidate ? candidate_json(*best.candidate) : ordered_json()},
                   {"why", best.why},
                   {"found", best.found}});
  }
  return out;
}

// ---- the rest ----

ordered_json counts_json(const SearchCounts& counts) {
  ordered_json rejected = ordered_json::array();
  for (const auto& [reason, count] : counts.rejected) {
    rejected.push_back({{"reason", reason}, {"count", count}});
  }
  return {{"enumerated", counts.enumerated},       {"rejected", std::move(rejected)},
          {"out_of_memory", counts.out_of_memory}, {"pruned", counts.pruned},
          {"replayed", counts.replayed},           {"seconds", counts.seconds}};
}

ordered_json layouts_json(const std::vector<ParallelLayout>& layouts) {
  ordered_json out = ordered_json::array();
  for (const ParallelLayout& layout : layouts) out.push_back(to_string(layout));
  return out;
}

ordered_json worths_json(const std::vector<Worth>& worths) {
  ordered_json out = ordered_json::array();
  for (const Worth& worth : worths)
    out.push_back({{"rate", std::string(name(worth.rate))}, {"us", worth.us}});
  return out;
}

ordered_json measurement_json(const NearestMeasurement& row) {
  return {{"source", row.source},     {"what", row.what},           {"metric", row.metric},
          {"measured", row.measured}, {"predicted", row.predicted}, {"error", row.error()},
          {"unscored", row.unscored}};
}

// Numbers texts, and keeps each of them once.
class Names {
 public:
  int index(const std::string& text) {
    const auto [place, added] = indices_.try_emplace(text, static_cast<int>(indices_.size()));
    if (added) texts_.push_back(text);
    return place->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, int> indices_;
  std::vector<std::string> texts_;
};

ordered_json timeline_json(const std::vector<ReportSpan>& timeline) {
  Names labels, kinds;
  std::vector<std::pair<int, std::string>> tracks;  // in order of rank, then of their first span
  std::map<std::pair<int, std::string>, std::vector<const ReportSpan*>> spans_of;
  for (const ReportSpan& span : timeline) {
    auto& spans = spans_of[{span.rank, span.stream}];
    if (spans.empty()) tracks.emplace_back(span.rank, span.stream);
    spans.push_back(&span);
  }
  std::stable_sort(tracks.begin(), tracks.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto rounded = [](double us) { return std::round(us * 1e3) / 1e3; };
  ordered_json tracks_json = ordered_json::array();
  for (const auto& track : tracks) {
    auto& spans = spans_of[track];
    std::stable_sort(spans.begin(), spans.end(),
                     [](const auto* a, const auto* b) { return a->begin_us < b->begin_us; });
    ordered_json rows = ordered_json::array();
    for (const ReportSpan* span : spans) {
      rows.push_back({rounded(span->begin_us), rounded(span->end_us), labels.index(span->label),
                      kinds.index(std::string(name(span->kind)))});
    }
    tracks_json.push_back({{"rank", track.first}, {"stream", track.second}, {"spans", std::move(rows)}});
  }
  return {{"labels", labels.texts()}, {"kinds", kinds.texts()}, {"tracks", std::move(tracks_json)}};
}

}  // namespace

std::string to_json(const PlanAnswer& answer, int indent) {
  ordered_json published = ordered_json::array();
  for (const NearestMeasurement& row : answer.published) published.push_back(measurement_json(row));
  const ordered_json json = {
      {"schema", "cpsim.plan/1"},
      {"summary", headline(answer)},
      {"question", question_json(answer.question)},
      {"best", candidates_json(answer.best)},
      {"classes", classes_json(answer.classes)},
      {"all", candidates_json(answer.all)},
      {"worth_trying", layouts_json(answer.worth_trying)},
      {"worths", worths_json(answer.worths)},
      {"strategies_worth_us", answer.strategies_worth_us},
      {"counts", counts_json(answer.counts)},
      {"nearest", answer.nearest ? measurement_json(*answer.nearest) : ordered_json()},
      {"published", std::move(published)},
      {"timeline", timeline_json(answer.timeline)},
      {"warnings", answer.warnings},
      {"next_command", answer.next_command},
      {"run_command", answer.run_command},
  };
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace cp::sim
