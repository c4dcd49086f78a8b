#include "cli/cprun/train/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/interrupt.h"
#include "cli/cprun/job/fabric_comparison.h"
#include "cli/cprun/job/rank.h"
#include "cli/cprun/job/trace_output.h"
#include "cli/cprun/train/training_report.h"
#include "runtime/backend.h"
#include "runtime/job_trace.h"
#include "runtime/joined_device.h"
#include "runtime/nccl/nccl_backend.h"
#include "runtime/rank_gpu.h"
#include "runtime/rank_run.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/compare_plans.h"
#include "shared/base/error.h"
#include "shared/transformer/parallel_layout.h"
#include "sim/planner/emit/small_training.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/training_threads.h"
#include "traces/scenario.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

using runtime::kAsLongAsItTakes;
using runtime::RendezvousClient;

// What a checkpoint may take between a SIGTERM and the end. Chosen: --grace sets it.
constexpr std::chrono::seconds kGrace{60};

// The training that the scenario, or the flags in its place, ask for.
proto::Train asked_for(const TrainFlags& flags) {
  if (flags.scenario.empty() == flags.model.empty())
    throw InvalidInput(
        flags.scenario.empty()
            ? "there is nothing to train; give a scenario with train { ... }, for example: cprun train "
              "examples/train/tiny.txtpb, or a model: cprun train --model llama-3.1-8b"
            : str("a scenario (", flags.scenario, ") and a model (", flags.model,
                  ") are given; give only one of them"));
  if (!flags.model.empty()) {
    const std::string layout = flags.layout.value_or("tp=1");
    return sim::small_training(flags.model,
                               value_of("--layout", layout, [&] { return parse_parallel_layout(layout); }));
  }
  const proto::Scenario scenario = read_scenario_file(flags.scenario);
  if (!scenario.has_train())
    throw InvalidInput(
        str(flags.scenario, " has no train { ... }; run it without the word train: cprun ", flags.scenario));
  return scenario.train();
}

// The losses of a run that is verified, in the folder of its traces.
std::string losses_file(const std::string& folder) { return folder + "/losses"; }

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::ofstream file(path);
  for (const double loss : losses) file << fmt::format("{:.17g}\n", loss);
}

std::vector<double> read_losses(const std::string& path) {
  std::ifstream file(path);
  std::vector<double> losses;
  for (double loss = 0; file >> loss;) losses.push_back(loss);
  return losses;
}

ReportOptions report_options(const TrainFlags& flags) { return {flags.log, flags.page, flags.terminal}; }

std::vector<std::string> rank_arguments(const TrainFlags& flags) {
  std::vector<std::string> words = {"train", "--as-rank"};
  if (!flags.scenario.empty()) words.push_back(flags.scenario);
  if (!flags.model.empty()) words.insert(words.end(), {"--model", flags.model});
  const auto add = [&](const char* flag, const auto& value) {
    if (value) words.insert(words.end(), {flag, str(*value)});
  };
  add("--layout", flags.layout), add("--save", flags.save), add("--init-from", flags.init_from);
  add("--tokenizer", flags.tokenizer), add("--documents", flags.documents);
  add("--steps", flags.steps), add("--save-every", flags.save_every), add("--keep", flags.keep);
  add("--evaluate-every", flags.evaluate_every), add("--seed", flags.seed);
  for (const std::string& text : flags.text) words.insert(words.end(), {"--text", text});
  if (!flags.log.empty()) words.insert(words.end(), {"--log", flags.log});
  if (!flags.page.empty()) words.insert(words.end(), {"--page", flags.page});
  if (flags.verify) words.emplace_back("--verify");
  if (isatty(STDOUT_FILENO) != 0) words.emplace_back("--terminal");
  return words;
}

