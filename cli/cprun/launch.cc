#include "cli/cprun/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <sys/resource.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/printable.h"
#include "cli/cprun/job/fabric_comparison.h"
#include "cli/cprun/job/rank.h"
#include "cli/cprun/job/rank_memory.h"
#include "cli/cprun/job/trace_output.h"
#include "cli/cprun/nccl_options.h"
#include "runtime/backend.h"
#include "runtime/job_environment.h"
#include "runtime/launcher/cause.h"
#include "runtime/launcher/launcher.h"
#include "runtime/progress_page.h"
#include "runtime/rendezvous/authentication.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/endpoint.h"
#include "runtime/rendezvous/own_address.h"
#include "runtime/rendezvous/server.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/rank_job.h"
#include "traces/scenario.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

namespace fs = std::filesystem;

int world_size(const LaunchRequest& request, const std::optional<proto::Scenario>& scenario) {
  if (!scenario) return request.nnodes * std::max(1, request.nproc_per_node);
  const int needed = sim::world_size_of(*scenario);
  const int given = request.nproc_per_node == 0 ? needed : request.nnodes * request.nproc_per_node;
  if (given == needed && needed % request.nnodes == 0) return needed;
  if (needed % request.nnodes != 0) {
    throw InvalidInput(str("the scenario needs ", needed, " ranks, which cannot be divided evenly among ",
                           request.nnodes, " machines; use --nnodes 1 --nproc-per-node ", needed));
  }
  throw InvalidInput(str("the scenario needs ", needed, " ranks, but --nproc-per-node ",
                         request.nproc_per_node, " starts ", given,
                         request.nnodes > 1 ? str(" on ", request.nnodes, " machines") : "",
                         "; use --nproc-per-node ", needed / request.nnodes));
}

// Returns the secret of the job if the environment has one, and else null.
const char* token_variable() {
  const char* token = std::getenv("CPRUN_TOKEN");
  return token != nullptr && *token != '\0' ? token : nullptr;
}

std::string token_of(const LaunchRequest& request) {
  if (!request.token_file.empty()) return runtime::read_token_file(request.token_file);
  return request.nnodes > 1 ? token_variable() : runtime::make_token();
}

// Reads "10.0.0.1:29500" or "[::1]:29500". On one machine the port may be 0, which takes any port that is
// free.
std::pair<std::string, std::uint16_t> parse_endpoint(const std::string& text, int nnodes) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw InvalidInput(str("--rdzv-endpoint ", text, " has no port; use, for example, ",
                           text.empty() ? "10.0.0.1" : text, ":29500"));
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port =
      static_cast<std::uint16_t>(parse_whole("--rdzv-endpoint", text.substr(colon + 1), 0, 65535));
  if (port == 0 && nnodes > 1) {
    throw InvalidInput(str("--rdzv-endpoint ", text, ": port 0 takes any free port, and with --nnodes ",
                           nnodes, " the other machines cannot know which one; choose a port, for example ",
                           host, ":29500"));
  }
  return {host, port};
}

void check(const LaunchRequest& request) {
  const runtime::Backend& backend = runtime::require_backend(request.backend);
  if (request.allow_shared_gpu && !backend.on_gpus)
    throw InvalidInput(
        "--allow-shared-gpu needs a backend that runs on GPUs; add --backend nccl, or leave "
        "--allow-shared-gpu out");
  if (request.node_rank >= request.nnodes) {
    throw InvalidInput(str("--node-rank ", request.node_rank, " is too large for --nnodes ", request.nnodes,
                           ", because machines are counted from 0; use --nnodes ", request.node_rank + 1,
                           " or more",
                           request.nnodes > 1 ? str(", or --node-rank 0 to ", request.nnodes - 1) : ""));
  }
  if (request.nnodes > 1 &&
      (request.endpoint.empty() || (request.token_file.empty() && token_variable() == nullptr))) {
    throw InvalidInput(
        "several machines need --rdzv-endpoint HOST:PORT (an address of machine 0) and --token-file FILE (a "
        "secret that is the same on all machines); make the file with: openssl rand -hex 32 > FILE; chmod "
        "600 FILE, or put the secret into the variable CPRUN_TOKEN");
  }
  if (request.verify && request.scenario.empty())
    throw InvalidInput(
        "--verify compares a scenario with the simulated fabric, which cannot run a program; leave --verify "
        "out");
  if (request.checksums != Checksums::off && request.scenario.empty())
    throw InvalidInput(
        "--checksums needs a scenario; a program sets JoinedDeviceOptions::checksums for its device");
  if (request.checksums != Checksums::off && !backend.has_checksums) {
    throw InvalidInput(
        "--checksums reads payloads in the host's memory, but NCCL sends and reduces them on the GPU; use "
        "--backend gloo, or --verify, which compares the results");
  }
  if (request.verify && request.nnodes > 1) {
    throw InvalidInput(
        "--verify needs the traces of all ranks on one machine; use --trace on each machine, copy the files "
        "to one of them, and compare them there with cpsim trace merge and cpsim trace compare");
  }
}

