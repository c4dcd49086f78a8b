// cpsim plan: which layout a model should run with on a cluster, what it costs, whether it fits, and why not
// another.
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/plan/plan_files.h"
#include "cli/cpsim/plan/plan_flags.h"
#include "cli/cpsim/plan/plan_request.h"
#include "cli/cpsim/plan/plan_what_if.h"
#include "shared/base/error.h"
#include "sim/accuracy/validate/published_steps.h"
#include "sim/base/number_text.h"
#include "sim/base/stop.h"
#include "sim/cost/frameworks/framework.h"
#include "sim/planner/emit/emit.h"
#include "sim/planner/emit/small_training.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/layout_timeline.h"
#include "sim/planner/search/search.h"
#include "sim/present/page/report_html.h"
#include "sim/present/plan/answer_csv.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/headline.h"
#include "sim/present/plan/plan_explain.h"
#include "sim/present/plan/plan_screen.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/train_job.h"
#include "traces/scenario.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;

struct Flags {
  ScenarioFlags<Job> job;
  std::string explain, csv, report, emit, output;
  std::vector<std::string> compare;  // none, or two
  int threads = 0;
  bool json = false, brief = false;
  WhatIf what_if;

  // Whether another program reads standard output.
  bool prints_csv() const { return csv == "-"; }
  bool prints_emitted() const { return !emit.empty() && output.empty(); }
};

Job job_of(const Flags& flags) {
  Job job;
  if (!flags.job.scenario.empty()) job = read_scenario_of("plan", flags.job.scenario).plan();
  return sim::with_fixed_degrees(flags.job.apply_to(std::move(job)));
}

// Checks the outputs before the search, which takes long.
void check_outputs(const Flags& flags) {
  std::vector<std::string> printing;
  if (flags.json) printing.emplace_back("--json");
  if (flags.prints_csv()) printing.emplace_back("--csv -");
  if (flags.prints_emitted()) printing.emplace_back("--emit without --output");
  if (printing.size() > 1)
    throw InvalidInput(str(join(printing, " and "), " write to standard output; give only one of them"));
  if (!flags.output.empty() && flags.emit.empty()) {
    throw InvalidInput(str("--output ", flags.output, " needs --emit; add, for example, --emit megatron"));
  }
  if (flags.brief && (flags.json || !flags.explain.empty() || !flags.compare.empty())) {
    throw InvalidInput(str("--quiet shortens the first screen of the answer, which ",
                           flags.json               ? "--json"
                           : !flags.explain.empty() ? "--explain"
                                                    : "--compare",
                           " does not print; leave one of them out"));
  }
  if (!flags.compare.empty()) {
    for (const auto& [flag, given] : {std::pair{"--explain", !flags.explain.empty()},
                                      {"--csv", !flags.csv.empty()},
                                      {"--report", !flags.report.empty()},
                                      {"--emit", !flags.emit.empty()}}) {
      if (given)
        throw InvalidInput(
            str(flag,
                " does not go with --compare, which sets two layouts beside each other; leave one "
                "of them out"));
    }
  }
  if (!flags.explain.empty() && (!flags.csv.empty() || !flags.report.empty())) {
    throw InvalidInput(str(flags.csv.empty() ? "--report" : "--csv",
                           " shows all layouts and --explain one; leave one of them out"));
  }
  for (const auto& [flag, path] :
       {std::pair{"--csv", flags.csv}, {"--report", flags.report}, {"--output", flags.output}}) {
    if (!path.empty() && path != "-") require_writable(flag, path);
  }
}

// Warns on standard error, if another program reads standard output, or if there is no answer that could
// begin with the warnings.
void warn_on_stderr(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings)
    fmt::print(stderr, "cpsim plan: warning: {}\n", printable(warning));
}

std::string progress_text(const sim::SearchProgress& progress) {
  return str(sim::human_count(progress.layouts), " layouts, ", sim::human_count(progress.bounded),
             " bounded, ", sim::human_count(progress.replayed), " replayed",
             progress.best_us > 0 ? str(", best so far ", sim::human_us(progress.best_us)) : "");
}

