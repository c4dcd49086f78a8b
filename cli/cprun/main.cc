// cprun runs a scenario, or a program of the user's own, on real processes. This process is the launcher, or
// it is one rank that the launcher or another launcher started.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/standard_output.h"
#include "cli/cprun/job/rank.h"
#include "cli/cprun/launch.h"
#include "cli/cprun/profile/profile.h"
#include "cli/cprun/train/train.h"
#include "runtime/backend.h"
#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/version.h"

namespace cp::cli {
namespace {

struct Flags {
  LaunchRequest launch;
  RankOptions rank;
  LaunchRequest profile_launch;
  ProfileOptions profile;
  TrainFlags train;
  std::string checksums = "off";
  bool is_rank = false;
};

std::chrono::milliseconds parse_seconds(const char* flag, const std::string& text) {
  const double seconds = parse_real(flag, text);
  if (seconds <= 0 || seconds > 1e6)
    throw InvalidInput(str(flag, " ", text,
                           " is out of range; use seconds above 0 and up to 1000000, for example 30 or 0.5"));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::max(1.0, seconds * 1e3)));
}

// Adds the flags about the processes of a job, whatever the processes run.
void add_job_flags(FlagSet app, LaunchRequest& launch) {
  const auto count = [&](const char* name, const char* help, int& value, int least) {
    add_value(app, name, "N", help, [&value, name, least](const std::string& text) {
      value = static_cast<int>(parse_whole(name, text, least, 1 << 20));
    });
  };
  count("--nproc-per-node", "Number of processes on this machine [what the scenario needs; 1 for a program]",
        launch.nproc_per_node, 1);
  count("--nnodes", "Number of machines [1]", launch.nnodes, 1);
  count("--node-rank", "Which machine this is, counted from 0 [0]", launch.node_rank, 0);
  add_value(app, "--backend", "NAME",
            str("Library that runs the plans: gloo on CPUs, or nccl with a GPU for each rank [",
                launch.backend, "]"),
            [&launch](const std::string& text) { launch.backend = runtime::find_backend(text).name; });
  app.add_flag("--allow-shared-gpu", launch.allow_shared_gpu,
               "With nccl: ranks of one machine may share a GPU. NCCL then takes each rank for a host of its "
               "own (NCCL_HOSTID; NCCL_MULTI_RANK_GPU_ENABLE=1 if NCCL knows it) and sends over sockets "
               "(NCCL_NET=Socket; on one machine over lo, NCCL_SOCKET_IFNAME). This is slow, and meant for "
               "tests. It takes 33 MiB of /dev/shm for each rank and group");
  app.add_option("--rdzv-endpoint", launch.endpoint,
                 "Address of machine 0 at which all ranks find one another [127.0.0.1 and any free port]")
      .type_name("HOST:PORT");
  app.add_option("--rdzv-id", launch.job_id,
                 "Name of the job; ranks of another job are refused at its endpoint [cprun]")
      .type_name("NAME");
  app.add_option("--token-file", launch.token_file,
                 "File with a secret that is the same on all machines [a job on one machine makes its own]")
      .type_name("FILE");
  app.add_option(
         "--interface", launch.interface,
         "Network interface, by address or name, at which other ranks reach the ranks of this machine; "
         "with nccl also that of NCCL's sockets (NCCL_SOCKET_IFNAME)")
      .type_name("NAME");
  app.add_option("--log-dir", launch.log_dir,
                 "Also write each rank's output to DIR/rank-N.out and DIR/rank-N.err")
      .type_name("DIR");
  add_value(app, "--timeout", "SECONDS", "How long a rank may be silent before it counts as lost [30]",
            [&launch](const std::string& text) { launch.timeout = parse_seconds("--timeout", text); });
  add_value(app, "--compute-timeout", "SECONDS",
            "How long others may wait for a rank that is alive but joins no collective, before it counts as "
            "stuck in its own code [without limit: it may be computing]",
            [&launch](const std::string& text) {
              launch.compute_timeout = parse_seconds("--compute-timeout", text);
            });
  add_value(app, "--grace", "SECONDS",
            str("How long a rank may take to end after SIGTERM, before it gets SIGKILL [",
                launch.grace.count() / 1000, "]"),
            [&launch](const std::string& text) { launch.grace = parse_seconds("--grace", text); });
}

