// cpsim estimate: the time of one attention, one recurrence or one collective on a cluster.
#include "sim/cost/timeline/estimate.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/flags.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/attention_flags.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/estimate/recurrence.h"
#include "cli/cpsim/recurrence_flags.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/present/traces/trace_formats.h"
#include "sim/proof/run/attention_run_memory.h"
#include "sim/proof/run/free_memory.h"
#include "sim/scenario/attention_request.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;
using Job = proto::Attention;

struct Flags {
  ScenarioFlags<Job> job;
  ScenarioFlags<proto::Recurrence> recurrence;
  std::string cluster, software = "cprun", kernels, pass = "forward";
  std::string collective, bytes;
  std::string trace;
  int nodes = 0, gpus = 0;
  std::string nvls = "on";
  int channels_per_net_peer = 0;
  bool json = false, padding = false;
};

// What the field of the cluster holds. How many nodes a cluster may have follows from the GPUs of a node, and
// the cluster's own check knows it.
constexpr std::int64_t kMostNodes = std::numeric_limits<std::int32_t>::max();

int nodes_for(const Flags& flags, int gpus, const sim::Cluster& one_node) {
  if (flags.nodes > 0) return flags.nodes;
  return std::max(1, gpus / one_node.node.gpus + (gpus % one_node.node.gpus != 0 ? 1 : 0));
}

sim::Cluster cluster_for(const Flags& flags, int gpus) {
  if (flags.cluster.empty()) {
    throw InvalidInput(str("--cluster is missing; use one of ", join(sim::cluster_names(), ", "),
                           ", or a file, for example mine.txtpb"));
  }
  return sim::find_cluster(flags.cluster, nodes_for(flags, gpus, sim::find_cluster(flags.cluster, 1)));
}

sim::CollectiveSettings settings_of(const Flags& flags) {
  sim::CollectiveSettings settings;
  if (flags.nvls != "on" && flags.nvls != "off") {
    throw InvalidInput(str("--nvls ", flags.nvls, " is unknown; use on or off"));
  }
  settings.nvls = flags.nvls == "on";
  if (flags.channels_per_net_peer > 0) settings.channels_per_net_peer = flags.channels_per_net_peer;
  return settings;
}

// ---- a collective ----

const std::vector<std::pair<std::string, sim::CollectiveKind>> kCollectives = {
    {"all_gather", sim::CollectiveKind::all_gather}, {"reduce_scatter", sim::CollectiveKind::reduce_scatter},
    {"all_reduce", sim::CollectiveKind::all_reduce}, {"all_to_all", sim::CollectiveKind::all_to_all},
    {"broadcast", sim::CollectiveKind::broadcast},   {"send_recv", sim::CollectiveKind::send_recv}};

sim::CollectiveKind collective_kind(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kCollectives) {
    if (name == text) return kind;
    names.push_back(name);
  }
  const std::string near = nearest(text, names);
  throw InvalidInput(str("--collective ", text, " is unknown; ",
                         near.empty() ? "" : str("the nearest one is ", near, "; "), "use one of ",
                         join(names, ", ")));
}

std::string by_text(const sim::CollectiveEstimate& estimate) {
  if (estimate.curve) return "curve";
  return str(sim::name(estimate.choice.algorithm), " ", sim::name(estimate.choice.protocol));
}

std::string origin_text(const sim::CollectiveEstimate& estimate) {
  if (!estimate.curve) return str("not measured, by ", by_text(estimate));
  if (*estimate.curve == sim::Origin::borrowed) return "along a curve of another system";
  const std::string origin = to_string(*estimate.curve);
  return str("along ", std::string_view("ae").find(origin.front()) < 2 ? "an " : "a ", origin, " curve");
}

