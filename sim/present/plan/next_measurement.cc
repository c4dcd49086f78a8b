#include "sim/present/plan/next_measurement.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/measurements.h"
#include "sim/present/plan/plan_screen.h"

namespace cp::sim {
namespace {

// The layouts to time: those that differ in how attention is split, the best first.
std::vector<ParallelLayout> layouts_to_time(const PlanAnswer& answer) {
  // Chosen: each one is a run on the cluster that somebody must start.
  constexpr std::size_t kMost = 3;
  std::vector<ParallelLayout> layouts;
  const auto add = [&](const ParallelLayout& layout) {
    const bool known = std::any_of(layouts.begin(), layouts.end(), [&](const ParallelLayout& other) {
      return other.cp == layout.cp && other.tp == layout.tp && other.strategy == layout.strategy;
    });
    if (layout.cp > 1 && !known && layouts.size() < kMost) layouts.push_back(layout);
  };
  if (!answer.best.empty()) add(answer.best.front().layout);
  for (const ParallelLayout& layout : answer.worth_trying) add(layout);
  return layouts;
}

std::string saving(const PlanAnswer& answer, double us) {
  return fmt::format("{} a step ({:.1f} %)", human_us(us), 100 * us / answer.best.front().step_us);
}

std::string cprun_command(const PlanAnswer& answer, int ranks, const std::string& file) {
  const int of_node = answer.question.cluster.node.gpus;
  if (ranks <= of_node) return str("cprun --backend nccl --nproc-per-node ", ranks, " ", file);
  return str("cprun --backend nccl --nproc-per-node ", of_node, " --nnodes ", ranks / of_node,
             " --node-rank I --rdzv-endpoint HOST:PORT --token-file F ", file,
             "    # I = 0, 1, ... on each node");
}

}  // namespace

std::vector<NextMeasurement> next_measurements(const PlanAnswer& answer) {
  // A share of the step. Chosen: less is far below what a prediction can tell.
  constexpr double kWorthIt = 0.001;
  std::vector<NextMeasurement> found;
  if (answer.best.empty()) return found;
  for (const Worth& worth : answer.worths) found.push_back({worth.rate, worth.us});
  found.push_back({std::nullopt, answer.strategies_worth_us});
  std::erase_if(found, [&](const NextMeasurement& one) {
    return one.saves_us < kWorthIt * answer.best.front().step_us;
  });
  std::stable_sort(found.begin(), found.end(), [](const NextMeasurement& a, const NextMeasurement& b) {
    return a.saves_us > b.saves_us;
  });
  return found;
}

std::string name(const NextMeasurement& measurement) {
  return measurement.rate ? std::string(name(*measurement.rate)) : "attention of one layer by each strategy";
}

std::vector<std::string> commands(const PlanAnswer& answer, const NextMeasurement& measurement) {
  std::vector<std::string> all;
  if (measurement.rate) {
    const MeasurementCommand command = measurement_command(answer.question, *measurement.rate);
    all.push_back(command.profile);
    if (!command.other.empty()) all.push_back(command.other);
    return all;
  }
  const std::string same = answer.next_command.empty() ? "cpsim plan ..." : answer.next_command;
  for (const ParallelLayout& layout : layouts_to_time(answer)) {
    const std::string file = str("attention", all.size() / 2 + 1, ".txtpb");
    all.push_back(str(same, " --explain ", to_string(layout), " --emit attention --output ", file));
    all.push_back(cprun_command(answer, layout.cp, file));
  }
  return all;
}

std::string next_measurement_text(const PlanAnswer& answer, const std::string& then) {
  const std::vector<NextMeasurement> all = next_measurements(answer);
  if (all.empty()) return "";
  const NextMeasurement& first = all.front();
  std::string text = titled_line(
      "run first", str(first.rate ? "measure " : "time ", name(first),
                       ": to know it before choosing is expected to save ", saving(answer, first.saves_us)));
  // Each command has a line of its own, to be copied.
  for (const std::string& command : commands(answer, first))
    text += str(std::string(kScreenIndent, ' '), command, "\n");
  if (first.rate) {
    text += titled_line("it settles", str("the rate of ", name(first), " on these machines; plan with it:"));
    text += str(std::string(kScreenIndent, ' '), then, "\n");
  } else {
    text += titled_line(
        "it settles",
        "which strategy's attention is the fastest on these machines; take the layout whose attention "
        "took least, unless other parts of its step take more than that saves");
  }
  std::vector<std::string> others;
  for (std::size_t i = 1; i < std::min<std::size_t>(all.size(), 4); ++i)
    others.push_back(str(name(all[i]), " ", saving(answer, all[i].saves_us)));
  if (!others.empty()) text += titled_line("next best", join(others, ", "));
  return text;
}

}  // namespace cp::sim
