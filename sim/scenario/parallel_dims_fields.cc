#include "sim/scenario/parallel_dims_fields.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/short_layout.h"
#include "sim/scenario/read_values.h"

namespace cp::sim {
namespace {

// "-1" for dp_shard in the text of a layout.
bool asks_for_rest(std::string_view layout) {
  const std::string whole = with_layout_keys(layout);
  for (const std::string_view item : split(whole, ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = trim(item.substr(0, equals));
    if ((key == "dp_shard" || key == "dp") && trim(item.substr(equals + 1)) == "-1") return true;
  }
  return false;
}

bool gives(std::string_view layout, std::string_view wanted) {
  for (const std::string_view item : split(layout, ',')) {
    if (trim(item.substr(0, item.find('='))) == wanted) return true;
  }
  return false;
}

void require_alone(const std::string& mesh, const proto::ParallelDims& fields) {
  if (mesh.empty()) return;
  throw InvalidInput(str("mesh \"", mesh, "\" and parallel_dims (", dims_of(fields).summary(),
                         ") say both which ranks there are; give one of them"));
}

// The mesh of degrees of which cp is above 1.
Mesh mesh_with_cp(const ParallelDims& dims) {
  if (!dims.cp_enabled())
    throw InvalidInput(str("parallel_dims (", dims.summary(),
                           ") have cp=1, and a sequence is split over cp ranks; use cp=2 or more"));
  return dims.build_mesh();
}

// The name of the degree's strategy, as layout_of() chooses it.
std::string strategy_of(const ParallelDims& dims) {
  if (dims.ulysses_degree() == dims.cp()) return "ulysses";
  return dims.ulysses_degree() == 1 ? "ring" : "ulysses_ring";
}

template <class Job>
void tell(Job& job, int ranks) {
  if (job.has_parallel_dims() && !job.parallel_dims().has_world_size())
    job.mutable_parallel_dims()->set_world_size(ranks);
}

}  // namespace

ParallelConfig config_of(const proto::ParallelDims& fields, ExpertRule rule) {
  ParallelConfig config;
  const auto take = [](bool has, int value, std::optional<int>& degree) {
    if (has) degree = value;
  };
  take(fields.has_dp_replicate(), fields.dp_replicate(), config.dp_replicate);
  take(fields.has_dp_shard(), fields.dp_shard(), config.dp_shard);
  take(fields.has_dp(), fields.dp(), config.dp);
  take(fields.has_cp(), fields.cp(), config.cp), take(fields.has_tp(), fields.tp(), config.tp);
  take(fields.has_pp(), fields.pp(), config.pp), take(fields.has_ep(), fields.ep(), config.ep);
  take(fields.has_etp(), fields.etp(), config.etp);
  take(fields.has_ulysses_degree(), fields.ulysses_degree(), config.ulysses_degree);
  config.expert_rule =
      fields.expert_rule().empty() ? rule : value_of("expert_rule", fields.expert_rule(), [&] {
        return parse_expert_rule(fields.expert_rule());
      });
  return config;
}

ParallelDims dims_of(const proto::ParallelDims& fields, ExpertRule rule) {
  const ParallelConfig config = config_of(fields, rule);
  if (fields.has_world_size()) return {config, fields.world_size()};
  if (given_dp_shard(config) == -1)
    throw InvalidInput(
        "dp_shard=-1 is what is left of the ranks, and nothing says how many there are; give world_size, or "
        "dp_shard itself");
  const ParallelDegrees known = infer_degrees(config);
  const int experts = config.expert_rule == ExpertRule::peer ? known.ep : 1;
  return {config, known.dp() * known.cp * known.tp * known.pp * experts};
}

proto::Redistribute with_mesh(const proto::Redistribute& job) {
  if (!job.has_parallel_dims()) return job;
  require_alone(job.mesh(), job.parallel_dims());
  proto::Redistribute with = job;
  with.set_mesh(dims_of(job.parallel_dims()).build_mesh().to_string()), with.clear_parallel_dims();
  return with;
}

proto::Attention with_mesh(const proto::Attention& job) {
  if (!job.has_parallel_dims()) return job;
  require_alone(job.mesh(), job.parallel_dims());
  proto::Attention with = job;
  const ParallelDims dims = dims_of(job.parallel_dims());
  with.set_mesh(mesh_with_cp(dims).to_string()), with.clear_parallel_dims();
  const bool chosen = !job.strategy().empty() || !job.strategies().empty();
  if (!chosen) with.set_strategy(strategy_of(dims));
  const bool whole = dims.ulysses_degree() == dims.cp();
  if (!job.has_ulysses_degree() && (chosen ? job.parallel_dims().has_ulysses_degree() : !whole))
    with.set_ulysses_degree(dims.ulysses_degree());
  return with;
}

proto::Recurrence with_mesh(const proto::Recurrence& job) {
  if (!job.has_parallel_dims()) return job;
  require_alone(job.mesh(), job.parallel_dims());
  proto::Recurrence with = job;
  with.set_mesh(mesh_with_cp(dims_of(job.parallel_dims())).to_string()), with.clear_parallel_dims();
  return with;
}

proto::PlanLayouts with_fixed_degrees(const proto::PlanLayouts& job) {
  if (!job.has_parallel_dims()) return job;
  proto::PlanLayouts with = job;
  with.clear_parallel_dims(), with.clear_fix();
  const proto::ParallelDims& fields = job.parallel_dims();
  const ParallelConfig config = config_of(fields, ExpertRule::nested);
  layout_of(dims_of(fields, ExpertRule::nested));  // refuses what no layout can have
  if (fields.has_world_size() && !job.has_nodes() && !job.has_gpus()) with.set_gpus(fields.world_size());
  std::vector<std::string> fixed;
  const auto fix = [&](const char* key, const std::optional<int>& degree) {
    if (degree && *degree != -1) fixed.push_back(str(key, "=", *degree));
  };
  fix("tp", config.tp), fix("cp", config.cp), fix("dp_shard", given_dp_shard(config));
  fix("dp_replicate", config.dp_replicate), fix("pp", config.pp), fix("ep", config.ep);
  fix("ulysses_degree", config.ulysses_degree);
  if (!fixed.empty()) with.add_fix(join(fixed, ","));
  for (const std::string& text : job.fix()) with.add_fix(text);
  return with;
}

proto::Train with_layout(const proto::Train& job) {
  if (asks_for_rest(job.layout()))
    throw InvalidInput(str("layout \"", job.layout(),
                           "\": dp_shard=-1 is what is left of the ranks, and nothing says how many there "
                           "are; start them (--nproc-per-node), or give dp_shard itself"));
  if (!job.has_parallel_dims()) return job;
  proto::Train with = job;
  const std::string text = with_layout_keys(job.layout());
  const ParallelLayout degrees = layout_of(dims_of(job.parallel_dims(), ExpertRule::nested));
  std::vector<std::string> items;
  for (const auto& [key, value] : items_of(degrees)) {
    const std::span<const std::string_view> keys = degree_keys();
    const bool of_degrees = std::find(keys.begin(), keys.end(), key) != keys.end();
    const bool of_strategy = key == "strategy" || key == "ulysses_degree";
    const bool asked = key == "ulysses_degree" && job.parallel_dims().has_ulysses_degree();
    if (of_degrees || asked || (of_strategy && !gives(text, "strategy")))
      items.push_back(str(key, "=", value));
  }
  for (const std::string_view key : degree_keys()) {
    if (gives(text, key))
      throw InvalidInput(str("layout \"", job.layout(), "\" gives ", key, ", and so do parallel_dims (",
                             join(items, ","), "); leave it out of one of them"));
  }
  if (!text.empty()) items.push_back(text);
  with.set_layout(join(items, ",")), with.clear_parallel_dims();
  return with;
}

void tell_world_size(proto::Train& train, int ranks) {
  tell(train, ranks);
  if (!asks_for_rest(train.layout())) return;
  train.set_layout(value_of("layout", train.layout(),
                            [&] { return to_string(parse_parallel_layout(train.layout(), ranks)); }));
}

void tell_world_size(proto::Scenario& scenario, int ranks) {
  if (scenario.has_redistribute()) tell(*scenario.mutable_redistribute(), ranks);
  if (scenario.has_train()) tell_world_size(*scenario.mutable_train(), ranks);
}

}  // namespace cp::sim