sim::PlanAnswer search(const sim::PlanQuestion& question, int threads, Progress& progress) {
  sim::SearchOptions options;
  options.threads = threads;
  options.stop = &InterruptScope::flag();
  options.progress = [&](const sim::SearchProgress& so_far) { progress.show(progress_text(so_far)); };
  return sim::search_layouts(question, options);
}

// ---- handing a layout over ----

constexpr std::string_view kTrainOnThreads = "cprun train --ranks-as-threads",
                           kTrainVerified = "cprun --verify train";

// Whether --emit writes a training.
bool emits_training(const Flags& flags, const sim::PlanQuestion& question) {
  return flags.emit == sim::name(sim::Framework::cprun) && question.workload.phase == Phase::training;
}

// Writes the text for a framework. What the framework has no word for goes to standard error, so that the
// text alone is piped. Returns the exit code, which is that of Infeasible if what the text says does not fit.
int emit(const Flags& flags, const Job& job, const sim::PlanQuestion& question,
         const sim::Candidate& candidate) {
  const bool trains = emits_training(flags, question);
  const sim::Cluster& cluster = question.cluster;
  const sim::EmitContext context{job.model(),
                                 cluster.nodes,
                                 cluster.node.gpus,
                                 sim::fp8_products(question),
                                 question.unsaid,
                                 sim::memory_rules(question),
                                 sim::usable_bytes(question),
                                 question.software.linear_precision == sim::LinearPrecision::nvfp4,
                                 question.software.fp8_cache,
                                 static_cast<int>(question.software.max_ctas),
                                 sim::prediction(question.workload.phase, candidate)};
  const sim::Emitted emitted = value_of("--emit", flags.emit, [&] {
    return sim::emit(sim::parse_framework(flags.emit), question.model, question.workload, candidate.layout,
                     context);
  });
  // What is handed over runs: cprun would refuse it with the same words.
  if (trains) sim::make_train_job(read_scenario_text(emitted.text, "the emitted scenario").train());
  if (flags.prints_emitted()) {
    warn_on_stderr(question.warnings);
    fmt::print("{}", emitted.text);
    for (const std::string& cannot : emitted.cannot) fmt::print(stderr, "cpsim plan: --emit: {}\n", cannot);
    if (trains)
      fmt::print(stderr, "cpsim plan: --emit: {} FILE trains it; {} FILE also compares it with the fabric\n",
                 kTrainOnThreads, kTrainVerified);
  } else {
    write_text_file("--output", flags.output, emitted.text);
    fmt::print("emitted     {} for {}\n", flags.output, flags.emit);
    for (const std::string& cannot : emitted.cannot)
      fmt::print("            {}\n", sim::wrapped(cannot, 98, 12));
    if (!flags.explain.empty() && trains)
      fmt::print("next        {} {}\nruns        {} {}\n", kTrainVerified, quoted(flags.output),
                 kTrainOnThreads, quoted(flags.output));
  }
  if (emitted.fits) return 0;
  std::fflush(stdout);
  fmt::print(stderr,
             "cpsim plan: --emit {}: the layout that was written does not fit: what it says needs {} per "
             "GPU, and {} "
             "can be used; leave --explain out to write the best layout that {} can express\n",
             flags.emit, human_bytes(*emitted.needed_bytes), human_bytes(context.usable_bytes), flags.emit);
  return exit_code(ErrorKind::infeasible);
}

// The command that a person types next: it proves what was written, or asks more of the same question.
std::string next_command(const Flags& flags, const Job& job, const sim::PlanQuestion& question) {
  const bool scenario =
      flags.emit == sim::name(sim::Framework::cprun) || flags.emit == sim::name(sim::Framework::attention);
  if (scenario && !flags.output.empty())
    return str(emits_training(flags, question) ? kTrainVerified : "cpsim run --scenario", " ",
               quoted(flags.output));
  const std::string same = flags.job.save_scenario.empty()
                               ? plan_command(job)
                               : str("cpsim plan --scenario ", flags.job.save_scenario);
  if (flags.report.empty()) return str(same, " --report plan.html");
  const bool trains = question.workload.phase == Phase::training;
  return str(same, " --emit cprun -o ", trains ? "train" : "attention", ".txtpb");
}

