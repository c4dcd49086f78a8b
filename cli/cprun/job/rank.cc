#include "cli/cprun/job/rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "cli/cprun/nccl_options.h"
#include "cli/cprun/job/running_trace.h"
#include "cli/cprun/job/trace_output.h"
#include "cli/common/exit_codes.h"
#include "cli/cprun/job/rank_job.h"
#include "sim/present/units.h"
#include "runtime/joined_device.h"
#include "runtime/rank_gpu.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/compare_plans.h"
#include "runtime/rendezvous/compare_transfers.h"
#include "shared/base/error.h"
#include "shared/base/version.h"
#include "shared/plan/execute.h"
#include "traces/environment.h"
#include "traces/scenario.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

using runtime::RendezvousClient;

// For waits that may be as long as another rank's work: a rank that is lost shows by its heartbeats.
constexpr RendezvousClient::TimeLimit kAsLongAsItTakes = std::chrono::hours(24 * 365);

class RankProgram {
 public:
  RankProgram(const RankOptions& options, const runtime::JobEnvironment& job,
              std::shared_ptr<RendezvousClient> client)
      : options_(options), job_(job), client_(std::move(client)) {}

  // What rank 0 is to say of all.
  std::string run() {
    proto::Scenario scenario = read_scenario_file(options_.scenario);
    if (job_.backend == runtime::Backend::nccl) {
      gpu_ = runtime::rank_gpu(job_, *client_);
      name_target(scenario, *gpu_);
    }
    const auto rank_job = make_rank_job(scenario, job_.rank);
    open_trace(scenario);
    for (std::size_t pass = 0; pass < rank_job->inputs().size(); ++pass) compare_plans(*rank_job, pass);
    connect(scenario, rank_job->passes().size() == rank_job->inputs().size());
    std::vector<double> seconds;
    for (std::size_t pass = 0; pass < rank_job->inputs().size(); ++pass) {
      RankTrace observed;  // of a rank without a part: nothing
      observed.rank = job_.rank;
      if (pass < rank_job->passes().size()) seconds.push_back(run_pass(*rank_job, pass, observed));
      if (options_.checksums != Checksums::off)
        runtime::compare_transfers(*client_, observed, kAsLongAsItTakes);
    }
    if (options_.check_results) check(*rank_job);
    if (trace_) trace_->finish();
    return report(seconds);
  }

