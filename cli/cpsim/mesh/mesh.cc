// cpsim mesh: which mesh the degrees of a parallel run make, and who is in which of its groups.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/mesh/named_groups.h"
#include "shared/mesh/parallel_dims.h"
#include "shared/transformer/parallel_layout.h"
#include "sim/planner/models/read_model.h"
#include "sim/present/table.h"
#include "sim/scenario/parallel_dims_fields.h"

namespace cp::cli {
namespace {

using Job = proto::ParallelDims;
using Json = nlohmann::ordered_json;

struct Flags {
  ScenarioFlags<Job> job;
  std::string model;
  std::optional<std::int64_t> seq_len;
  std::optional<int> rank;
  bool strict = false, json = false;
};

Job job_of(const Flags& flags) {
  Job job;
  if (!flags.job.scenario.empty()) job = read_scenario_of("mesh", flags.job.scenario).mesh();
  return flags.job.apply_to(std::move(job));
}

ModelDims model_dims(const Transformer& model) {
  ModelDims dims{model.q_heads, model.kv_heads, std::nullopt};
  if (model.experts) dims.num_experts = model.experts->count;
  return dims;
}

// The layout of the degrees, as --layout and --fix take it, or why there is none.
struct LayoutWords {
  std::string layout, why_not;
};
LayoutWords layout_words(const ParallelDims& dims) {
  try {
    return {to_string(layout_of(dims)), ""};
  } catch (const InvalidInput& error) {
    return {"", error.what()};
  }
}

// "dp_replicate x dp_shard" of an alias; else whose axis it is.
std::string made_of(const NamedGroups& named) {
  if (!named.axes.empty()) return join(named.axes, " x ");
  return named.of_experts ? "experts" : "axis";
}

// The groups that are shown: all, or that of one rank.
std::vector<std::vector<Rank>> shown(const NamedGroups& named, const Flags& flags) {
  if (flags.rank) return {named.of(*flags.rank)};
  return named.groups;
}

std::string group_text(const std::vector<Rank>& ranks) {
  // Chosen: a line shows what kind of groups they are; --json has all ranks.
  constexpr std::size_t kMost = 8;
  std::vector<std::string> words;
  for (const Rank rank : ranks) {
    if (words.size() == kMost) break;
    words.push_back(str(rank));
  }
  if (ranks.size() > kMost) words.back() = str("...,", ranks.back());
  return str("[", join(words), "]");
}

std::string groups_text(const std::vector<std::vector<Rank>>& groups) {
  constexpr std::size_t kMost = 4;  // chosen, as above
  std::vector<std::string> words;
  for (const std::vector<Rank>& group : groups) {
    if (words.size() == kMost) break;
    words.push_back(group_text(group));
  }
  if (groups.size() > kMost) words.push_back(str("and ", groups.size() - kMost, " more"));
  return join(words, " ");
}

std::string text_of(const ParallelDims& dims, const Flags& flags) {
  const LayoutWords layout = layout_words(dims);
  std::string text = str(dims.summary(), "\n\nmesh        ", dims.build_mesh().to_string(), "\n");
  text += layout.layout.empty() ? str("no layout   ", layout.why_not, "\n")
                                : str("layout      ", layout.layout, "\n");
  if (flags.rank) text += str("rank        ", *flags.rank, "\n");
  sim::Table table({{"name", sim::Align::left},
                    {"size", sim::Align::right},
                    {"of", sim::Align::left},
                    {flags.rank ? "its group" : "groups", sim::Align::left}});
  for (const NamedGroups& named : named_groups(dims))
    table.add_row({named.name, str(named.size()), made_of(named), groups_text(shown(named, flags))});
  return text + "\n" + table.text();
}

std::string json_of(const ParallelDims& dims, const Flags& flags) {
  const Mesh mesh = dims.build_mesh();
  const LayoutWords layout = layout_words(dims);
  Json axes = Json::array(), groups = Json::array();
  for (const MeshAxis& axis : mesh.axes()) axes.push_back({{"name", axis.name}, {"size", axis.size}});
  for (const NamedGroups& named : named_groups(dims))
    groups.push_back({{"name", named.name},
                      {"size", named.size()},
                      {"axes", named.axes},
                      {"of_experts", named.of_experts},
                      {"groups", shown(named, flags)}});
  Json json = {{"schema", "cpsim.mesh/1"},
               {"summary", dims.summary()},
               {"world_size", dims.world_size()},
               {"dp_replicate", dims.dp_replicate()},
               {"dp_shard", dims.dp_shard()},
               {"cp", dims.cp()},
               {"tp", dims.tp()},
               {"pp", dims.pp()},
               {"ep", dims.ep()},
               {"etp", dims.etp()},
               {"ulysses_degree", dims.ulysses_degree()},
               {"expert_rule", name(dims.expert_rule())},
               {"dp_size", dims.dp_size()},
               {"non_dp_size", dims.non_dp_size()},
               {"efsdp_size", dims.efsdp_size()},
               {"seq_len_divisor", dims.seq_len_divisor()},
               {"mesh", mesh.to_string()},
               {"axes", axes}};
  json["layout"] = layout.layout.empty() ? Json(nullptr) : Json(layout.layout);
  if (!layout.why_not.empty()) json["no_layout"] = layout.why_not;
  if (flags.rank) json["rank"] = *flags.rank;
  json["groups"] = groups;
  return json.dump(2) + "\n";
}

int run(const Flags& flags) {
  const Job job = job_of(flags);
  const ParallelDims dims = sim::dims_of(job);
  if (!flags.model.empty())
    dims.validate_against_model(model_dims(sim::load_model(flags.model).model), flags.seq_len, flags.strict);
  else if (flags.seq_len || flags.strict)
    throw InvalidInput(
        "--seq-len and --strict are of a model; add --model, for example --model llama-3.1-8b");
  if (!flags.job.save_scenario.empty()) {
    proto::Scenario scenario;
    *scenario.mutable_mesh() = job;
    save_scenario_file(flags.job.save_scenario, scenario);
  }
  fmt::print("{}", flags.json ? json_of(dims, flags) : text_of(dims, flags));
  return kSuccess;
}

// A flag for a degree; `least` is -1 where what is left of the world may be asked for.
void add_degree(FlagSet app, ScenarioFlags<Job>& flags, const char* flag, const char* help,
                void (Job::*set)(std::int32_t), std::int64_t least = 1) {
  add_field(app, flags, flag, "N", help, [flag, set, least](Job& job, const std::string& text) {
    const std::int64_t degree = parse_whole(flag, text, least, Mesh::kMaxRanks);
    if (degree == 0) throw InvalidInput(str(flag, " 0 is out of range; use 1 or more, or -1"));
    (job.*set)(static_cast<std::int32_t>(degree));
  });
}

}  // namespace

Command add_mesh(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "mesh", "Show the mesh that parallel degrees make: its axes, their aliases, and the groups of ranks");
  const auto flags = std::make_shared<Flags>();
  ScenarioFlags<Job>& job = flags->job;
  add_degree(app, job, "--world-size", "How many ranks there are [as many as the degrees need]",
             &Job::set_world_size);
  add_degree(app, job, "--dp-replicate", "Replicas that hold whole parameters [1]", &Job::set_dp_replicate);
  add_degree(app, job, "--dp-shard", "Ranks that parameters are sharded over; -1: what is left of the world",
             &Job::set_dp_shard, -1);
  add_degree(app, job, "--dp", "The older name of --dp-shard", &Job::set_dp, -1);
  add_degree(app, job, "--cp", "Context parallelism [1]", &Job::set_cp);
  add_degree(app, job, "--tp", "Tensor parallelism [1]", &Job::set_tp);
  add_degree(app, job, "--pp", "Pipeline parallelism [1]", &Job::set_pp);
  add_degree(app, job, "--ep", "Expert parallelism [1]", &Job::set_ep);
  add_degree(app, job, "--etp", "Tensor parallelism of experts: as --tp, or 1 [as --tp]", &Job::set_etp);
  add_degree(app, job, "--ulysses-degree", "Ranks of cp that exchange heads [all of them]",
             &Job::set_ulysses_degree);
  add_field(app, job, "--expert-rule", "RULE",
            "peer: ep is an axis of its own; nested: it lies inside dp_shard*cp*tp [peer]",
            [](Job& fields, const std::string& text) {
              value_of("--expert-rule", text, [&] { return parse_expert_rule(text); });
              fields.set_expert_rule(text);
            });
  app.add_option("--model", flags->model, "Check the degrees against this model's heads and experts")
      .type_name("NAME|config.json");
  add_value(app, "--seq-len", "TOKENS", "With --strict: a length that cp*tp must divide",
            [flags](const std::string& text) { flags->seq_len = parse_whole("--seq-len", text, 1); });
  app.add_flag("--strict", flags->strict, "tp must divide the key and value heads, and cp*tp the length");
  add_value(app, "--rank", "R", "Show the groups of this rank alone", [flags](const std::string& text) {
    flags->rank = static_cast<int>(parse_whole("--rank", text, 0, Mesh::kMaxRanks));
  });
  add_scenario_files(app, flags->job);
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "Scenarios take the same degrees, as parallel_dims { ... } in place of a mesh or of a layout's "
      "degrees.\n"
      "Example:\n"
      "  cpsim mesh --world-size 16 --dp-replicate 2 --cp 2 --tp 2\n"
      "  cpsim mesh --world-size 32 --dp-shard -1 --tp 2 --ep 8 --expert-rule nested --rank 5");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
