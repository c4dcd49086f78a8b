// cpsim fuzz and cpsim replay: cases that are drawn and judged, and one that is judged again.
#include "sim/fuzz/fuzz.h"

#include <chrono>
#include <memory>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/fuzz/isolated.h"
#include "traces/fuzz_case.h"

namespace cp::cli {
namespace {

using sim::FuzzOptions;
using sim::FuzzResult;
using sim::FuzzStatus;
using std::chrono::seconds;

// Chosen: a case takes milliseconds, so one that takes this long will never end.
constexpr seconds kReplayLimit{120};

struct Flags {
  FuzzOptions options;
  std::int64_t print = 0;
  bool json = false;
};

// Reads "60s", "10m" or "8h"; a number alone counts seconds.
seconds parse_time(std::string_view flag, std::string_view text) {
  const std::string_view trimmed = trim(text);
  const char unit = trimmed.empty() ? 's' : trimmed.back();
  const std::int64_t factor = unit == 'm' ? 60 : unit == 'h' ? 3600 : 1;
  const bool has_unit = unit == 's' || unit == 'm' || unit == 'h';
  const std::string_view number =
      has_unit && !trimmed.empty() ? trimmed.substr(0, trimmed.size() - 1) : trimmed;
  // Chosen: more than a year. The limit catches slips, and keeps the seconds far below what 64 bits hold.
  constexpr std::int64_t kMostHours = 10'000;
  std::int64_t count = 0;
  try {
    count = parse_int(number, "time");
  } catch (const InvalidInput&) {  // whose words are about numbers alone
    throw InvalidInput(str(flag, " ", text, " is not a time; use, for example, 60s, 10m or 8h"));
  }
  if (count >= 1 && count <= kMostHours * 3600 / factor) return seconds(count * factor);
  throw InvalidInput(str(flag, " ", text, " is out of range; use 1s to ", kMostHours, "h"));
}

std::string status_text(const FuzzStatus& status) {
  const double rate = static_cast<double>(status.cases) / std::max(status.seconds, 1e-3);
  const double share =
      status.cells == 0 ? 0 : 100.0 * static_cast<double>(status.covered) / static_cast<double>(status.cells);
  std::string text = fmt::format("{} cases, {} a second, {:.1f} % of the table, {} {}",
                                 sim::human_count(static_cast<std::int64_t>(status.cases)),
                                 sim::human_count(static_cast<std::int64_t>(rate)), share, status.failures,
                                 status.failures == 1 ? "failure" : "failures");
  if (status.phase == "shrinking") text += fmt::format("; shrinking: {}", status.shrinking);
  return text;
}

// Draws one line again and again on a terminal; elsewhere it writes a line every ten seconds. It uses no
// thread, since cases are judged in forked processes.
class StatusLine {
 public:
  void show(const FuzzStatus& status) {
    const auto now = std::chrono::steady_clock::now();
    if (is_terminal_) {
      if (now - last_ < std::chrono::milliseconds(200)) return;
      fmt::print(stderr, "\r\x1b[K{:.0f} s: {}", status.seconds, status_text(status));
      drawn_ = true;
    } else if (now - last_ >= seconds(10)) {
      fmt::print(stderr, "fuzz: {:.0f} s: {}\n", status.seconds, status_text(status));
    } else {
      return;
    }
    std::fflush(stderr);
    last_ = now;
  }
  ~StatusLine() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string text_of(const Flags& flags, const FuzzResult& result) {
  std::string text;
  if (result.failure) {
    const sim::FuzzFailure& failure = *result.failure;
    const proto::Finding& finding = failure.fuzz_case.finding();
    text += fmt::format("{}: {}\n", finding.property(), finding.message());
    text += fmt::format("  found in {} after {:.1f} s and {} cases; shrunk to {}\n", failure.drawn_as,
                        failure.found_after_s, failure.found_after_cases, sim::size_text(failure.fuzz_case));
    text += fmt::format("  {}\n  replay it: cpsim replay {}\n", failure.path, failure.path);
  }
  text += fmt::format(
      "seed {}: {}{} in {}\n", flags.options.seed, status_text(result.status),
      result.corpus_cases > 0
          ? fmt::format(" ({} of the corpus, {} new in it)", result.corpus_cases, result.new_in_corpus)
      : result.new_in_corpus > 0 ? fmt::format(" ({} new in the corpus)", result.new_in_corpus)
                                 : "",
      sim::human_seconds(result.status.seconds));
  return text;
}

std::string json_of(const Flags& flags, const FuzzResult& result) {
  nlohmann::ordered_json json = {{"seed", flags.options.seed},
                                 {"target", sim::name(flags.options.target)},
                                 {"cases", result.status.cases},
                                 {"seconds", result.status.seconds},
                                 {"cells_covered", result.status.covered},
                                 {"cells", result.status.cells},
                                 {"corpus_cases", result.corpus_cases},
                                 {"new_in_corpus", result.new_in_corpus},
                                 {"stopped", result.stopped},
                                 {"failure", nullptr}};
  if (result.failure) {
    const proto::Finding& finding = result.failure->fuzz_case.finding();
    json["failure"] = {{"property", finding.property()},
                       {"message", finding.message()},
                       {"file", result.failure->path},
                       {"drawn_as", result.failure->drawn_as},
                       {"found_after_s", result.failure->found_after_s},
                       {"found_after_cases", result.failure->found_after_cases},
                       {"size", sim::size_text(result.failure->fuzz_case)}};
  }
  return json.dump(2) + "\n";
}

int print_cases(const Flags& flags) {
  for (std::int64_t i = 0; i < flags.print; ++i) {
    fmt::print("# case {} of seed {}\n{}\n", i, flags.options.seed,
               write_case_text(
                   sim::draw_case(flags.options.target, flags.options.seed, static_cast<std::uint64_t>(i))));
  }
  return 0;
}

int run_fuzz(Flags& flags) {
  if (flags.print > 0) return print_cases(flags);
  FuzzResult result;
  {
    const InterruptScope scope;
    flags.options.stop = &InterruptScope::flag();
    StatusLine line;
    result = sim::fuzz(flags.options, [&](const FuzzStatus& status) { line.show(status); });
  }
  fmt::print("{}", flags.json ? json_of(flags, result) : text_of(flags, result));
  std::fflush(stdout);
  if (result.failure) return exit_code(ErrorKind::check_failed);
  return result.stopped ? kInterruptedExitCode : 0;
}

int run_replay(const std::string& path, bool json) {
  const proto::FuzzCase fuzz_case = read_case_file(path);
  // The case is judged in a process of its own: it may be here because it makes the process crash, or never
  // ends.
  const auto isolated = sim::judge_isolated(fuzz_case, kReplayLimit);
  if (!isolated->is_case) throw InvalidInput(str(path, ": ", isolated->refusal));
  const sim::Judgement& judgement = isolated->judgement;
  const std::string digest = to_string(judgement.digest);
  if (json) {
    nlohmann::ordered_json out = {{"file", path}, {"digest", digest}, {"finding", nullptr}};
    if (judgement.finding)
      out["finding"] = {{"property", judgement.finding->property()},
                        {"message", judgement.finding->message()}};
    fmt::print("{}\n", out.dump(2));
  } else if (judgement.finding) {
    fmt::print("{}: {}\ndigest {}\n", judgement.finding->property(), judgement.finding->message(), digest);
  } else {
    fmt::print("all that is checked holds\ndigest {}\n", digest);
  }
  std::fflush(stdout);
  return judgement.finding ? exit_code(ErrorKind::check_failed) : kSuccess;
}

}  // namespace

Command add_fuzz(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "fuzz", "Draw cases at random and check everything, until one fails or the time is over");
  const auto flags = std::make_shared<Flags>();
  FuzzOptions& options = flags->options;
  options.jobs = sim::num_cores();
  options.seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000'000;
  add_value(app, "--time", "TIME", "How long cases are drawn: 60s, 10m, 8h [60s, or until --cases]",
            [flags](const std::string& text) { flags->options.time = parse_time("--time", text); });
  add_value(app, "--cases", "N", "How many cases are drawn [until --time]", [flags](const std::string& text) {
    flags->options.cases = static_cast<std::uint64_t>(parse_whole("--cases", text, 1));
  });
  add_value(app, "--seed", "N", "The seed of the cases; equal seeds draw equal cases [another one each time]",
            [flags](const std::string& text) {
              flags->options.seed = static_cast<std::uint64_t>(parse_whole("--seed", text, 0));
            });
  app.add_option("--corpus", options.corpus,
                 "Run the cases of this folder first. New cases that reach something new are added to it; "
                 "with several "
                 "folders, to the last one")
      .type_name("DIR");
  add_value(app, "--target", "TARGET",
            "What is drawn: redistribute, attention, recurrence, plan, prove, programs or all [all]",
            [flags](const std::string& text) { flags->options.target = sim::parse_fuzz_target(text); });
  add_value(app, "--jobs", "N", "How many processes run cases [one per core]",
            [flags](const std::string& text) {
              flags->options.jobs = static_cast<int>(parse_whole("--jobs", text, 1, 256));
            });
  add_value(
      app, "--shrink-time", "TIME", "How long a failure may be made smaller [60s]",
      [flags](const std::string& text) { flags->options.shrink_time = parse_time("--shrink-time", text); });
  app.add_option("--failures", options.failures,
                 "The folder in which failure-<digest>.txtpb is written [the current one]")
      .type_name("DIR");
  add_value(app, "--print", "N", "Print the first N cases, and run none",
            [flags](const std::string& text) { flags->print = parse_whole("--print", text, 1, 1'000'000); });
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "With exit code 1 a case failed: it was written to a file, and the command that replays it was "
      "printed.\n\n"
      "Example:\n  cpsim fuzz --time 60s --corpus fuzz-corpus\n  cpsim fuzz --cases 10000 --seed 7 --target "
      "redistribute");
  return {app, [flags] { return run_fuzz(*flags); }};
}

Command add_replay(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand("replay", "Run a case of cpsim fuzz again, from its file");
  const auto path = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  app.add_option("file", *path, "The file of the case, for example failure-0123456789ab.txtpb")
      .type_name("FILE.txtpb")
      .required();
  app.add_flag("--json", *json, "Print JSON");
  app.footer(
      "replay prints what does not hold, and a digest of the case's plans, traces and exact results, which "
      "is\n"
      "the same each time.\n\n"
      "Example:\n  cpsim replay failure-0123456789ab.txtpb");
  return {app, [path, json] { return run_replay(*path, *json); }};
}

}  // namespace cp::cli