// Whether the fabric does the same, and its losses are the same but for the order of sums.
int verify(const sim::TrainJob& job, const std::string& backend, const std::string& folder) {
  const std::vector<double> losses = read_losses(losses_file(folder));
  std::filesystem::remove(losses_file(folder));
  std::vector<RankTrace> measured = read_trace_path(folder).ranks;
  sim::ThreadedTraining simulated = sim::train_on_threads(job, {}, true);
  const bool identical = equals_fabric(std::move(simulated.traces), backend, std::move(measured));
  const std::vector<double>& expected = simulated.result.losses;
  if (losses.size() != expected.size())
    throw CheckFailure(str("the ranks made ", losses.size(), " steps, and the fabric ", expected.size()));
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i)
    most = std::max(most, std::abs(losses[i] - expected[i]) / std::abs(expected[i]));
  fmt::print("losses of {} steps differ by at most {:.2g} of them\n", losses.size(), most);
  // Chosen: sums of f32 in another order change a loss by less than 1e-6 in a step, and steps carry it on. A
  // rank that is left out changes it by percents.
  constexpr double kAllowed = 1e-3;
  if (most > kAllowed)
    throw CheckFailure(str("losses differ from the fabric's by more than ", kAllowed, " of them"));
  return identical ? kSuccess : exit_code(ErrorKind::check_failed);
}

int run_on_threads(const TrainFlags& flags) {
  const sim::TrainJob job = train_job(flags, std::nullopt);
  const InterruptScope scope;
  TrainFlags own = flags;
  own.terminal = isatty(STDOUT_FILENO) != 0;
  TrainingReport report(job, report_options(own));
  sim::TrainingOptions options;
  options.on_event = [&](const sim::TrainingEvent& event) { report.tell(event); };
  options.stops = [] { return InterruptScope::interrupted(); };
  const sim::ThreadedTraining training = sim::train_on_threads(job, options);
  return training.result.stopped ? kInterruptedExitCode : kSuccess;
}

// The device of one rank, its place in the job, and what it tells.
class TrainRank {
 public:
  TrainRank(const TrainFlags& flags, const runtime::JobEnvironment& job,
            std::shared_ptr<RendezvousClient> client)
      : flags_(flags),
        environment_(job),
        client_(std::move(client)),
        job_(train_job(flags, job.world_size)) {}

  // Returns whether it was stopped before all steps were made.
  bool run() {
    const InterruptScope scope;
    runtime::JoinedDevice device(environment_, client_, device_options());
    const std::int64_t clock_offset_ns = runtime::clock_offset_ns(*client_);
    const std::unique_ptr<DeviceMemory> memory = device.memory();
    if (environment_.rank == 0) report_.emplace(job_, report_options(flags_));
    RankTrace trace;
    trace.rank = environment_.rank, trace.clock_offset_ns = clock_offset_ns;
    sim::TrainingOptions options;
    options.gather = [&](const std::string& name, const std::string& own) {
      return client_->all_gather(name, own, kAsLongAsItTakes);
    };
    options.on_event = [&](const sim::TrainingEvent& event) { report_->tell(event); };
    options.stops = [] { return InterruptScope::interrupted(); };
    runtime::GroupPlanComparison comparison(*client_);
    options.before_use = [&](const Plan& plan) { comparison.compare(plan); };
    options.memory = memory.get();
    if (traces()) options.trace = &trace;
    const sim::TrainingResult result = sim::run_training(job_, device, options);
    if (traces()) leave_trace(device, trace, result);
    // Others may still wait for what this device sends.
    client_->barrier("trained", kAsLongAsItTakes);
    return result.stopped;
  }

 private:
  // Whether the launcher wants one, for itself (--verify) or for the user (--trace).
  bool traces() const { return !environment_.trace_folder.empty(); }

  runtime::JoinedDeviceOptions device_options() const {
    runtime::JoinedDeviceOptions options;
    // Stages have plans of their own.
    options.every_rank_prepares = job_.request.layout.pp == 1;
    options.traces = traces(), options.keeps_observed = traces();
    if (!runtime::find_backend(environment_.backend).on_gpus) return options;
    auto nccl = std::make_shared<runtime::NcclBackendOptions>();
    nccl->gpu = runtime::rank_gpu(environment_, *client_);
    nccl->on_refused_graph = [](const std::string& why) { std::fprintf(stderr, "note: %s\n", why.c_str()); };
    options.own = std::move(nccl);
    return options;
  }

