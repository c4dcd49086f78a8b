// cpsim verify redistribute: every redistribution at small scale, against an exhaustive search and with data.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/proof/exhaustive/verify_redistribute.h"

namespace cp::cli {
namespace {

using sim::Fault;
using sim::VerifyRedistributeOptions;
using sim::VerifyRedistributeResult;

constexpr Fault kFaults[] = {Fault::wrong, Fault::over_bound, Fault::costlier, Fault::cheaper,
                             Fault::misdeclared};
static_assert(std::size(kFaults) == sim::kNumFaults);

struct Flags {
  VerifyRedistributeOptions options;
  bool cross_mesh = false, json = false;
  Flag cross_mesh_given;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string progress_text(std::int64_t done, std::int64_t total, double seconds) {
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-3);
  const double left = static_cast<double>(total - done) / std::max(rate, 1e-9);
  return fmt::format("checked {} of {} pairs, {} a second, {} left", sim::human_count(done),
                     sim::human_count(total), sim::human_count(static_cast<std::int64_t>(rate)),
                     sim::human_seconds(left));
}

// "over_bound": the key for "over bound".
std::string key_of(Fault fault) {
  std::string key(name(fault));
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

std::string text_of(const VerifyRedistributeResult& result, double seconds) {
  std::string text;
  for (const std::string& failure : result.failures) text += fmt::format("{}\n", failure);
  text += fmt::format("pairs {}", result.pairs);
  for (const Fault fault : kFaults) text += fmt::format(", {} {}", name(fault), result.count(fault));
  text += fmt::format(" ({} infeasible within the bound; {}{})\n", result.infeasible,
                      sim::human_seconds(seconds), result.stopped ? "; stopped before the end" : "");
  return text;
}

std::string json_of(const Flags& flags, const VerifyRedistributeResult& result, double seconds) {
  nlohmann::ordered_json json = {{"ranks", flags.options.num_ranks},
                                 {"tensor_dims", flags.options.tensor_dims},
                                 {"pairs", result.pairs},
                                 {"infeasible", result.infeasible}};
  for (const Fault fault : kFaults) json[key_of(fault)] = result.count(fault);
  json["stopped"] = result.stopped;
  json["ok"] = result.ok();
  json["failures"] = result.failures;
  json["seconds"] = seconds;
  return json.dump(2) + "\n";
}

int verify(Flags& flags) {
  VerifyRedistributeOptions& options = flags.options;
  if (flags.cross_mesh_given.count() > 0) options.cross_mesh = flags.cross_mesh;
  const auto begin = std::chrono::steady_clock::now();
  VerifyRedistributeResult result;
  {
    const InterruptScope scope;
    options.stop = &InterruptScope::flag();
    Progress progress;
    progress.show("searching");
    options.progress = [&](std::int64_t done, std::int64_t total) {
      progress.show(progress_text(done, total, seconds_since(begin)));
    };
    result = sim::verify_redistribute(options);
  }
  const double seconds = seconds_since(begin);
  fmt::print("{}", flags.json ? json_of(flags, result, seconds) : text_of(result, seconds));
  std::fflush(stdout);
  if (result.stopped) return kInterruptedExitCode;
  return result.ok() ? kSuccess : exit_code(ErrorKind::check_failed);
}

}  // namespace

Command add_verify_redistribute(FlagSet verify_command) {
  const FlagSet app = verify_command.add_subcommand(
      "redistribute", "Plan, search, run and compare all pairs of layouts on all meshes of a few ranks");
  const auto flags = std::make_shared<Flags>();
  VerifyRedistributeOptions& options = flags->options;
  options.num_threads = sim::num_cores();
  add_value(app, "--ranks", "N",
            fmt::format("How many ranks each mesh has: 1 to {} [{}]", options.kMaxRanks, options.num_ranks),
            [flags](const std::string& text) {
              flags->options.num_ranks =
                  static_cast<int>(parse_whole("--ranks", text, 1, flags->options.kMaxRanks));
            });
  add_value(app, "--tensor-dims", "D",
            fmt::format("How many dimensions the tensor has: 1 to {} [{}]", options.kMaxTensorDims,
                        options.tensor_dims),
            [flags](const std::string& text) {
              flags->options.tensor_dims =
                  static_cast<int>(parse_whole("--tensor-dims", text, 1, flags->options.kMaxTensorDims));
            });
  flags->cross_mesh_given = app.add_flag("--cross-mesh,!--no-cross-mesh", flags->cross_mesh,
                                         "Check also moves from one mesh to another [on, up to four ranks]");
  add_value(app, "--max-memory-factor", "F",
            "Temporaries take at most F x 2 x the bytes of the largest shard [1]",
            [flags](const std::string& text) {
              flags->options.max_memory_factor = parse_real("--max-memory-factor", text);
            });
  add_value(app, "--threads", "N", "How many threads check pairs [one per core]",
            [flags](const std::string& text) {
              flags->options.num_threads = static_cast<int>(parse_whole("--threads", text, 1, 1024));
            });
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "verify redistribute prints how many pairs there are, and for how many of them the data are wrong, "
      "the\n"
      "memory bound is broken, a cheaper chain of moves exists, the exhaustive search knows no chain as "
      "cheap, or\n"
      "the declared figures are not those of the plan. Partial placements are sums; with up to four ranks "
      "also\n"
      "means, minima, maxima and products.\n\n"
      "Example:\n  cpsim verify redistribute --ranks 4 --tensor-dims 2");
  return {app, [flags] { return verify(*flags); }};
}

}  // namespace cp::cli