// The command that trains the layout, in small; nothing if there is none.
std::string run_command(const Flags& flags, const Job& job, const sim::PlanAnswer& answer) {
  if (answer.best.empty() || answer.question.workload.phase != Phase::training) return "";
  if (emits_training(flags, answer.question) && !flags.output.empty())
    return str(kTrainOnThreads, " ", quoted(flags.output));
  return str(kTrainOnThreads, " --model ", quoted(job.model()), " --layout ",
             quoted(to_string(answer.best.front().layout)));
}

// ---- the two answers ----

sim::SearchOptions quiet(int threads) {
  sim::SearchOptions options;
  options.threads = threads;
  options.stop = &InterruptScope::flag();
  return options;
}

// Calls answer(); if it was interrupted, the process ends, since there is nothing half done to show.
template <class Answer>
auto unless_interrupted(const Answer& answer) {
  try {
    const InterruptScope interrupts;
    const sim::StopScope stop(&InterruptScope::flag());
    auto result = answer();
    if (!InterruptScope::interrupted()) return result;
  } catch (const sim::Stopped&) {
  }
  end_interrupted();
}

// Returns the best layout of all; or nothing if nothing fits, since an explanation says that better.
std::optional<sim::Candidate> best_of(const sim::PlanQuestion& question, int threads) {
  try {
    Progress progress;
    const sim::PlanAnswer answer = search(question, threads, progress);
    if (!answer.best.empty()) return answer.best.front();
  } catch (const Infeasible&) {
  }
  return std::nullopt;
}

int explain(const Flags& flags, const Job& job, const sim::PlanQuestion& question,
            const sim::PartialLayout& asked) {
  const sim::LayoutVerdict verdict = unless_interrupted([&] {
    sim::Completion completion = sim::complete(question, asked, quiet(flags.threads));
    const bool beside_best = completion.candidate && !flags.prints_emitted();
    auto best = beside_best ? best_of(question, flags.threads) : std::nullopt;
    return sim::judge(question, asked.text, std::move(completion), std::move(best));
  });
  const auto& candidate = verdict.completion.candidate;
  if (!flags.prints_emitted()) {
    fmt::print("{}", flags.json ? str(sim::explanation_json(question, verdict), "\n")
                                : printable(sim::explanation_text(question, verdict)));
  }
  if (flags.emit.empty()) return 0;
  if (!candidate) throw InvalidInput(sim::explanation_text(question, verdict));
  return emit(flags, job, question, *candidate);
}

int compare(const Flags& flags, const sim::PlanQuestion& question) {
  std::array<sim::PartialLayout, 2> asked;
  for (std::size_t i = 0; i < 2; ++i)
    asked[i] = parse_partial_layout(question, "--compare", flags.compare[i]);
  const auto verdicts = unless_interrupted([&] {
    std::array<sim::LayoutVerdict, 2> both;
    for (std::size_t i = 0; i < 2; ++i)
      both[i] = sim::judge(question, asked[i].text, sim::complete(question, asked[i], quiet(flags.threads)),
                           std::nullopt);
    return both;
  });
  fmt::print("{}", flags.json ? str(sim::comparison_json(question, verdicts), "\n")
                              : printable(sim::comparison_text(question, verdicts)));
  return 0;
}

// Adds what the search leaves out: measurements and, for those who show it, the timeline.
void complete(sim::PlanAnswer& answer, bool with_charts, Progress& progress) {
  progress.show("predicting what was measured");
  answer.nearest =
      sim::nearest_measurement(answer.question, answer.best.empty() ? nullptr : &answer.best.front().layout);
  if (!with_charts) return;
  answer.published = sim::published_measurements();
  progress.show("the timeline of the best");
  if (!answer.best.empty())
    answer.timeline = sim::layout_timeline(answer.question, answer.best.front().layout);
}