  void leave_trace(runtime::JoinedDevice& device, RankTrace& trace, const sim::TrainingResult& result) {
    trace.environment =
        runtime::environment_of(environment_, runtime::library_versions(environment_.backend));
    trace.observed = device.take_observed();
    runtime::DeviceTimes times = device.take_times();
    trace.issued_times = std::move(times.steps), trace.observed_times = std::move(times.collectives);
    TraceFileWriter file(rank_trace_path(environment_.trace_folder, environment_.rank));
    file.append(trace);
    file.finish();
    if (flags_.verify && environment_.rank == 0)
      write_losses(losses_file(environment_.trace_folder), result.losses);
  }

  const TrainFlags& flags_;
  const runtime::JobEnvironment& environment_;
  std::shared_ptr<RendezvousClient> client_;
  const sim::TrainJob job_;
  std::optional<TrainingReport> report_;  // of rank 0
};

}  // namespace

FlagSet add_train(FlagSet cprun, TrainFlags& flags) {
  const FlagSet app = cprun.add_subcommand(
      "train", "Train a model: on processes, with checkpoints that any layout goes on from");
  app.fallthrough();
  app.add_option("scenario", flags.scenario, "Scenario with train { ... } (.txtpb)").type_name("SCENARIO");
  app.add_option("--model", flags.model,
                 "Instead of a scenario: a preset, scaled down, which is trained for 20 steps of sequences "
                 "of 128 tokens or as many as the layout splits")
      .type_name("NAME");
  const auto count = [&](const char* flag, std::optional<std::int64_t>& value, std::int64_t least,
                         const char* help) {
    add_value(app, flag, "N", help,
              [&value, flag, least](const std::string& text) { value = parse_whole(flag, text, least); });
  };
  app.add_option("--layout", flags.layout,
                 "Layout, instead of the scenario's; dp_shard=-1 in it is what is left of the processes")
      .type_name("LAYOUT");
  count("--steps", flags.steps, 1, "How many steps are made, those before a checkpoint included");
  app.add_option("--text", flags.text, "File whose text is trained on, or whose tokens (.u16, .u32)")
      .type_name("FILE")
      .one_value_each_time();
  app.add_option("--tokenizer", flags.tokenizer,
                 "Tokenizer of the text: a tokenizer.json, or the folder of a model that has one [bytes are "
                 "tokens]")
      .type_name("FILE");
  app.add_option("--documents", flags.documents,
                 "How documents are told apart, each of which is trained on for itself: file, blank_line, or "
                 "token: and the token that ends each [all texts are one]")
      .type_name("file|blank_line|token:T");
  app.add_option("--save", flags.save,
                 "Folder of checkpoints; if it has some, the training goes on from the newest")
      .type_name("FOLDER");
  count("--save-every", flags.save_every, 0, "Save behind each N-th step, not at the end alone");
  count("--keep", flags.keep, 1, "How many checkpoints are kept [2]");
  app.add_option("--init-from", flags.init_from,
                 "Folder with a model (model.safetensors) that the parameters begin with")
      .type_name("FOLDER");
  count("--evaluate-every", flags.evaluate_every, 0, "Evaluate behind each N-th step, not at the end alone");
  count("--seed", flags.seed, 0, "Seed of parameters and of the order of the text");
  app.add_option("--log", flags.log, "File to which a line of JSON is added for each step")
      .type_name("FILE.jsonl");
  app.add_option("--page", flags.page, "Page with curves to write").type_name("FILE.html");
  app.add_flag("--ranks-as-threads", flags.threads,
               "Ranks are threads of this process, on the simulated fabric");
  app.add_flag("--terminal", flags.terminal).group("");
  app.footer(
      "Ctrl-C or SIGTERM ends the training behind the step in hand, with a checkpoint; the same command "
      "goes\n"
      "on from it, on this layout or, with --layout and another --nproc-per-node, on another one. With\n"
      "--verify the fabric makes the same steps, and traces and losses are compared.\n"
      "Example:\n"
      "  cprun --nproc-per-node 4 train examples/train/tiny.txtpb --save runs/tiny\n"
      "  cprun --nproc-per-node 2 train examples/train/tiny.txtpb --save runs/tiny --layout tp=2 --steps "
      "300");
  return app;
}

