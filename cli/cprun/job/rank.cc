#include "cli/cprun/job/rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/cprun/job/running_trace.h"
#include "cli/cprun/job/trace_output.h"
#include "cli/cprun/nccl_options.h"
#include "runtime/backend.h"
#include "runtime/nccl/nccl_backend.h"
#include "runtime/rank_gpu.h"
#include "runtime/rank_run.h"
#include "runtime/rendezvous/client.h"
#include "runtime/this_host.h"
#include "shared/base/error.h"
#include "shared/base/version.h"
#include "sim/base/number_text.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/rank_job.h"
#include "traces/environment.h"
#include "traces/scenario.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

using runtime::kAsLongAsItTakes;
using runtime::RendezvousClient;

class RankProgram {
 public:
  RankProgram(const RankOptions& options, const runtime::JobEnvironment& job,
              std::shared_ptr<RendezvousClient> client)
      : options_(options), job_(job), client_(std::move(client)) {}

  // Returns what rank 0 shall print about all ranks; other ranks return an empty text.
  std::string run() {
    proto::Scenario scenario = read_scenario_file(options_.scenario);
    sim::tell_world_size(scenario, job_.world_size);
    if (runtime::find_backend(job_.backend).on_gpus) {
      gpu_ = runtime::rank_gpu(job_, *client_);
      name_target(scenario, *gpu_);
    }
    const auto rank_job = sim::make_rank_job(scenario, job_.rank);
    open_trace(scenario);
    run_.emplace(job_, client_, run_options(scenario));
    const runtime::RankRunResult result = run_->run(*rank_job);
    if (options_.check_results) check(*rank_job);
    if (trace_) trace_->finish();
    return report(result);
  }

 private:
  // Plans are for the GPU that runs them, unless the scenario says for which.
  static void name_target(proto::Scenario& scenario, const runtime::RankGpu& gpu) {
    std::string& target = sim::target_field(scenario);
    if (!target.empty()) return;
    if (!gpu.targets_differ.empty()) {
      throw InvalidInput(
          str("the ranks' GPUs have different targets: ", gpu.targets_differ,
              "; a plan is made for one target, so name it in the scenario, for example target: \"",
              gpu.target->name, "\""));
    }
    target = gpu.target->name;
  }

  void open_trace(const proto::Scenario& scenario) {
    if (options_.trace_folder.empty()) return;
    trace_.emplace(rank_trace_path(options_.trace_folder, job_.rank));
    if (job_.rank == 0)
      std::ofstream(ran_scenario_path(options_.trace_folder)) << write_scenario_text(scenario);
    EnvironmentOptions environment;
    environment.host = runtime::host_name();
    environment.backend = job_.backend;
    environment.libraries = runtime::library_versions(job_.backend);
    if (gpu_) environment.libraries["gpu"] = gpu_->name;
    environment.cpsim_version = CP_VERSION;
    environment.world_size = job_.world_size;
    environment.scenario_text = write_scenario_text(scenario);
    environment.hash_host = options_.hash_host;
    environment.host_salt = job_.token;
    RankTrace first;
    first.rank = job_.rank;
    first.environment = this_environment(environment);
    trace_->append(first);
  }

  runtime::RankRunOptions run_options(const proto::Scenario& scenario) {
    runtime::RankRunOptions options;
    auto nccl = std::make_shared<runtime::NcclBackendOptions>();
    nccl->gpu = gpu_, nccl->communicators = nccl_options(scenario.nccl(), options_.software);
    nccl->graphs = options_.cuda_graphs;
    nccl->on_refused_graph = [](const std::string& why) { std::fprintf(stderr, "note: %s\n", why.c_str()); };
    options.device.own = std::move(nccl);
    options.device.checksums = options_.checksums;
    options.warm_up = options_.warm_up;
    options.kept = options_.cuda_graphs;
    if (!trace_) return options;
    options.device.on_collective_end = [this](const runtime::CollectiveEnd& end) {
      if (end.observed != nullptr) trace_->observed(*end.observed);
    };
    options.begin_pass = [this](const RankTrace& pass) { trace_->begin_pass(pass); };
    options.issued = [this](const RankTrace&) { trace_->issued(); };
    options.end_pass = [this](const RankTrace&) { trace_->end_pass(); };
    return options;
  }