void add_flags(FlagSet app, Flags& flags) {
  LaunchRequest& launch = flags.launch;
  app.add_option("scenario", launch.scenario,
                 "Scenario to run (.txtpb); cpsim run --save-scenario writes one")
      .type_name("SCENARIO");
  add_job_flags(app, launch);
  app.add_option("--trace", launch.trace,
                 "Write a trace of what the ranks did; of a program, what it did by its cp::runtime::Job")
      .type_name("FILE");
  app.add_flag("--hash-hosts", launch.hash_host, "Write hashes in place of the hosts' names into the trace");
  app.add_flag(
      "--no-warm-up", [&launch] { launch.warm_up = false; },
      "With nccl: run each plan once. Without this flag it runs twice and the second run counts, so that its "
      "times do not hold the connecting of ranks and the loading of kernels");
  app.add_flag(
      "--cuda-graphs", launch.cuda_graphs,
      "With nccl: make a CUDA graph of each plan, which the run that counts launches as one. Two runs "
      "come before it. Times are those of the whole plan then");
  app.add_option(
         "--software", launch.software,
         "With nccl: software profile whose max_ctas collectives have where the scenario sets neither "
         "min_ctas nor max_ctas, for example that which cprun profile wrote [NCCL's own choice]")
      .type_name("NAME|FILE.txtpb");
  app.add_flag("--verify", launch.verify,
               "Run the same scenario on the simulated fabric too, and compare traces and results");
  app.add_flag(
         "--checksums{end}", flags.checksums,
         "Compare checksums of what each rank sends and of what arrives: one flipped bit is found, and "
         "the two ranks are named. end: compare when a plan has ended; each: compare at each collective, "
         "and stop there. Only with gloo")
      .type_name("[=end|each]");
  // Flags that only the launcher gives to its ranks; --help does not list them.
  app.add_flag("--as-rank", flags.is_rank).group("");
  app.add_option("--trace-folder", flags.rank.trace_folder).group("");
  app.footer(
      "Check whether the network can be trusted: cprun --checksums=each scenario.txtpb\n"
      "Run a program of your own: cprun --nproc-per-node 4 -- ./program arguments\n"
      "Run on GPUs: cprun --backend nccl --verify scenario.txtpb; NCCL's options stand in the scenario, for\n"
      "example nccl { max_ctas: 8 }\n"
      "Run under torchrun, mpirun or srun, where each cprun is one rank: srun -n 8 cprun scenario.txtpb\n"
      "Example:\n"
      "  cpsim run --mesh cp=4 --strategy ring --seq-len 4096 --q-heads 8 --causal --backward "
      "--save-scenario ring.txtpb\n"
      "  cprun --nproc-per-node 4 --verify ring.txtpb\n\n" +
      exit_codes_text(kHelpColumns));
}

FlagSet add_profile(FlagSet cprun, Flags& flags) {
  const FlagSet app = cprun.add_subcommand(
      "profile",
      "Measure kernels and collectives on these machines, and write a cluster file that cpsim plans with");
  ProfileOptions& profile = flags.profile;
  LaunchRequest& launch = flags.profile_launch;
  launch.backend = "nccl";
  launch.grace = std::chrono::seconds(60);  // the point that is being measured
  app.add_output(profile.out, "FILE.txtpb",
                 "Cluster file to write; a .csv of all figures and a .software.txtpb are written beside it "
                 "[profile.txtpb]");
  app.add_option("--cluster", profile.cluster,
                 "Cluster that gives the figures that are not measured [the preset with this GPU]")
      .type_name("NAME|FILE.txtpb");
  add_value(app, "--grid", "SIZE",
            "How much to measure: quick takes minutes, whole up to an hour; tiny is for tests [whole]",
            [&profile](const std::string& text) { profile.grid = parse_profile_size(text); });
  add_value(
      app, "--clock-seconds", "SECONDS",
      "How long to run matrix products before the sustained clock is read [30]",
      [&profile](const std::string& text) { profile.clock_seconds = parse_real("--clock-seconds", text); });
  add_job_flags(app, launch);
  app.add_flag("--as-rank", flags.is_rank).group("");
  app.footer(
      "Several ranks measure their collectives too, and how kernels and collectives slow one another down;\n"
      "several machines also measure pairs of ranks across machines. Ctrl-C ends the run after the current\n"
      "measurement, and what was measured so far is written.\n"
      "Example:\n"
      "  cprun profile --nproc-per-node 8 -o mine.txtpb\n"
      "  cpsim plan --model llama-3.1-8b --cluster mine.txtpb --software mine.software.txtpb \\\n"
      "    --seq-len 131072 --global-batch 16");
  return app;
}