void print_collective(const Flags& flags, sim::CollectiveKind kind, std::int64_t bytes, int gpus,
                      const sim::Cluster& cluster, const sim::CollectiveEstimate& estimate) {
  const bool moves = estimate.us > 0;
  const double algorithm_gbps = moves ? static_cast<double>(bytes) / (estimate.us * 1e3) : 0;
  if (flags.json) {
    ordered_json json = {{"cluster", cluster.name},
                         {"collective", sim::name(kind)},
                         {"bytes", bytes},
                         {"gpus", gpus},
                         {"time_us", estimate.us},
                         {"interval_us", {estimate.low_us, estimate.high_us}},
                         {"algorithm_gbps", moves ? ordered_json(algorithm_gbps) : ordered_json()}};
    if (moves) {
      json["origin"] = to_string(estimate.curve.value_or(sim::Origin::estimated));
      json["by"] = by_text(estimate);  // a curve of the cluster, or the library's algorithm and protocol
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{} of {} over {} GPU{} of {}: {} ({})\n", sim::name(kind), human_bytes(bytes), gpus,
             gpus == 1 ? "" : "s", cluster.name, sim::human_us(estimate.us),
             moves ? fmt::format("{} to {}, {:.1f} GB/s, {}", sim::human_us(estimate.low_us),
                                 sim::human_us(estimate.high_us), algorithm_gbps, origin_text(estimate))
                   : "nothing moves");
}

int estimate_collective(const Flags& flags) {
  const sim::CollectiveKind kind = collective_kind(flags.collective);
  if (!flags.trace.empty()) {
    throw InvalidInput(str("--trace ", flags.trace, " shows the timeline of attention, but --collective ",
                           flags.collective, " has none; leave one of them out"));
  }
  if (flags.bytes.empty()) throw InvalidInput("--bytes is missing; add, for example, --bytes 1GiB");
  const std::int64_t bytes = parse_bytes("--bytes", flags.bytes);
  const int gpus = flags.gpus > 0 ? flags.gpus : sim::find_cluster(flags.cluster, 1).node.gpus;
  const sim::Cluster cluster = cluster_for(flags, gpus);
  if (gpus > cluster.num_gpus()) {
    throw InvalidInput(str("--gpus ", gpus, " are more than the ", cluster.num_gpus(), " GPUs of --nodes ",
                           flags.nodes, "; use --nodes ", nodes_for({}, gpus, cluster)));
  }
  std::vector<Rank> ranks(static_cast<std::size_t>(gpus));
  std::iota(ranks.begin(), ranks.end(), 0);
  Progress progress;
  progress.show(str("replaying ", gpus, " GPUs"));
  // One GPU alone sends nothing to anybody, which takes no time and has no rate.
  sim::CollectiveEstimate estimate;
  if (gpus > 1) {
    estimate = sim::collective_estimate(kind, static_cast<double>(bytes), ranks, cluster, settings_of(flags));
  }
  print_collective(flags, kind, bytes, gpus, cluster, estimate);
  return 0;
}

// ---- attention ----

std::vector<AttentionPass> passes_of(const Flags& flags, bool backward) {
  if (backward || flags.pass == "both") return {AttentionPass::forward, AttentionPass::backward};
  if (flags.pass == "forward") return {AttentionPass::forward};
  if (flags.pass == "backward") return {AttentionPass::backward};
  throw InvalidInput(str("--pass ", flags.pass, " is unknown; use forward, backward or both"));
}

ordered_json estimate_json(const sim::AttentionEstimate& estimate) {
  return {{"time_us", estimate.time_us},
          {"interval_us", {estimate.low_us, estimate.high_us}},
          {"host_us", estimate.host_us},
          {"exposed_comm_us", estimate.exposed_comm_us},
          {"bytes_received", estimate.bytes_received},
          {"peak_bytes", estimate.peak_bytes}};
}

// Says where the time of the critical path goes, by what bounds it.
std::string bounds_text(const sim::Timeline& timeline) {
  std::vector<std::pair<std::string, double>> sums;
  for (const sim::PathStep& step : timeline.critical_path) {
    const auto known =
        std::find_if(sums.begin(), sums.end(), [&](const auto& sum) { return sum.first == step.bound; });
    const double ns = step.end_ns - step.begin_ns;
    if (known == sums.end()) {
      sums.emplace_back(step.bound, ns);
    } else {
      known->second += ns;
    }
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(sums.size(), 4); ++i) {
    text += str(i == 0 ? "" : ", ", sums[i].first, " ", sim::human_us(sums[i].second / 1e3));
  }
  return text;
}

// One pass as it was replayed for the estimate, kept for a trace.
struct Replayed {
  std::string name;
  std::vector<Plan> plans;
  sim::Timeline timeline;
};

void write_trace(const std::string& path, const std::vector<Replayed>& replayed,
                 const sim::Cluster& cluster) {
  std::vector<sim::TracedPass> passes;
  for (const Replayed& pass : replayed) passes.push_back({pass.name, pass.plans, &pass.timeline});
  sim::TraceSlices slices = sim::trace_slices(passes);
  sim::name_places(slices, cluster);
  sim::write_trace_files(path, slices, cluster);
}

int estimate_states(const Flags& flags, const proto::Recurrence& scenario) {
  if (!flags.trace.empty())
    throw InvalidInput(str("--trace ", flags.trace, " shows the timeline of attention; leave it out"));
  if (flags.padding || !flags.kernels.empty())
    throw InvalidInput("--padding and --kernels are of attention; leave them out with --recurrence");
  // Made for a GPU, whose workspace is another than a host's; all generations declare the same one.
  const sim::RecurrenceJob job = sim::make_recurrence_job(scenario, gpu_target("sm90"));
  const Rank last = *std::max_element(job.ranks.begin(), job.ranks.end());
  const std::vector<AttentionPass> passes = passes_of(flags, job.backward);
  const auto asks = [&](AttentionPass pass) {
    return std::find(passes.begin(), passes.end(), pass) != passes.end();
  };
  return estimate_recurrence(
      job, {cluster_for(flags, last + 1), sim::find_software(flags.software), settings_of(flags),
            asks(AttentionPass::forward), asks(AttentionPass::backward), flags.json});
}

int estimate_step(const Flags& flags) {
  const proto::Scenario asked = scenario_of(flags.job, flags.recurrence);
  if (asked.has_recurrence()) return estimate_states(flags, asked.recurrence());
  if (!flags.trace.empty()) sim::require_trace_name(flags.trace);
  if (!asked.run().strategies().empty())
    throw InvalidInput(str("--strategies ", asked.run().strategies(),
                           " compares those of a recurrence; use --strategy with one of attention's"));
  const sim::AttentionJob job = sim::make_attention_job(asked.run());
  require_covered(job.problem, flags.job, flags.padding);
  const int cp = static_cast<int>(job.ranks.size());
  if (const auto refusal = refuse(job.problem, cp, job.strategies.front(), job.target))
    throw InvalidInput(refusal->reason);
  // The replay takes only the nodes that the ranks use and a neighbour, since its time grows with them. The
  // words name the whole cluster.
  const Rank last = *std::max_element(job.ranks.begin(), job.ranks.end());
  const sim::Cluster cluster = cluster_for(flags, last + 1), used = sim::used_part(cluster, last + 1);
  sim::SoftwareProfile software = sim::find_software(flags.software);
  if (!flags.kernels.empty()) {
    software = value_of("--kernels", flags.kernels,
                        [&] { return sim::with_attention_kernel(software, cluster, flags.kernels); });
  }
  ordered_json json = {{"problem", to_string(job.problem)},
                       {"mesh", job.where},
                       {"strategy", to_string(job.strategies.front(), cp)},
                       {"cluster", cluster.name},
                       {"nodes", cluster.nodes},
                       {"software", software.name}};
  std::string text = fmt::format("{} by {} on {}, {} of {} GPUs of {}, software {}\n", to_string(job.problem),
                                 to_string(job.strategies.front(), cp), job.where, cp, cluster.num_gpus(),
                                 cluster.name, software.name);
  std::vector<Replayed> replayed;
  Progress progress;
  for (const AttentionPass pass : passes_of(flags, job.backward)) {
    const char* name = pass == AttentionPass::forward ? "forward" : "backward";
    const AttentionRequest request{job.problem, job.ranks, sim::as_run_by(job.strategies.front(), software),
                                   true, job.options};
    if (const auto free = sim::free_memory_bytes()) sim::require_planning_memory(request, false, *free);
    sim::TimelineOptions options;
    options.keep_spans = !flags.trace.empty();
    options.collectives = settings_of(flags);
    progress.show(str("planning and replaying ", cp, " ranks"));
    sim::AttentionEstimate estimate =
        sim::estimate_attention(request, pass, used, software, options, job.target);
    if (flags.json) {
      json[name] = estimate_json(estimate);
    } else {
      text += fmt::format("{:<9} {} ({} to {}); exposed communication {}; {} received, peak {} per rank\n",
                          name, sim::human_us(estimate.time_us), sim::human_us(estimate.low_us),
                          sim::human_us(estimate.high_us), sim::human_us(estimate.exposed_comm_us),
                          human_bytes(estimate.bytes_received), human_bytes(estimate.peak_bytes));
      text += fmt::format("          critical path: {}\n", bounds_text(estimate.timeline));
      if (estimate.host_us >= estimate.time_us) {
        text += fmt::format("          the GPUs need {} and wait for the host, which issues a call in {}\n",
                            sim::human_us(estimate.timeline.time_ns / 1e3), sim::human_us(estimate.host_us));
      }
    }
    if (!flags.trace.empty())
      replayed.push_back({name, attention_plans(request, pass, job.target), std::move(estimate.timeline)});
  }
  if (flags.json &&
      passes_of(flags, job.backward).size() == 1) {  // one pass: its figures on top, for scripts
    const char* name = flags.pass == "backward" ? "backward" : "forward";
    const ordered_json figures = json[name];
    json.erase(name);
    json["pass"] = name;
    json.update(figures);
  }
  if (!flags.trace.empty()) write_trace(flags.trace, replayed, cluster);
  fmt::print("{}", flags.json ? json.dump(2) + "\n" : printable(text));
  return 0;
}

}  // namespace