void print(const Flags& flags, const sim::PlanAnswer& answer) {
  if (flags.prints_csv()) {
    warn_on_stderr(answer.warnings);
    return fmt::print("{}", sim::to_csv(answer));
  }
  if (flags.json) return fmt::print("{}\n", sim::to_json(answer));
  if (flags.prints_emitted()) return;
  fmt::print("{}", printable(sim::plan_screen(answer, flags.brief)));
  if (!flags.report.empty()) fmt::print("report      {}\n", flags.report);
}

int answer(const Flags& flags, const Job& job, const sim::PlanQuestion& question) {
  sim::PlanAnswer answer;
  bool interrupted = false;
  {
    const InterruptScope interrupts;
    Progress progress;
    answer = search(question, flags.threads, progress);
    const sim::StopScope stop(&InterruptScope::flag());
    try {
      if (!InterruptScope::interrupted()) complete(answer, flags.json || !flags.report.empty(), progress);
    } catch (const sim::Stopped&) {
      // The answer itself is complete; only what stands beside it is missing.
    }
    interrupted = InterruptScope::interrupted();
  }
  answer.next_command = next_command(flags, job, question);
  answer.run_command = run_command(flags, job, answer);
  if (!flags.csv.empty() && !flags.prints_csv()) write_text_file("--csv", flags.csv, sim::to_csv(answer));
  if (!flags.report.empty()) write_text_file("--report", flags.report, sim::report_html(answer));
  print(flags, answer);
  int code = 0;
  if (!flags.emit.empty() && !answer.best.empty()) code = emit(flags, job, question, answer.best.front());
  std::fflush(stdout);
  return interrupted ? kInterruptedExitCode : code;
}

void save_scenario(const Flags& flags, const Job& job) {
  if (flags.job.save_scenario.empty()) return;
  proto::Scenario saved;
  *saved.mutable_plan() = job;
  save_scenario_file(flags.job.save_scenario, saved);
}

// The flags of the plan itself that are given.
std::vector<std::string> own_outputs(const Flags& flags) {
  std::vector<std::string> given;
  if (!flags.explain.empty()) given.emplace_back("--explain");
  if (!flags.compare.empty()) given.emplace_back("--compare");
  if (!flags.report.empty()) given.emplace_back("--report");
  if (!flags.emit.empty()) given.emplace_back("--emit");
  return given;
}

int run(const Flags& flags) {
  check_outputs(flags);
  const WhatIfOutput output{flags.json, flags.brief, flags.csv};
  check(flags.what_if, output, own_outputs(flags));
  const Job job = job_of(flags);
  if (!flags.what_if.asked().empty()) {
    save_scenario(flags, job);
    return answer_what_if(flags.what_if, job, flags.threads, output);
  }
  std::optional<sim::Framework> emitted;
  if (!flags.emit.empty())
    emitted = value_of("--emit", flags.emit, [&] { return sim::parse_framework(flags.emit); });
  const sim::PlanQuestion question = make_plan_question(job, emitted);
  if (!job.baseline().empty() && (!flags.explain.empty() || !flags.compare.empty())) {
    throw InvalidInput(str("--baseline ", job.baseline(),
                           " compares with the whole answer, which is not printed here; ",
                           flags.explain.empty() ? "leave it out, since --compare names both layouts"
                                                 : str("to set two layouts beside each other use --compare ",
                                                       flags.explain, " ", job.baseline())));
  }
  std::optional<sim::PartialLayout> explained;
  if (!flags.explain.empty()) explained = parse_partial_layout(question, "--explain", flags.explain);
  save_scenario(flags, job);
  if (!flags.compare.empty()) return compare(flags, question);
  if (explained) return explain(flags, job, question, *explained);
  try {
    return answer(flags, job, question);
  } catch (const Infeasible&) {
    warn_on_stderr(question.warnings);  // a model that is not the one that was meant may be why nothing fits
    throw;
  }
}

}  // namespace