// A process takes two descriptors for its output, and one more until it runs; with one to spare that makes
// kEach. kOwn is for what the launcher itself has open: its server, listeners and logs (a generous estimate).
// Raises the soft limit if the hard one allows it; otherwise throws InvalidInput.
void require_descriptors(int processes) {
  constexpr rlim_t kEach = 4, kOwn = 64;
  const rlim_t needed = kEach * static_cast<rlim_t>(processes) + kOwn;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur == needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw InvalidInput(str(processes, " processes on this machine need ", needed,
                         " open files, but the limit is ", limit.rlim_max, "; start at most ",
                         (limit.rlim_max - kOwn) / kEach,
                         " processes here, use more machines (--nnodes), or raise the limit (ulimit -n)"));
}

// A job on this machine: the server if it runs here, the processes, and the messages about what failed.
class LaunchedJob {
 public:
  LaunchedJob(const LaunchRequest& request, int world)
      : request_(request), world_(world), first_rank_(request.node_rank * (world / request.nnodes)) {
    job_.world_size = world;
    job_.job_id = request.job_id;
    require_descriptors(world / request.nnodes);
    pages_ = std::vector<runtime::ProgressReader>(static_cast<std::size_t>(world / request.nnodes));
    job_.timeout = request.timeout;
    job_.backend = request.backend;
    job_.allow_shared_gpu = request.allow_shared_gpu;
    job_.token = token_of(request);
    if (!request.endpoint.empty()) {
      std::tie(job_.host, job_.port) = parse_endpoint(request.endpoint, request.nnodes);
    }
    if (request.node_rank == 0) {
      start_server();
    } else {
      join();
    }
    job_.interface = request.interface.empty()
                         ? runtime::own_address_towards(job_.host, job_.port, request.timeout)
                         : runtime::own_address(request.interface);
  }

  // Runs the processes until they end. `temporary_folder` is removed if this process is killed;
  // `program_traces` is where a program's Job writes its trace.
  runtime::LaunchResult run(std::vector<std::string> argv, const std::string& temporary_folder = "",
                            const std::string& program_traces = "") {
    const int here = world_ / request_.nnodes, first = first_rank_;
    runtime::LaunchOptions options;
    options.argv = std::move(argv);
    options.nproc = here, options.first_rank = first, options.world_size = world_;
    options.grace = request_.grace, options.log_dir = request_.log_dir;
    options.temporary_folder = temporary_folder, options.has_no_other_children = true;
    options.stopped_limit = request_.timeout / 2;  // earlier than the server, which only sees a silent rank
    options.inherited = [this](int index) { return page(index).take_descriptor(); };
    options.environment = [this, first, program_traces](int index) {
      runtime::JobEnvironment own = job_;
      own.trace_folder = program_traces, own.hash_host = request_.hash_host;
      own.rank = first + index, own.local_rank = request_.first_local_rank + index;
      std::vector<std::string> variables = runtime::variables_of(own);
      variables.push_back(str(runtime::kProgressVariable, "=", page(index).text()));
      if (const auto of_backend = runtime::find_backend(own.backend).variables; of_backend != nullptr) {
        for (std::string& variable : of_backend(own, {request_.interface, request_.nnodes}))
          variables.push_back(std::move(variable));
      }
      return variables;
    };
    options.describe = [this](Rank rank) { return where(rank); };
    options.on_failure = [this](const runtime::ProcessFailure& failure) { tell_others(failure); };
    options.patience = [this](Rank rank) { return patience(rank); };
    runtime::Launcher launcher(std::move(options));
    {
      const std::scoped_lock lock(mutex_);
      launcher_ = &launcher;
      if (early_) launcher.fail(early_->rank, to_string(*early_), early_->kind);
    }
    runtime::LaunchResult result = launcher.run();
    {
      const std::scoped_lock lock(mutex_);
      launcher_ = nullptr;
    }
    await_end(result);
    return result;
  }

 private:
  void start_server() {
    runtime::ServerOptions options;
    options.interface = job_.host, options.port = job_.port;
    options.job_id = job_.job_id, options.world_size = world_, options.token = job_.token;
    options.join_timeout = options.heartbeat_timeout = job_.timeout;
    options.launches = world_ / request_.nnodes;
    options.compute_timeout = request_.compute_timeout;
    options.on_note = [](const std::string& note) {
      fmt::print(stderr, "cprun: note: {}\n", printable(note));
    };
    options.on_failure = [this](const runtime::Failure& failure) { end_for(failure); };
    server_.emplace(std::move(options));
    job_.port = server_->port();
  }