 private:
  // Plans are for the GPU that runs them, unless the scenario says for which.
  static void name_target(proto::Scenario& scenario, const runtime::RankGpu& gpu) {
    std::string& target = scenario.has_run() ? *scenario.mutable_run()->mutable_target()
                                             : *scenario.mutable_redistribute()->mutable_target();
    if (!target.empty()) return;
    if (!gpu.targets_differ.empty()) {
      throw InvalidInput(str("the ranks' GPUs have different targets: ", gpu.targets_differ,
                             "; plans are for one, so name it in the scenario, as in target: \"",
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
    environment.backend = name(job_.backend);
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

  // A rank without a part knows what the plans are made from all the same.
  void compare_plans(const RankJob& rank_job, std::size_t pass) {
    runtime::PlanDigests digests{rank_job.inputs()[pass], {}};
    if (pass < rank_job.passes().size()) digests = runtime::plan_digests(rank_job.passes()[pass]);
    runtime::compare_plans(*client_, digests, kAsLongAsItTakes);
  }

  void connect(const proto::Scenario& scenario, bool has_part) {
    const std::vector<std::string> parts =
        client_->all_gather("connect", has_part ? "part" : "", kAsLongAsItTakes);
    runtime::JoinedDeviceOptions options;
    options.gpu = gpu_;
    options.communicators = nccl_options(scenario.nccl());
    options.checksums = options_.checksums;
    options.on_collective_end = [this](const runtime::CollectiveEnd& end) {
      if (trace_ && end.observed != nullptr) trace_->observed(*end.observed);
    };
    runs_on_all_ = std::find(parts.begin(), parts.end(), "") == parts.end();
    options.every_rank_prepares = runs_on_all_;
    device_.emplace(job_, client_, std::move(options));
    align_clocks();
  }

  // Times of a trace count from the device on; ranks' hosts agree on the time of day as well as they do.
  void align_clocks() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::int64_t own = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    std::int64_t first = own;
    for (const std::string& text : client_->all_gather("clock", std::to_string(own), kAsLongAsItTakes))
      first = std::min(first, parse_int(text, "clock"));
    clock_offset_ns_ = own - first;
  }

  double run_pass(RankJob& rank_job, std::size_t pass, RankTrace& trace) {
    const Plan& plan = rank_job.passes()[pass];
    const Bindings bindings = rank_job.bind(pass);
    trace.clock_offset_ns = clock_offset_ns_;
    if (trace_) trace_->begin_pass(trace);
    double seconds = 0;
    try {
      seconds = execute_on_host_buffers(plan, bindings, trace);
    } catch (const Error&) {
      end_failed_pass(trace);
      throw;
    }
    trace.observed = device_->take_observed();
    trace.digests = rank_job.digests(pass);
    take_times(trace);
    if (trace_) trace_->end_pass();
    steps_ += trace.issued.size(), collectives_ += trace.observed.size();
    return seconds;
  }

  void take_times(RankTrace& trace) {
    runtime::DeviceTimes times = device_->take_times();
    trace.issued_times = std::move(times.steps), trace.observed_times = std::move(times.collectives);
  }

  // What it did until then. The first error is the one to tell.
  void end_failed_pass(RankTrace& trace) {
    if (!trace_) return;
    try {
      trace.observed = device_->take_observed();
      if (device_->host_memory()) take_times(trace);  // a GPU may be lost, and not answer
      trace_->end_pass();
    } catch (const Error&) {
    }
  }

  // Seconds of the steps alone, without copies to and from the device, and on GPUs without what only the first run does.
  double execute_on_host_buffers(const Plan& plan, const Bindings& bindings, RankTrace& trace) {
    const bool copies = !device_->host_memory();
    const auto is = [&plan](const Binding& binding, BufferKind kind) {
      return plan.buffers[static_cast<std::size_t>(binding.buffer)].kind == kind;
    };
    const auto upload = [&](const auto& wanted) {
      for (const Binding& binding : bindings) {
        if (!copies || !wanted(binding)) continue;
        device_->upload(binding.buffer, {static_cast<const std::byte*>(binding.data),
                                         static_cast<std::size_t>(binding.size_bytes)});
      }
    };
    device_->prepare(plan, copies ? Bindings{} : bindings);
    upload([&](const Binding& binding) { return !is(binding, BufferKind::output); });
    if (copies && options_.warm_up) {
      warm_up(plan);
      upload([&](const Binding& binding) { return is(binding, BufferKind::inout); });
      if (runs_on_all_) client_->barrier("run", kAsLongAsItTakes);  // no rank's time holds another's copies
    }
    const auto begin = std::chrono::steady_clock::now();
    enqueue_steps(plan, *device_, &trace);
    if (trace_) trace_->issued();
    device_->synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const Binding& binding : bindings) {
      if (!copies || is(binding, BufferKind::input)) continue;
      device_->download(binding.buffer, {static_cast<std::byte*>(binding.data),
                                         static_cast<std::size_t>(binding.size_bytes)});
    }
    return seconds;
  }

  // NCCL connects ranks in their first collectives, and CUDA loads a kernel when it is launched first. Leaves nothing in the trace.
  void warm_up(const Plan& plan) {
    enqueue_steps(plan, *device_);
    device_->synchronize();
    device_->take_observed();
    device_->take_times();
  }

  void check(const RankJob& rank_job) const {
    const std::vector<std::string> findings = rank_job.findings();
    if (!findings.empty()) throw CheckFailure(join(findings, "; "));
  }

  // What all did, and how long the slowest took; of other ranks nothing.
  std::string report(const std::vector<double>& seconds) {
    const std::vector<std::string> all = client_->all_gather(
        "report", str(join(seconds, " "), ";", steps_, ";", collectives_), kAsLongAsItTakes);
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
    return fmt::format("{} ranks on {}: {} steps, {} collectives in {}{}{}\n", all.size(), name(job_.backend),
                       steps, collectives, join(times, " and "),
                       options_.check_results ? "; results are one device's" : "",
                       options_.checksums != Checksums::off ? "; every payload arrived as it was sent" : "");
  }

  const RankOptions& options_;
  const runtime::JobEnvironment& job_;
  std::shared_ptr<RendezvousClient> client_;
  std::optional<RunningTrace> trace_;
  std::int64_t clock_offset_ns_ = 0;
  bool runs_on_all_ = false;             // every rank has a part
  std::optional<runtime::RankGpu> gpu_;  // of the nccl backend
  std::optional<runtime::JoinedDevice> device_;
  std::size_t steps_ = 0, collectives_ = 0;
};

int fail(RendezvousClient* client, Rank rank, ErrorKind kind, const std::string& message) {
  if (client != nullptr) {
    if (const auto cause = client->failure(); cause && cause->rank != rank) {
      fmt::print(stderr, "stopped: {}\n", to_string(*cause));
      return exit_code(ErrorKind::peer_lost);
    }
    client->report_failure(kind, message);
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
                "out of memory; use a smaller tensor, or more ranks");
  }
}

int run_rank(const RankOptions& options, const runtime::JobEnvironment& job) {
  return run_in_job(job, [&](const std::shared_ptr<RendezvousClient>& client) {
    return RankProgram(options, job, client).run();
  });
}

}  // namespace cp::cli