// Under another launcher each process counts as a machine with one rank. MASTER_PORT belongs to torchrun's
// own store, so our server takes the port after it.
void join_other_launcher(LaunchRequest& request) {
  const auto foreign = runtime::foreign_rank();
  if (!foreign || request.nproc_per_node > 0 || request.nnodes > 1) return;
  request.nnodes = foreign->world_size, request.node_rank = foreign->rank, request.nproc_per_node = 1;
  request.first_local_rank = foreign->local_rank;
  const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
  if (request.endpoint.empty() && host != nullptr && port != nullptr)
    request.endpoint = str(host, ":", parse_whole("MASTER_PORT", port, 1, 65534) + 1);
}

int run_profile(Flags& flags) {
  if (flags.is_rank) {
    const auto job = runtime::job_environment();
    if (!job) throw InvalidInput("--as-rank is for cprun's own ranks; start cprun profile without it");
    return run_profile_rank(flags.profile, *job);
  }
  if (!flags.launch.program.empty())
    throw InvalidInput(str("cprun profile runs no program; leave out -- ", flags.launch.program.front()));
  runtime::require_backend(flags.profile_launch.backend);
  check(flags.profile);
  join_other_launcher(flags.profile_launch);
  flags.profile_launch.own_arguments = profile_arguments(flags.profile);
  return launch(flags.profile_launch);
}

int run_training(Flags& flags) {
  flags.train.verify = flags.launch.verify;
  if (flags.is_rank) {
    const auto job = runtime::job_environment();
    if (!job) throw InvalidInput("--as-rank is for cprun's own ranks; start cprun train without it");
    return run_train_rank(flags.train, *job);
  }
  if (!flags.launch.program.empty())
    throw InvalidInput(str("cprun train runs no program; leave out -- ", flags.launch.program.front()));
  if (!flags.launch.scenario.empty())
    throw InvalidInput(
        str("unexpected argument '", flags.launch.scenario, "'; cprun train takes one scenario"));
  flags.launch.checksums = parse_checksums(flags.checksums);
  join_other_launcher(flags.launch);
  return run_train(flags.train, flags.launch);
}

int run(Flags& flags) {
  LaunchRequest& launch_request = flags.launch;
  launch_request.checksums = parse_checksums(flags.checksums);
  if (flags.is_rank) {
    const auto job = runtime::job_environment();
    if (!job) throw InvalidInput("--as-rank is for cprun's own ranks; start cprun without it");
    flags.rank.scenario = launch_request.scenario;
    flags.rank.software = launch_request.software;
    flags.rank.check_results = launch_request.verify;
    flags.rank.hash_host = launch_request.hash_host;
    flags.rank.warm_up = launch_request.warm_up;
    flags.rank.cuda_graphs = launch_request.cuda_graphs;
    flags.rank.checksums = launch_request.checksums;
    return run_rank(flags.rank, *job);
  }
  if (launch_request.scenario.empty() == launch_request.program.empty()) {
    throw InvalidInput(
        launch_request.scenario.empty()
            ? "there is nothing to run; give a scenario, or a program behind --, for example: cprun "
              "--nproc-per-node 4 -- ./program"
            : str("a scenario (", launch_request.scenario, ") and a program (",
                  launch_request.program.front(), ") are given; give only one of them"));
  }
  if (launch_request.cuda_graphs && (launch_request.backend != "nccl" || !launch_request.warm_up)) {
    throw InvalidInput(
        "--cuda-graphs is for --backend nccl, where a plan runs twice before it is a graph; leave out "
        "--no-warm-up, and do not use it with another backend");
  }
  join_other_launcher(launch_request);
  return launch(launch_request);
}