Command add_estimate(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "estimate", "Predict the time of one attention, recurrence or collective on a cluster");
  const auto flags = std::make_shared<Flags>();
  app.add_option("--cluster", flags->cluster,
                 "The cluster: the name of a preset (see cpsim list clusters), or a file")
      .type_name("NAME|FILE.txtpb");
  add_value(app, "--nodes", "N", "How many nodes the cluster has [as many as the ranks need]",
            [flags](const std::string& text) {
              flags->nodes = static_cast<int>(parse_whole("--nodes", text, 1, kMostNodes));
            });
  app.add_option(
         "--software", flags->software,
         "The software whose implementation is timed: a name (see cpsim list software), or a file [cprun]")
      .type_name("NAME|FILE.txtpb");
  app.add_option("--kernels", flags->kernels,
                 "The attention kernel, for example fa2, fa3, cudnn or trtllm [that of the software]")
      .type_name("NAME");
  app.add_option("--pass", flags->pass, "The pass that is timed: forward, backward or both [forward]")
      .type_name("PASS");
  add_problem_flags(app, flags->job, flags->padding);
  add_strategy_flags(app, flags->job);
  add_recurrence_flags(app, flags->recurrence);
  add_field(app, flags->job, "--strategies", "NAMES",
            "With --recurrence: several strategies, to compare them: all, or for example all_gather,heads",
            [](Job& job, const std::string& text) { job.set_strategies(text); });
  add_switch(app, flags->job, "--backward", "Time both passes, as --pass both does",
             [](Job& job) { job.set_backward(true); });
  app.add_option(
         "--collective", flags->collective,
         "Time this collective instead of attention: all_gather, reduce_scatter, all_reduce, all_to_all, "
         "broadcast or send_recv (each GPU sends to the next one)")
      .type_name("NAME");
  app.add_option("--bytes", flags->bytes,
                 "The size of the collective, counted as nccl-tests does, for example 1GiB; for send_recv "
                 "the message of "
                 "one GPU")
      .type_name("SIZE");
  add_value(app, "--gpus", "N", "How many GPUs the collective has [those of one node]",
            [flags](const std::string& text) {
              flags->gpus = static_cast<int>(parse_whole("--gpus", text, 1, Mesh::kMaxRanks));
            });
  app.add_option(
         "--trace", flags->trace,
         "Write the timeline: NAME.json for Chrome, NAME.pftrace for Perfetto, DIR/ for a file of each rank "
         "as PyTorch's profiler writes it (HolisticTraceAnalysis)")
      .type_name("FILE|DIR/");
  app.add_option("--nvls", flags->nvls,
                 "Whether switches that can add do the reductions (NVLS): on or off [on]")
      .type_name("on|off");
  add_count(app, "--channels-per-net-peer", flags->channels_per_net_peer,
            "How many channels NCCL uses to a peer of another node, in send/recv and all-to-all [2]");
  add_scenario_files(app, flags->job);
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "The attention is one of many calls in a row: the host issues calls ahead of the GPUs, unless it "
      "needs\n"
      "longer than they do.\n\nExample:\n"
      "  cpsim estimate --cluster a800 --mesh cp=16 --strategy ring --seq-len 65536 --q-heads 32 \\\n"
      "    --head-dim 128 --dtype bf16 --causal --pass backward --software ring-flash-attention\n"
      "  cpsim estimate --cluster hgx-b200 --collective all_gather --bytes 1GiB --gpus 16\n"
      "  cpsim estimate --cluster dgx-h100 --mesh cp=8 --recurrence delta --strategies all --seq-len 131072 "
      "\\\n"
      "    --key-heads 16 --value-heads 32 --head-dim 128 --dtype bf16 --pass both");
  return {app, [flags] {
            return flags->collective.empty() ? estimate_step(*flags) : estimate_collective(*flags);
          }};
}

}  // namespace cp::cli