sim::TrainJob train_job(const TrainFlags& flags, std::optional<int> ranks) {
  proto::Train train = asked_for(flags);
  if (flags.layout) train.set_layout(*flags.layout), train.clear_parallel_dims();
  if (ranks) sim::tell_world_size(train, *ranks);
  if (flags.steps) train.set_steps(*flags.steps);
  if (!flags.text.empty()) train.clear_text();
  for (const std::string& text : flags.text) train.add_text(std::filesystem::absolute(text).string());
  if (flags.save) train.set_save(*flags.save);
  if (flags.save_every) train.set_save_every(*flags.save_every);
  if (flags.keep) train.set_keep(static_cast<std::int32_t>(std::min<std::int64_t>(*flags.keep, 1 << 20)));
  if (flags.documents) train.set_documents(*flags.documents);
  if (flags.tokenizer) train.set_tokenizer(std::filesystem::absolute(*flags.tokenizer).string());
  if (flags.init_from) train.set_init_from(std::filesystem::absolute(*flags.init_from).string());
  if (flags.evaluate_every) train.set_evaluate_every(*flags.evaluate_every);
  if (flags.seed) train.set_seed(static_cast<std::uint64_t>(*flags.seed));
  if (flags.verify) train.clear_save();  // the fabric begins where the ranks do
  return sim::make_train_job(train, std::filesystem::path(flags.scenario).parent_path().string());
}

int run_train(TrainFlags& flags, LaunchRequest request) {
  std::optional<int> ranks;
  if (request.nproc_per_node > 0) ranks = request.nnodes * request.nproc_per_node;
  const sim::TrainJob job = train_job(flags, ranks);  // throws before anything is started
  if (flags.threads && (flags.verify || request.nproc_per_node > 0))
    throw InvalidInput("--ranks-as-threads starts no processes; leave --nproc-per-node and --verify out");
  if (flags.threads && !request.trace.empty())
    throw InvalidInput("--trace is of processes; leave --ranks-as-threads out");
  if (flags.threads) return run_on_threads(flags);
  if (flags.verify && !request.trace.empty())
    throw InvalidInput("--verify takes the ranks' traces itself; leave --trace out, or train once with each");
  if (request.checksums != Checksums::off)
    throw InvalidInput(
        "--checksums is not for cprun train; cprun --checksums=each runs a scenario of attention");
  if (request.nproc_per_node == 0 && request.nnodes == 1) request.nproc_per_node = job.world();
  if (const int given = request.nnodes * request.nproc_per_node; given != job.world())
    throw InvalidInput(str("the layout ", to_string(job.request.layout), " has ", job.world(), " ranks, and ",
                           given, " are started; use --nproc-per-node ", job.world() / request.nnodes,
                           ", or another layout (--layout)"));
  request.own_arguments = rank_arguments(flags);
  if (request.grace < kGrace) request.grace = kGrace;
  if (flags.verify)
    request.own_traces = [&](const std::string& folder) { return verify(job, request.backend, folder); };
  request.verify = false;
  return launch(request);
}

int run_train_rank(const TrainFlags& flags, const runtime::JobEnvironment& job) {
  bool stopped = false;
  const int code = run_in_job(job, [&](const std::shared_ptr<RendezvousClient>& client) {
    stopped = TrainRank(flags, job, client).run();
    return std::string();
  });
  return code == kSuccess && stopped ? kInterruptedExitCode : code;
}

}  // namespace cp::cli