  void join() {
    runtime::ClientOptions options;
    options.host = job_.host, options.port = job_.port;
    options.job_id = job_.job_id, options.world_size = world_, options.token = job_.token;
    options.launches = world_ / request_.nnodes, options.rank = request_.node_rank * options.launches;
    options.timeout = job_.timeout;
    client_.emplace(std::move(options));
    client_->on_failure([this](const runtime::Failure& failure) { end_for(failure); });
  }

  // Ends the processes of this machine because the job has failed, here or elsewhere.
  void end_for(const runtime::Failure& failure) {
    const std::scoped_lock lock(mutex_);
    if (launcher_ != nullptr) {
      launcher_->fail(failure.rank, to_string(failure), failure.kind);
    } else {
      early_ = failure;
    }
  }

  // The processes of this machine have ended. The job has ended only when those of the other machines have,
  // too; one of them may still fail.
  void await_end(runtime::LaunchResult& result) {
    if (result.exit_code != 0) {
      if (server_ && server_->first_failure()) server_->await_end();
      return;
    }
    std::optional<runtime::Failure> failure;
    if (server_) {
      failure = server_->await_end();
    } else {
      try {
        client_->goodbye();
      } catch (const Error&) {
        failure = client_->failure();
      }
    }
    if (!failure) return;
    result.exit_code = exit_code(failure->kind);
    result.first_failure = {failure->rank,    failure->host,      failure->pid, {},
                            result.exit_code, to_string(*failure)};
  }

  std::vector<runtime::RankStatus> ranks() const {
    if (server_) return server_->ranks();
    try {
      return client_->ranks(kAskedFor);
    } catch (const Error&) {  // the job has failed, or its server is out of reach
      return {};
    }
  }

  runtime::ProgressReader& page(int index) { return pages_[static_cast<std::size_t>(index)]; }

  // Returns what a rank of this machine was doing. Its progress page tells it exactly; without one, the last
  // that the server heard of it must do.
  std::string where(Rank rank) {
    if (const auto report = page(rank - first_rank_).read()) {
      if (std::string text = to_string(*report); !text.empty()) return text;
    }
    for (const runtime::RankStatus& status : ranks()) {
      if (status.rank == rank && status.latest.sequence >= 0)
        return str("(", runtime::last_heard(status.latest, status.latest_age), ")");
    }
    return "";
  }

  // How long to wait for the server to say why a rank's process ended. For a rank that had joined, the server
  // knows the cause at the latest when it gives a silent rank up, after the heartbeat timeout. kSoon is added
  // for the answer to arrive; chosen, well above the server's tick of 20 ms and a round trip.
  std::chrono::milliseconds patience(Rank rank) const {
    constexpr std::chrono::milliseconds kSoon{500};
    for (const runtime::RankStatus& status : ranks()) {
      if (status.rank == rank && status.state != runtime::RankState::absent) return request_.timeout + kSoon;
    }
    return kSoon;
  }

  // The kind of error that a process's end stands for. A user's program may end with an exit code that is no
  // error's of ours; that is a failure all the same.
  static ErrorKind kind_of(const runtime::ProcessFailure& failure) {
    if (failure.signal) return ErrorKind::peer_lost;
    return runtime::kind_of_exit_code(failure.exit_code).value_or(ErrorKind::peer_lost);
  }

  // Tells the other ranks, and the launchers of other machines.
  void tell_others(const runtime::ProcessFailure& failure) {
    if (failure.pid == 0) return;  // it came from there
    const runtime::Failure found = {.kind = kind_of(failure),
                                    .rank = failure.rank,
                                    .host = failure.host,
                                    .pid = failure.pid,
                                    .message = failure.what,
                                    .progress = {}};
    if (server_) {
      server_->report_failure(found);
    } else {
      client_->report_found(found);
    }
  }

