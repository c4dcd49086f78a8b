// cpsim mutate: planted bugs, and who catches them.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/fuzz/mutate/campaign.h"
#include "sim/present/table.h"
#include "traces/fuzz_case.h"

namespace cp::cli {
namespace {

using sim::MutateOptions;
using sim::MutateResult;
using sim::Outcome;
using sim::Tally;

struct Flags {
  MutateOptions options;
  std::string survivors;  // a folder
  bool json = false;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Adds the tallies up under other keys: by mutation and strategy, by strategy, by target.
template <class Key, class KeyOf>
std::map<Key, Tally> by(const MutateResult& result, const KeyOf& key_of) {
  std::map<Key, Tally> tallies;
  for (const auto& [key, tally] : result.tallies) tallies[std::apply(key_of, key)].add(tally);
  return tallies;
}
using Kind = sim::MutationKind;
using Text = const std::string&;
auto by_kind_and_strategy(const MutateResult& result) {
  return by<std::pair<Kind, std::string>>(
      result, [](Kind kind, Text strategy, Text) { return std::pair(kind, strategy); });
}

std::vector<sim::Column> columns(std::vector<std::string> keys) {
  std::vector<sim::Column> all;
  for (std::string& key : keys) all.push_back({std::move(key), sim::Align::left});
  all.push_back({"tried", sim::Align::right});
  for (const Outcome outcome : sim::kOutcomes) {
    all.push_back(
        {outcome == Outcome::survivor ? "survivors" : std::string(name(outcome)), sim::Align::right});
  }
  return all;
}

void add_row(sim::Table& table, std::vector<std::string> keys, const Tally& tally) {
  keys.push_back(std::to_string(tally.tried()));
  for (const std::int64_t count : tally.of) keys.push_back(count == 0 ? "-" : std::to_string(count));
  table.add_row(std::move(keys));
}

std::string text_of(const MutateResult& result, const std::vector<std::string>& files, double seconds) {
  std::string text;
  const auto combinations = by_kind_and_strategy(result);
  sim::Table whole(columns({"mutation", "strategy"}));
  for (const auto& [key, tally] : combinations)
    add_row(whole, {std::string(name(key.first)), key.second}, tally);
  text += whole.text() + "\n";
  sim::Table kinds(columns({"mutation"}));
  for (const auto& [kind, tally] : by<Kind>(result, [](Kind kind, Text, Text) { return kind; }))
    add_row(kinds, {std::string(name(kind))}, tally);
  text += kinds.text() + "\n";
  sim::Table strategies(columns({"strategy"}));
  for (const auto& [strategy, tally] :
       by<std::string>(result, [](Kind, Text strategy, Text) { return strategy; }))
    add_row(strategies, {strategy}, tally);
  text += strategies.text() + "\n";
  sim::Table targets(columns({"target"}));
  for (const auto& [target, tally] : by<std::string>(result, [](Kind, Text, Text target) { return target; }))
    add_row(targets, {target}, tally);
  add_row(targets, {"all"}, result.total());
  text += targets.text() + "\n";
  for (std::size_t i = 0; i < result.survivors.size(); ++i)
    text += fmt::format("survivor{}: {}\n", i < files.size() ? " " + files[i] : "", result.survivors[i].text);
  for (const std::string& line : result.listed) text += line + "\n";
  for (const std::string& broken : result.broken) text += fmt::format("{}\n", broken);
  const Tally total = result.total();
  const std::int64_t survivors = total.count(Outcome::survivor);
  text += fmt::format(
      "{} mutants of {} sets of plans, {} combinations of mutation and strategy: {} caught, {} equivalent, "
      "{} survive ({:.3f} %; at most {} % may); {}{}\n",
      total.tried(), result.subjects, combinations.size(),
      total.tried() - survivors - total.count(Outcome::equivalent) - total.count(Outcome::rearranged),
      total.count(Outcome::equivalent) + total.count(Outcome::rearranged), survivors,
      100 * share(survivors, total.tried()), 100 * sim::kMostSurvivors, sim::human_seconds(seconds),
      result.stopped ? "; stopped before the end" : "");
  return text;
}

nlohmann::ordered_json json_of(const Tally& tally) {
  nlohmann::ordered_json json = {{"tried", tally.tried()}};
  for (const Outcome outcome : sim::kOutcomes) json[std::string(name(outcome))] = tally.count(outcome);
  return json;
}

std::string json_of(const Flags& flags, const MutateResult& result, const std::vector<std::string>& files,
                    double seconds) {
  nlohmann::ordered_json json = {
      {"cases", flags.options.cases}, {"seed", flags.options.seed}, {"subjects", result.subjects}};
  const Tally total = result.total();
  json["total"] = json_of(total);
  json["survivor_share"] = share(total.count(Outcome::survivor), total.tried());
  json["combinations"] = by_kind_and_strategy(result).size();
  json["table"] = nlohmann::ordered_json::array();
  for (const auto& [key, tally] : result.tallies) {
    nlohmann::ordered_json row = {
        {"mutation", name(std::get<0>(key))}, {"strategy", std::get<1>(key)}, {"target", std::get<2>(key)}};
    row.update(json_of(tally));
    json["table"].push_back(row);
  }
  json["survivors"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < result.survivors.size(); ++i) {
    nlohmann::ordered_json survivor = {{"text", result.survivors[i].text}};
    if (i < files.size()) survivor["file"] = files[i];
    json["survivors"].push_back(survivor);
  }
  if (!flags.options.listed.empty()) json["listed"] = result.listed;
  json["broken"] = result.broken;
  json["stopped"] = result.stopped;
  json["ok"] = !result.fails();
  json["seconds"] = seconds;
  return json.dump(2) + "\n";
}

// Writes one file for each survivor, named by the digest of its case. Throws InvalidInput if a file cannot be
// written.
std::vector<std::string> write_survivors(const std::string& folder, const MutateResult& result) {
  std::vector<std::string> files;
  if (folder.empty() || result.survivors.empty()) return files;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const sim::Survivor& survivor : result.survivors) {
    const std::string path =
        str(folder, "/survivor-", to_string(digest(survivor.job)).substr(0, 12), ".txtpb");
    std::ofstream file(path);
    file << write_case_text(survivor.job);
    if (!file.flush())
      throw InvalidInput(str("--survivors ", folder, ": the file ", path,
                             " cannot be written; name a folder that you may write to"));
    files.push_back(path);
  }
  return files;
}

std::set<Outcome> outcomes_of(std::string_view text) {
  std::set<Outcome> outcomes;
  std::vector<std::string_view> known;
  for (const Outcome outcome : sim::kOutcomes) known.push_back(name(outcome));
  for (const std::string_view word : split(text, ',')) {
    const auto found = std::find(known.begin(), known.end(), word);
    if (found == known.end())
      throw InvalidInput(
          str("--list ", text, ": no mutant ends as '", word, "'; use some of: ", join(known, ", ")));
    outcomes.insert(sim::kOutcomes[static_cast<std::size_t>(found - known.begin())]);
  }
  return outcomes;
}

int run(Flags& flags) {
  MutateOptions& options = flags.options;
  const auto begin = std::chrono::steady_clock::now();
  MutateResult result;
  {
    const InterruptScope scope;
    options.stop = &InterruptScope::flag();
    Progress progress;
    progress.show("making plans");
    options.progress = [&](std::int64_t done, std::int64_t survivors) {
      const double seconds = std::max(seconds_since(begin), 1e-3);
      if (done % 64 != 0) return;
      progress.show(fmt::format(
          "{} of {} mutants, {} a second, {} survive", sim::human_count(done),
          sim::human_count(options.cases),
          sim::human_count(static_cast<std::int64_t>(static_cast<double>(done) / seconds)), survivors));
    };
    result = sim::run_mutants(options);
  }
  const double seconds = seconds_since(begin);
  std::vector<std::string> files;
  finish([&] { files = write_survivors(flags.survivors, result); });
  fmt::print("{}", flags.json ? json_of(flags, result, files, seconds) : text_of(result, files, seconds));
  std::fflush(stdout);
  if (result.stopped) return kInterruptedExitCode;
  return result.fails() ? exit_code(ErrorKind::check_failed) : kSuccess;
}

}  // namespace

Command add_mutate(FlagSet cpsim) {
  const FlagSet app =
      cpsim.add_subcommand("mutate", "Plant bugs in right plans, and count which check catches them");
  const auto flags = std::make_shared<Flags>();
  flags->options.jobs = sim::num_cores();
  add_value(app, "--cases", "N", fmt::format("How many mutants are tried [{}]", flags->options.cases),
            [flags](const std::string& text) {
              flags->options.cases = parse_whole("--cases", text, 1, 1'000'000'000);
            });
  add_value(app, "--seed", "S",
            fmt::format("The seed of the plans and of the damage [{}]", flags->options.seed),
            [flags](const std::string& text) {
              flags->options.seed = static_cast<std::uint64_t>(
                  parse_whole("--seed", text, 0, std::numeric_limits<std::int64_t>::max()));
            });
  add_value(app, "--jobs", "J",
            "How many threads try mutants; the result does not depend on it [one per core]",
            [flags](const std::string& text) {
              flags->options.jobs = static_cast<int>(parse_whole("--jobs", text, 1, 1024));
            });
  add_value(app, "--survivors", "DIR", "Write a case file for each mutant that nobody caught",
            [flags](const std::string& text) { flags->survivors = text; });
  add_value(app, "--list", "OUTCOMES",
            "Print also each mutant that ended in one of these ways, for example equivalent, or check,result",
            [flags](const std::string& text) { flags->options.listed = outcomes_of(text); });
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "mutate takes right plans of small jobs (attention by every strategy, forward and backward, and\n"
      "redistributions, for the host and for GPUs) and damages each in one place. The first check that "
      "objects\n"
      "has caught the mutant: the plan check, the fabric that runs it, the ledgers (traffic, mask cells, "
      "memory),\n"
      "or the result. A mutant is equivalent if every order of the ranks that was tried ends with the right "
      "bits,\n"
      "and rearranged if only the order of a sum differs. All others survive. The command fails when more "
      "than\n"
      "0.5 % survive.\n\n"
      "Example:\n  cpsim mutate --cases 100000 --survivors survivors");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