// torchrun writes --nproc_per_node where cprun writes --nproc-per-node, and takes both.
std::string with_dashes(std::string word) {
  if (!word.starts_with("--")) return word;
  const std::size_t value = std::min(word.find('='), word.size());
  std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(value), '_', '-');
  return word;
}

// Returns the flag that was given more often than it takes values; empty if there is none.
std::string repeated_flag(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const int most = option->get_items_expected_max();
    if (most > 0 && option->count() > static_cast<std::size_t>(most)) return option->get_name();
  }
  return "";
}

int main(int argc, char** argv) {
  char** const end = argv + argc;
  const auto is = [](std::string_view wanted) {
    return [wanted](const char* word) { return word == wanted; };
  };
  char** const dashes = std::find_if(argv, end, is("--"));
  if (std::any_of(argv, dashes, is("--as-rank"))) {
    handle_interrupts_quietly();
  } else {
    handle_interrupts("cprun");
  }
  Flags flags;
  CLI::App app("Runs plans on real processes: the same plans that cpsim runs on the simulated fabric.",
               "cprun");
  app.set_version_flag("--version", "cprun " CP_VERSION);
  add_flags(app, flags);
  const FlagSet profile = add_profile(app, flags), train = add_train(app, flags.train);
  if (dashes != end) flags.launch.program.assign(dashes + 1, end);
  try {
    std::vector<std::string> words;
    std::transform(argv + 1, dashes, std::back_inserter(words),
                   [](const char* word) { return with_dashes(word); });
    std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
    app.parse(std::move(words));
    return profile.parsed() ? run_profile(flags) : train.parsed() ? run_training(flags) : run(flags);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining(true);
    const auto flag = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& word) { return word.starts_with("-"); });
    std::vector<std::string> known;
    const auto know = [&](const CLI::App& command) {
      for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      }
    };
    if (!profile.parsed()) know(app);
    if (profile.parsed() || train.parsed()) know(*app.get_subcommand(profile.parsed() ? "profile" : "train"));
    const std::string near = flag == extras.end() ? "" : nearest(flag->substr(0, flag->find('=')), known);
    const std::string what =
        flag == extras.end()
            ? str("unexpected argument '", extras.front(), "'",
                  profile.parsed() || train.parsed() ? "" : "; give one scenario, or a program behind --")
            : str("unknown flag '", *flag, "'");
    fmt::print(stderr, "cprun: {}{}; see cprun --help\n", printable(what),
               near.empty() ? "" : str("; did you mean ", near, "?"));
    return exit_code(ErrorKind::invalid_input);
  } catch (const CLI::ParseError& error) {
    const CLI::App& parsed = profile.parsed() ? *app.get_subcommand("profile")
                             : train.parsed() ? *app.get_subcommand("train")
                                              : app;
    const std::string repeated = repeated_flag(parsed);
    fmt::print(stderr, "cprun: {}; see cprun --help\n",
               repeated.empty() ? printable(error.what())
                                : str(repeated, " was given more than once; leave one of them"));
    return exit_code(ErrorKind::invalid_input);
  } catch (const Error& error) {
    fmt::print(stderr, "cprun: {}\n", printable(error.what()));
    return exit_code(error.kind());
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) throw;  // of a print: finish_output() says it
    fmt::print(stderr, "cprun: internal error: {}\n", error.what());
    return kInternalError;
  } catch (const std::exception& error) {
    fmt::print(stderr, "cprun: internal error: {}\n", error.what());
    return kInternalError;
  }
}

}  // namespace
}  // namespace cp::cli

int main(int argc, char** argv) {
  const int code = cp::cli::finish_output("cprun", [&] { return cp::cli::main(argc, argv); });
  if (cp::runtime::devices_left_behind()) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}