  // How long a question to the server may take while the processes wait for its answer. Chosen: a server that
  // lives answers within milliseconds.
  static constexpr std::chrono::milliseconds kAskedFor{1'000};

  const LaunchRequest& request_;
  const int world_;
  const Rank first_rank_;                       // of this machine
  std::vector<runtime::ProgressReader> pages_;  // of its processes
  runtime::JobEnvironment job_;
  std::mutex mutex_;  // of the next two
  runtime::Launcher* launcher_ = nullptr;
  std::optional<runtime::Failure> early_;
  // Exactly one of these exists. They are declared last, because their threads use all of the above.
  std::optional<runtime::RendezvousServer> server_;          // of machine 0
  mutable std::optional<runtime::RendezvousClient> client_;  // of the others
};

std::string own_path() { return fs::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> rank_arguments(const LaunchRequest& request, const std::string& trace_folder) {
  std::vector<std::string> argv = {own_path(), "--as-rank", request.scenario};
  if (!trace_folder.empty()) argv.insert(argv.end(), {"--trace-folder", trace_folder});
  if (!request.software.empty()) argv.insert(argv.end(), {"--software", request.software});
  if (request.verify) argv.emplace_back("--verify");
  if (request.checksums != Checksums::off) argv.push_back(str("--checksums=", name(request.checksums)));
  if (request.hash_host) argv.emplace_back("--hash-hosts");
  if (!request.warm_up) argv.emplace_back("--no-warm-up");
  if (request.cuda_graphs) argv.emplace_back("--cuda-graphs");
  return argv;
}

void merge(const std::string& folder, const std::string& trace) {
  try {
    merge_trace_files(trace_files_of(folder), trace);
  } catch (const BadTrace& error) {
    throw BadTrace(str(error.what(), "; the ranks' own traces are kept in ", folder,
                       "; merge them with: cpsim trace merge ", folder, " -o FILE"));
  }
}

int keep_traces(TraceFolder& folder, int code) {
  folder.keep();
  fmt::print(stderr, "cprun: the traces up to the failure are in {}\n", folder.path());
  return code;
}

int run_scenario(const LaunchRequest& request) {
  proto::Scenario scenario = read_scenario_file(request.scenario);
  if (request.nproc_per_node > 0) sim::tell_world_size(scenario, request.nnodes * request.nproc_per_node);
  nccl_options(scenario.nccl(),
               request.software);  // throws if they make no sense, before anything is started
  const std::string trace = trace_path(request.trace, request.nnodes, request.node_rank);
  require_writable("--trace", trace);
  const int world = world_size(request, scenario), here = world / request.nnodes;
  require_rank_memory(scenario, request, request.node_rank * here, here);
  LaunchedJob job(request, world);
  std::optional<TraceFolder> folder;
  if (!trace.empty() || request.verify) folder.emplace(trace);
  const runtime::LaunchResult result = job.run(rank_arguments(request, folder ? folder->path() : ""),
                                               folder && trace.empty() ? folder->path() : "");
  if (result.exit_code != 0) {
    fmt::print(stderr, "cprun: {}\n", printable(summary(result)));
    return trace.empty() ? result.exit_code : keep_traces(*folder, result.exit_code);
  }
  if (!trace.empty()) {
    folder->keep();  // if the merge fails, the parts remain
    merge(folder->path(), trace);
    if (!request.verify) fs::remove_all(folder->path());
  }
  if (!request.verify) return 0;
  std::vector<RankTrace> measured = read_trace_path(folder->path()).ranks;
  const proto::Scenario ran = read_scenario_file(ran_scenario_path(folder->path()));
  fs::remove_all(folder->path());  // the simulation may be interrupted
  const bool identical = equals_fabric(sim::simulate(ran), request.backend, std::move(measured));
  return identical ? kSuccess : exit_code(ErrorKind::check_failed);
}

// Each rank of a program has written its trace if it had a Job.
void require_traces(const LaunchRequest& request, const std::string& folder, int ranks) {
  const auto written = std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  if (written == ranks) return;
  throw BadTrace(str(request.program.front(), " has written the traces of ", written, " of ", ranks,
                     " ranks, but a rank writes one only if it makes a cp::runtime::Job; leave --trace out, "
                     "or make a Job on every rank"));
}

int run_program(const LaunchRequest& request, std::vector<std::string> argv) {
  const std::string trace = trace_path(request.trace, request.nnodes, request.node_rank);
  require_writable("--trace", trace);
  const int world = world_size(request, std::nullopt);
  LaunchedJob job(request, world);
  std::optional<TraceFolder> folder;
  if (!trace.empty() || request.own_traces) folder.emplace(trace);
  const runtime::LaunchResult result = job.run(std::move(argv), "", folder ? folder->path() : "");
  if (result.exit_code != 0) fmt::print(stderr, "cprun: {}\n", printable(summary(result)));
  if (!folder) return result.exit_code;
  if (result.exit_code != 0) return trace.empty() ? result.exit_code : keep_traces(*folder, result.exit_code);
  if (request.own_traces) return request.own_traces(folder->path());
  require_traces(request, folder->path(), world / request.nnodes);
  folder->keep();  // if the merge fails, the parts remain
  merge(folder->path(), trace);
  fs::remove_all(folder->path());
  return kSuccess;
}

}  // namespace

int launch(const LaunchRequest& request) {
  check(request);
  remove_abandoned_folders();
  if (!request.own_arguments.empty()) {
    std::vector<std::string> argv = {own_path()};
    argv.insert(argv.end(), request.own_arguments.begin(), request.own_arguments.end());
    return run_program(request, std::move(argv));
  }
  return request.scenario.empty() ? run_program(request, request.program) : run_scenario(request);
}

}  // namespace cp::cli