  static void check(const sim::RankJob& rank_job) {
    const std::vector<std::string> findings = rank_job.findings();
    if (!findings.empty()) throw CheckFailure(join(findings, "; "));
  }

  // What all did, and how long the slowest took; of other ranks nothing.
  std::string report(const runtime::RankRunResult& result) {
    const std::vector<std::string> all = client_->all_gather(
        "report", str(join(result.seconds, " "), ";", result.steps, ";", result.collectives),
        kAsLongAsItTakes);
    if (job_.rank != 0) return "";
    std::vector<double> slowest;
    std::int64_t steps = 0, collectives = 0;
    for (const std::string& one : all) {
      const std::vector<std::string_view> parts = split(one, ';');
      steps += parse_int(parts[parts.size() - 2], "steps"),
          collectives += parse_int(parts.back(), "collectives");
      if (parts.size() < 3) continue;  // no part in the plans
      std::size_t pass = 0;
      for (const std::string_view text : split(parts.front(), ' ')) {
        slowest.resize(std::max(slowest.size(), pass + 1));
        slowest[pass] = std::max(slowest[pass], std::stod(std::string(text)));
        ++pass;
      }
    }
    std::vector<std::string> times;
    for (const double pass : slowest) times.push_back(sim::human_seconds(pass));
    // An attention with gradients has two passes, and a redistribution has one.
    const std::string took =
        times.size() == 2 ? str(times[0], " forward and ", times[1], " backward") : join(times, " and ");
    return fmt::format("{} ranks on {}: {} steps, {} collectives in {}{}{}\n", all.size(), job_.backend,
                       steps, collectives, took,
                       options_.check_results ? "; the results equal those of one device" : "",
                       options_.checksums != Checksums::off ? "; every payload arrived as it was sent" : "");
  }

  const RankOptions& options_;
  const runtime::JobEnvironment& job_;
  std::shared_ptr<RendezvousClient> client_;
  std::optional<RunningTrace> trace_;
  std::optional<runtime::RankGpu> gpu_;  // of a backend on GPUs
  std::optional<runtime::RankRun> run_;  // its device stays until all ranks have reported
};

// Returns whether another rank has already told the job of the same mistake. A mistake in a scenario, or in
// how a machine is set up, mostly concerns all ranks, and they find it at the same time. One of them is
// enough to say so.
bool is_told_by_another(RendezvousClient& client, Rank rank, ErrorKind kind, const std::string& message) {
  if (kind != ErrorKind::invalid_input) return false;
  // Both times are chosen. The server answers a report within milliseconds, so 2 s are ample; each 5 ms the
  // answer is looked for, which costs nothing.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!client.failure() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto cause = client.failure();
  return cause && cause->rank != rank && cause->message == message;
}

int fail(RendezvousClient* client, Rank rank, ErrorKind kind, const std::string& message) {
  if (client != nullptr) {
    // The rank that failed and the launcher tell the cause; all other ranks would only repeat it.
    if (const auto cause = client->failure(); cause && cause->rank != rank)
      return exit_code(ErrorKind::peer_lost);
    client->report_failure(kind, message);
    if (is_told_by_another(*client, rank, kind, message)) return exit_code(ErrorKind::peer_lost);
  }
  fmt::print(stderr, "{}\n", message);
  return exit_code(kind);
}

}  // namespace

int run_in_job(const runtime::JobEnvironment& job,
               const std::function<std::string(const std::shared_ptr<RendezvousClient>&)>& work) {
  std::shared_ptr<RendezvousClient> client;
  try {
    client = runtime::join(job);
    const std::string words = work(client);
    client->goodbye();
    if (!words.empty()) fmt::print("{}", words);
    std::fflush(stdout);
    return kSuccess;
  } catch (const Error& error) {
    return fail(client.get(), job.rank, error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(client.get(), job.rank, ErrorKind::invalid_input,
                "this rank has no memory left; use a smaller tensor, or more ranks");
  }
}

int run_rank(const RankOptions& options, const runtime::JobEnvironment& job) {
  return run_in_job(job, [&](const std::shared_ptr<RendezvousClient>& client) {
    return RankProgram(options, job, client).run();
  });
}

}  // namespace cp::cli
