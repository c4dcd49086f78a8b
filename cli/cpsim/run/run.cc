// cpsim run: attention over a sequence that is split across ranks, by one strategy or by all, on the
// simulated fabric with data; everything checked.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/attention_flags.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/recurrence_flags.h"
#include "cli/cpsim/run/outcome_error.h"
#include "cli/cpsim/run/recurrence.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/base/error.h"
#include "sim/base/number_text.h"
#include "sim/present/runs/attention_report.h"
#include "sim/proof/run/attention_run.h"
#include "sim/proof/run/attention_run_memory.h"
#include "sim/proof/run/free_memory.h"
#include "sim/scenario/attention_request.h"
#include "sim/scenario/redistribute_request.h"
#include "traces/trace_proto.h"

namespace cp::cli {
namespace {

using Job = proto::Attention;
using Text = const std::string&;

struct Flags {
  ScenarioFlags<Job> job;
  ScenarioFlags<proto::Recurrence> recurrence;  // what attention has no flags for
  std::string trace;
  bool json = false, padding = false;
};

void add_run_flags(FlagSet app, Flags& flags) {
  add_switch(app, flags.job, "--backward", "Compute the gradients too",
             [](Job& job) { job.set_backward(true); });
  add_field(app, flags.job, "--schedule", "SCHEDULE",
            "How the ranks run: parallel, or baton (one at a time, exactly repeatable) [parallel]",
            [](Job& job, Text text) { job.set_schedule(sim::parse_schedule(text)); });
  add_field(
      app, flags.job, "--seed", "N", "The seed of the data and of the baton [0]",
      [](Job& job, Text text) { job.set_seed(static_cast<std::uint64_t>(parse_whole("--seed", text, 0))); });
  app.add_option("--trace", flags.trace,
                 "Write a trace of what the ranks did to this file; needs a single strategy")
      .type_name("FILE");
  add_scenario_files(app, flags.job);
  app.add_flag("--json", flags.json, "Print JSON");
}

// Runs the strategy, or its nearest legal alternative.
sim::StrategyOutcome run_one(const sim::AttentionJob& job, const Strategy& asked,
                             const sim::AttentionTestData& data, const std::string& prefix,
                             Progress& progress) {
  sim::StrategyOutcome outcome;
  outcome.asked = asked;
  outcome.refusal = refuse(job.problem, static_cast<int>(job.ranks.size()), asked, job.target);
  sim::AttentionRunOptions options;
  options.backward = job.backward;
  options.schedule = job.schedule;
  options.seed = job.seed;
  options.target = job.target;
  options.memory_limit_bytes = sim::free_memory_bytes();
  options.on_phase = [&](std::string_view phase) { progress.show(str(prefix, phase)); };
  try {
    const Strategy& strategy = outcome.refusal ? outcome.refusal->strategy : asked;
    outcome.run =
        sim::run_attention(data, {data.problem(), job.ranks, strategy, job.backward, job.options}, options);
  } catch (const Error& error) {
    // What cannot run is bad input, unless there are others beside it.
    if (error.kind() == ErrorKind::invalid_input && job.strategies.size() == 1) throw;
    outcome.error = error.what();
  }
  return outcome;
}

// Estimates how many seconds the runs take. Most of the time goes into one device's reference, which grows
// with the product of the lengths; so the reference of a short sequence is timed and scaled up. Returns
// nothing if the runs take a few seconds at most.
std::optional<double> expected_seconds(const sim::AttentionJob& job, const AttentionProblem& problem) {
  // Chosen: the reference of 512 tokens takes a fraction of a second (kAtOnce in proportion), and its time
  // can be measured well.
  constexpr std::int64_t kProbe = 512;
  constexpr double kAtOnce = 2048.0 * 2048 * 8 * 64;  // such a problem takes a second
  const auto size_of = [](const AttentionProblem& p) {
    return static_cast<double>(p.q_len) * static_cast<double>(p.kv_len) *
           static_cast<double>(p.batch * p.q_heads * (p.head_dim + p.v_head_dim)) / 2;
  };
  if (size_of(problem) < 4 * kAtOnce || problem.window) return std::nullopt;
  AttentionProblem probe = problem;
  probe.batch = 1, probe.q_len = probe.kv_len = kProbe;
  probe.cu_seqlens.clear(), probe.cu_seqlens_of_entry.clear(), probe.query_offset.reset();
  const auto start = std::chrono::steady_clock::now();
  const sim::AttentionTestData data(probe, job.seed);
  data.forward();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  // Measured, as multiples of the reference's forward pass: the reference with its backward pass takes 2.75;
  // to plan, run and check one strategy takes 0.3 forward and 0.75 with the backward pass. They only decide
  // whether announce() warns, and what it says.
  const double reference = job.backward ? 2.75 : 1, each = job.backward ? 0.75 : 0.3;
  return took.count() * size_of(problem) / size_of(probe) *
         (reference + each * static_cast<double>(job.strategies.size()));
}

// Warns before a long run, so that nobody waits for what a shorter sequence would show as well.
void announce(const sim::AttentionJob& job, const AttentionProblem& problem) {
  constexpr double kLong = 30;  // seconds; chosen: whoever starts a run waits that long without wondering
  const auto seconds = expected_seconds(job, problem);
  if (!seconds || *seconds < kLong) return;
  fmt::print(stderr,
             "cpsim run: this takes up to about {}, most of it for the reference of one device in float64; a "
             "shorter "
             "sequence, for example --seq-len 4K, checks the same plans\n",
             sim::human_seconds(*seconds));
}

int run(const Flags& flags) {
  const proto::Scenario asked = scenario_of(flags.job, flags.recurrence);
  if (asked.has_recurrence() && flags.padding)
    throw InvalidInput(
        "--padding is of attention; every row of a recurrence belongs to a document: leave it out");
  if (asked.has_recurrence())
    return run_recurrence(asked.recurrence(), {flags.trace, flags.job.save_scenario, flags.json});
  const Job& scenario = asked.run();
  const sim::AttentionJob job = sim::make_attention_job(scenario);
  require_covered(job.problem, flags.job, flags.padding);
  sim::require_backward(scenario);
  const int cp = static_cast<int>(job.ranks.size());
  if (!flags.trace.empty() && job.strategies.size() != 1) {
    throw InvalidInput(str("--trace ", flags.trace, " holds one run, but ", job.strategies.size(),
                           " strategies were asked for; use --strategy with one of them"));
  }
  const auto refusal = refuse(job.problem, cp, job.strategies.front(), job.target);
  if (refusal && job.strategies.size() == 1) throw InvalidInput(refusal->reason);
  if (!flags.job.save_scenario.empty()) {
    proto::Scenario saved;
    *saved.mutable_run() = scenario;
    save_scenario_file(flags.job.save_scenario, saved);
  }
  std::vector<sim::StrategyOutcome> outcomes;
  {
    Progress progress(true);
    progress.show("computing the reference on one device");
    // Where the problem itself is what no kernel has, all alternatives share the nearest one that they do.
    const AttentionProblem& problem = refusal ? refusal->problem : job.problem;
    if (const auto free = sim::free_memory_bytes()) {
      sim::require_memory(problem, "one device's float64 tensors",
                          sim::test_data_bytes(problem, job.backward), *free);
    }
    announce(job, problem);
    const sim::AttentionTestData data(problem, job.seed);
    data.forward();
    for (const Strategy& strategy : job.strategies) {
      const std::string prefix =
          str(outcomes.size() + 1, " of ", job.strategies.size(), ": ", to_string(strategy, cp), ": ");
      outcomes.push_back(run_one(job, strategy, data, prefix, progress));
    }
  }
  if (!flags.trace.empty() && outcomes.front().run) {
    finish([&] { write_trace_file(flags.trace, outcomes.front().run->traces); });
  }
  fmt::print("{}", flags.json ? sim::report_json(job, outcomes).dump(2) + "\n"
                              : printable(sim::report_text(job, outcomes)));
  std::fflush(stdout);
  const auto error = error_of(outcomes);
  return error ? exit_code(*error) : kSuccess;
}

}  // namespace

Command add_run(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "run", "Run attention over a split sequence with data on simulated ranks, and check everything");
  const auto flags = std::make_shared<Flags>();
  add_problem_flags(app, flags->job, flags->padding);
  add_strategy_flags(app, flags->job);
  add_field(app, flags->job, "--strategies", "NAMES",
            "Several strategies, to compare them: all, or for example ring,ulysses",
            [](Job& job, Text text) { job.set_strategies(text); });
  add_recurrence_flags(app, flags->recurrence);
  add_run_flags(app, *flags);
  app.footer(
      "Examples: a ring of eight ranks, all strategies on an odd length, and a recurrent layer\n"
      "  cpsim run --mesh cp=8 --strategy ring --balance head_tail --seq-len 4096 --q-heads 8 --kv-heads 2 "
      "\\\n"
      "    --head-dim 64 --causal --backward\n"
      "  cpsim run --mesh cp=8 --strategies all --seq-len 1021 --q-heads 8 --kv-heads 2 --causal --backward\n"
      "  cpsim run --mesh cp=4 --recurrence delta --strategies all --seq-len 517 --key-heads 4 --value-heads "
      "8 "
      "--backward");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
