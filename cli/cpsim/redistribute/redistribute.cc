// cpsim redistribute: plans a placement change, explains it, and on request runs and verifies it.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/redistribute/cost_flags.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/base/error.h"
#include "shared/redistribute/gradient.h"
#include "shared/redistribute/scaled.h"
#include "sim/cost/timeline/redistribute_times.h"
#include "sim/present/runs/redistribution_report.h"
#include "sim/proof/run/free_memory.h"
#include "sim/proof/run/redistribute_run.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/redistribute_request.h"
#include "traces/trace_proto.h"

namespace cp::cli {
namespace {

struct Flags {
  ScenarioFlags<proto::Redistribute> job;
  proto::CostModel cost;
  std::string trace;
  std::optional<std::string> rank;
  bool run = false, pareto = false, plan = false, json = false;
};

using Job = proto::Redistribute;
using Text = const std::string&;

void add_problem_flags(FlagSet app, Flags& flags) {
  add_field(app, flags.job, "--mesh", "MESH",
            "Named axes over the ranks: dp=2,cp=4; with the ranks in another order: a=2,b=2@0/2/1/3",
            [](Job& job, Text text) { job.set_mesh(text); });
  add_field(app, flags.job, "--to-mesh", "MESH", "The mesh of the target [the same as --mesh]",
            [](Job& job, Text text) { job.set_to_mesh(text); });
  add_field(app, flags.job, "--shape", "SHAPE",
            "The global shape of the tensor: 1024x1024x256, 4Kix512 or scalar",
            [](Job& job, Text text) { job.set_shape(text); });
  add_field(app, flags.job, "--dtype", "DTYPE", "The dtype of the tensor: f32, f16, bf16, i32 or i64 [f32]",
            [](Job& job, Text text) { job.set_dtype(sim::parse_proto_dtype("--dtype", text)); });
  add_field(
      app, flags.job, "--from", "PLACEMENTS",
      "The placement before, one for each mesh axis: S(0), S(1,head_tail), R, P(sum) or S(0)[1],S(0)[0]",
      [](Job& job, Text text) { job.set_from(text); });
  add_field(app, flags.job, "--to", "PLACEMENTS", "The placement after, in the same form",
            [](Job& job, Text text) { job.set_to(text); });
}

void add_planning_flags(FlagSet app, Flags& flags) {
  add_field(app, flags.job, "--objective", "OBJECTIVE", "What the plan minimises: time or bytes [time]",
            [](Job& job, Text text) { job.set_objective(sim::parse_objective(text)); });
  add_field(app, flags.job, "--max-memory-factor", "F",
            "Temporaries take at most F x 2 x the bytes of the largest shard [1]",
            [](Job& job, Text text) { job.set_max_memory_factor(parse_real("--max-memory-factor", text)); });
  add_field(
      app, flags.job, "--travel-dtype", "DTYPE", "The dtype in which data travels [that of the target]",
      [](Job& job, Text text) { job.set_travel_dtype(sim::parse_proto_dtype("--travel-dtype", text)); });
  add_field(
      app, flags.job, "--gradient", "RULE",
      "Plan the backward pass instead: adjoint (the transpose) or replicated (PyTorch's rule) [forward]",
      [](Job& job, Text text) { job.set_gradient(sim::parse_gradient(text)); });
  add_field(
      app, flags.job, "--gradient-scale", "SCALE",
      "Multiply (up) or divide (down) the gradient by the number of ranks along the axes that split (R to S) "
      "or gather (S to R) [none]",
      [](Job& job, Text text) { job.set_gradient_scale(sim::parse_gradient_scale(text)); });
  app.add_flag("--pareto", flags.pareto,
               "List all plans that no other plan beats in both time and peak memory");
  add_field(app, flags.job, "--cluster", "NAME|FILE.txtpb",
            "Predict times by replaying the plans on this cluster [the cost model below]",
            [](Job& job, Text text) { job.set_cluster(text); });
  add_field(app, flags.job, "--nodes", "N", "How many nodes the cluster has [as many as the ranks need]",
            [](Job& job, Text text) {
              constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
              job.set_nodes(static_cast<std::int32_t>(parse_whole("--nodes", text, 1, kMost)));
            });
  add_cost_flags(app, flags.cost);
}

void add_run_flags(FlagSet app, Flags& flags) {
  const Flag run = app.add_flag("--run", flags.run,
                                "Run the plan with data on the simulated fabric, and verify every element");
  add_field(app, flags.job, "--schedule", "SCHEDULE",
            "How the ranks run: parallel, or baton (one at a time, exactly repeatable) [parallel]",
            [](Job& job, Text text) { job.set_schedule(sim::parse_schedule(text)); });
  add_field(
      app, flags.job, "--seed", "N", "The seed of the data and of the baton [0]",
      [](Job& job, Text text) { job.set_seed(static_cast<std::uint64_t>(parse_whole("--seed", text, 0))); });
  add_field(app, flags.job, "--target", "NAME",
            "The device that the plans are made for: host, sm80, sm90, sm100 or sm120 [host]",
            [](Job& job, Text text) { job.set_target(text); });
  app.add_option("--trace", flags.trace, "Write a trace of what the ranks did to this file")
      .type_name("FILE")
      .needs(run);
}

void add_output_flags(FlagSet app, Flags& flags) {
  const Flag plan = app.add_flag("--plan", flags.plan, "Print the plan of one rank instead of the report");
  app.add_option("--rank", flags.rank, "The rank whose plan is printed [the first of the mesh]")
      .type_name("R")
      .needs(plan);
  add_scenario_files(app, flags.job);
  app.add_flag("--json", flags.json, "Print JSON");
}

proto::Redistribute job_of(const Flags& flags) {
  proto::Redistribute job;
  if (!flags.job.scenario.empty())
    job = sim::with_mesh(read_scenario_of("redistribute", flags.job.scenario).redistribute());
  job = flags.job.apply_to(std::move(job));
  if (flags.cost.ByteSizeLong() > 0) job.mutable_cost()->MergeFrom(flags.cost);
  return job;
}

void save_scenario(const std::string& path, const proto::Redistribute& job) {
  proto::Scenario scenario;
  *scenario.mutable_redistribute() = job;
  save_scenario_file(path, scenario);
}

// What is planned, and the options to plan the same request with once more.
struct Planned {
  sim::Explanation explanation;
  RedistributeOptions options;
};

Planned plan(const sim::RedistributeRequest& request) {
  Gradient planned = sim::plan_request(request);
  sim::Explanation explanation{std::move(planned.redistribution)};
  explanation.objective = request.options.objective;
  explanation.max_memory_factor = request.options.max_memory_factor;
  explanation.scale = planned.scale;
  explanation.scale_time_us = scale_time_us(explanation.chosen, planned.scale, request.options.cost);
  if (request.gradient) {
    explanation.gradient_of =
        str(placements_to_string(request.source), " -> ", placements_to_string(request.target), " (",
            *request.gradient == GradientRule::adjoint ? "adjoint" : "replicated", ")");
  }
  return {std::move(explanation), sim::planning_options(request)};
}

// Returns one exchange straight from source to target, or nothing if values are still to be reduced.
std::optional<Redistribution> direct_exchange(const Redistribution& r, const RedistributeOptions& options) {
  const bool same_mesh = r.source.mesh == r.target.mesh;
  Move move{MoveKind::exchange, {}, r.source, r.target};
  for (int axis = 0; axis < r.source.mesh.num_axes(); ++axis) {
    if (!same_mesh || r.source.mesh.axis_size(axis) == 1) continue;
    const auto at = static_cast<std::size_t>(axis);
    const bool was = std::holds_alternative<Partial>(r.source.placements[at]);
    if (was != std::holds_alternative<Partial>(r.target.placements[at])) return std::nullopt;
    move.axes.push_back(axis);
  }
  if (!same_mesh && (is_partial(r.source) || is_partial(r.target))) return std::nullopt;
  return follow_moves(r.source, r.target, std::span(&move, 1), options);
}

bool is_direct(const Redistribution& r) {
  return r.steps.size() == 1 && r.steps.front().move.kind == MoveKind::exchange;
}

// Adds the plans that the chosen one is compared with. To find the leanest takes many searches, and a direct
// exchange among n ranks has n^2 pieces. That is too much for a side remark if one search already takes long,
// so it is left out for meshes of more than kManyRanks ranks (chosen; --pareto has no such limit).
void add_alternatives(Planned& planned, bool pareto) {
  constexpr int kManyRanks = 128;
  sim::Explanation& e = planned.explanation;
  const Redistribution& chosen = e.chosen;
  if (pareto) {
    e.pareto = pareto_redistributions(chosen.source, chosen.target, planned.options);
    return;
  }
  if (chosen.steps.empty()) return;
  if (chosen.source.mesh.size() > kManyRanks || chosen.target.mesh.size() > kManyRanks) return;
  if (!is_direct(chosen)) e.direct = direct_exchange(chosen, planned.options);
  std::vector<Redistribution> all = pareto_redistributions(chosen.source, chosen.target, planned.options);
  if (all.empty() || all.back().peak_bytes >= chosen.peak_bytes) return;
  e.leanest_is_direct = is_direct(all.back());
  e.leanest = std::move(all.back());
}

// Times the plans where the ranks are, and chooses the fastest there: it may be one that the closed form
// found second.
void time_on_cluster(const sim::RedistributeRequest& request, Planned& planned) {
  if (!request.cluster) return;
  sim::Explanation& e = planned.explanation;
  const auto time = [&](Redistribution& r) { sim::replay_times(*request.cluster, request.device_target, r); };
  time(e.chosen);
  for (std::optional<Redistribution>* other : {&e.direct, &e.leanest}) {
    if (*other) time(**other);
  }
  for (Redistribution& other : e.pareto) time(other);
  std::stable_sort(e.pareto.begin(), e.pareto.end(),
                   [](const Redistribution& a, const Redistribution& b) { return a.time_us < b.time_us; });
  const auto is_better = [&](const Redistribution& other) {
    return e.objective == Objective::time && other.time_us < e.chosen.time_us &&
           other.peak_bytes <= e.chosen.bound_bytes;
  };
  for (const Redistribution& other : e.pareto) {
    if (is_better(other)) e.chosen = other;
  }
  for (std::optional<Redistribution>* other : {&e.direct, &e.leanest}) {
    if (*other && is_better(**other)) std::swap(e.chosen, **other);
  }
  e.scale_time_us = sim::replayed_scale_us(*request.cluster, request.device_target, e.chosen, e.scale);
  e.cluster = str(request.cluster->name, ", ", request.cluster->nodes,
                  request.cluster->nodes == 1 ? " node" : " nodes",
                  sim::is_replayed(e.chosen) ? "" : ", in closed form");
}

std::string plan_text(const sim::Explanation& e, const sim::RedistributeRequest& request,
                      const std::optional<std::string>& rank) {
  const Redistribution& redistribution = e.chosen;
  const Mesh& mesh = redistribution.source.mesh;
  const Rank self = rank
                        ? static_cast<Rank>(parse_whole("--rank", *rank, 0, std::numeric_limits<Rank>::max()))
                        : mesh.ranks().front();
  if (!mesh.contains(self) && !redistribution.target.mesh.contains(self)) {
    throw InvalidInput(str("--rank ", self, " is in neither mesh; use a rank of ", mesh.to_string(),
                           ", for example ", mesh.ranks().front()));
  }
  return to_text(lower_scaled(redistribution, e.scale, self, request.device_target));
}

sim::RedistributeRun run_plan(const sim::Explanation& e, const sim::RedistributeRequest& request,
                              const Flags& flags, Progress& progress) {
  sim::RedistributeRunOptions options;
  options.target = request.device_target;
  options.scale = e.scale;
  options.schedule = request.schedule;
  options.seed = request.seed;
  options.memory_limit_bytes = sim::free_memory_bytes();
  options.digests = !flags.trace.empty();
  options.on_phase = [&](std::string_view phase) { progress.show(std::string(phase)); };
  sim::RedistributeRun run = sim::run_redistribution(e.chosen, options);
  if (!flags.trace.empty()) finish([&] { write_trace_file(flags.trace, run.traces); });
  return run;
}

// What goes to standard output, in one piece, and the failure that is still to be reported.
struct Output {
  std::string text;
  std::exception_ptr failure;
};

Output text_output(const Flags& flags, const sim::RedistributeRequest& request, const sim::Explanation& e,
                   Progress& progress) {
  Output output;
  output.text = flags.plan ? plan_text(e, request, flags.rank) : sim::report_text(e);
  if (!flags.run) return output;
  try {
    const std::string result = sim::run_text(run_plan(e, request, flags, progress));
    output.text += str(flags.plan ? "" : "\n", result);
  } catch (const Error&) {
    output.failure = std::current_exception();
  }
  return output;
}

Output json_output(const Flags& flags, const sim::RedistributeRequest& request, const sim::Explanation& e,
                   Progress& progress) {
  Output output;
  nlohmann::ordered_json json = sim::report_json(e);
  if (flags.plan) json["plan"] = plan_text(e, request, flags.rank);
  if (flags.run) {
    try {
      json["run"] = sim::run_json(run_plan(e, request, flags, progress));
    } catch (const Error&) {
      output.failure = std::current_exception();
    }
    json["verified"] = output.failure == nullptr;
  }
  output.text = json.dump(2) + "\n";
  return output;
}

int redistribute(const Flags& flags) {
  const proto::Redistribute job = job_of(flags);
  const sim::RedistributeRequest request = sim::make_request(job);
  Output output;
  {
    Progress progress;
    progress.show("planning");
    Planned planned = plan(request);
    if (!flags.job.save_scenario.empty()) save_scenario(flags.job.save_scenario, job);
    if (!flags.plan) {
      progress.show("planning alternatives");
      add_alternatives(planned, flags.pareto);
    }
    progress.show("replaying");
    time_on_cluster(request, planned);
    const auto make = flags.json ? json_output : text_output;
    output = make(flags, request, planned.explanation, progress);
  }
  fmt::print("{}", flags.json ? output.text : printable(output.text));
  std::fflush(stdout);
  if (output.failure) std::rethrow_exception(output.failure);
  return kSuccess;
}

}  // namespace

Command add_redistribute(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "redistribute", "Plan a change of placement, explain it, and on request run and verify it");
  const auto flags = std::make_shared<Flags>();
  add_problem_flags(app, *flags);
  add_planning_flags(app, *flags);
  add_run_flags(app, *flags);
  add_output_flags(app, *flags);
  app.footer(
      "Example: turn shards of the first dimension into shards of the second, over eight ranks\n"
      "  cpsim redistribute --mesh dp=2,cp=2,tp=2 --shape 1024x1024x256 --dtype f32 \\\n"
      "    --from 'S(0)[0],S(0)[1],S(0)[2]' --to 'S(1)[0],S(1)[1],S(1)[2]' --run\n"
      "Example: predict the time of a gather on two nodes of a cluster\n"
      "  cpsim redistribute --cluster dgx-h100 --mesh dp=2,tp=8 --shape 8192x8192 --dtype bf16 \\\n"
      "    --from 'R,S(0)' --to R,R\n"
      "Example: plan the backward pass of a gather, whose gradient is multiplied by the ranks of the group\n"
      "  cpsim redistribute --mesh cp=4 --shape 4096x1024 --from 'S(0,head_tail)' --to R \\\n"
      "    --gradient replicated --gradient-scale up --run");
  return {app, [flags] { return redistribute(*flags); }};
}

}  // namespace cp::cli