Command add_plan(FlagSet cpsim) {
  const FlagSet app =
      cpsim.add_subcommand("plan", "Find the parallel layout that a model should run with on a cluster");
  const auto flags = std::make_shared<Flags>();
  add_plan_flags(app, flags->job);
  add_scenario_files(app, flags->job);
  app.add_option("--explain", flags->explain,
                 "Explain this layout instead: why it is rejected, too large or slower; keys that it does "
                 "not give are "
                 "searched")
      .type_name("LAYOUT");
  app.add_option("--compare", flags->compare, "Compare two layouts instead, part by part")
      .type_name("LAYOUT")
      .expected(2);
  add_value(app, "--threads", "N", "How many threads search [one per core]",
            [flags](const std::string& text) {
              flags->threads = static_cast<int>(parse_whole("--threads", text, 1, 1024));
            });
  app.add_flag("--json", flags->json, "Print JSON");
  app.add_flag("--quiet", flags->brief,
               "Print only the answer, the best layouts, the memory that is left and warnings");
  app.add_option("--csv", flags->csv,
                 "Write all layouts that were replayed, or the rows of another question, to this file; - "
                 "prints them instead of the answer")
      .type_name("FILE|-");
  app.add_option("--report", flags->report,
                 "Write a page with charts to this file, which needs no other file and no network")
      .type_name("FILE.html");
  app.add_option(
         "--emit", flags->emit,
         "Write the configuration of a framework (megatron, torchtitan, deepspeed, vllm or cprun): the best "
         "layout that it can express, or that of --explain. Of cprun it is a training in small; attention "
         "writes a layer's attention at full size. The exit code is 20 if the result does not fit")
      .type_name("FRAMEWORK");
  app.add_output(flags->output, "FILE",
                 "Write what --emit makes to this file [printed instead of the answer]", "");
  const char* what_if = "Other questions (one at a time)";
  app.add_option("--sweep", flags->what_if.sweep,
                 "Find the best layout for each value, in a list or a range that doubles, of seq-len, "
                 "global-batch, nodes, gpus, cluster, ...")
      .type_name("nodes=1,2,4|seq-len=32K..1M|cluster=A,B")
      .group(what_if);
  app.add_option("--maximize", flags->what_if.maximize, "Find how long a sequence can be")
      .type_name("seq-len")
      .group(what_if);
  app.add_option("--minimize", flags->what_if.minimize,
                 "Find how few GPUs are enough, up to --nodes or --gpus [1024 nodes]")
      .type_name("gpus")
      .group(what_if);
  add_value(
      app, "--step-time-max", "TIME",
      "With --minimize: a step (when serving: the first token, or a token) takes no longer than this, for "
      "example 10s",
      [flags](const std::string& text) {
        const double ms = parse_ms("--step-time-max", text);
        if (!(ms > 0)) {
          throw InvalidInput(
              str("--step-time-max ", text, " is out of range; use a time above 0, for example 10s"));
        }
        flags->what_if.step_time_max_ms = ms;
      })
      .group(what_if);
  add_value(app, "--tokens-per-s-min", "N",
            "With --minimize: all GPUs together compute at least so many tokens a second",
            [flags](const std::string& text) {
              const double rate = parse_real("--tokens-per-s-min", text);
              if (!(rate > 0))
                throw InvalidInput(str("--tokens-per-s-min ", text,
                                       " is out of range; use a rate above 0, for example 50000"));
              flags->what_if.tokens_per_s_min = rate;
            })
      .group(what_if);
  app.add_flag("--sensitivity", flags->what_if.sensitivity,
               "Show what becomes of the best layout if each rate is 10 % slower or faster")
      .group(what_if);
  app.add_flag("--next-experiment", flags->what_if.next_experiment,
               "Show which measurement would change the choice most, and what to do with its answer")
      .group(what_if);
  app.footer(
      "Examples: train at 131,072 tokens on two nodes; ask why not another layout; serve\n"
      "  cpsim plan --model llama-3.1-8b --nodes 2 --seq-len 128K --global-batch 16 --report plan.html\n"
      "  cpsim plan --model llama-3.1-8b --nodes 2 --seq-len 128K --global-batch 16 \\\n"
      "    --explain tp=8,cp=2\n"
      "  cpsim plan --model path/config.json --cluster hgx-h200 --phase decode --cached 128K --concurrent "
      "16");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
