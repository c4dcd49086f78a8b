#include "sim/present/plan/plan_what_if_screen.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/planner/search/measurements.h"
#include "sim/present/number_text.h"
#include "sim/present/plan/next_measurement.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/plan/plan_screen.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;
using sim::Candidate;
using Lines = std::vector<std::pair<std::string, std::string>>;

std::string lines(const Lines& all) {
  std::string text;
  for (const auto& [title, what] : all) text += titled_line(title, what);
  return text;
}

std::int64_t counted(const Candidate& candidate) {
  return candidate.memory.used() - candidate.memory.context;
}

// ---- at lengths, on nodes ----

const char* time_title(Phase phase) {
  return phase == Phase::training ? "step" : phase == Phase::prefill ? "TTFT" : "TTIT";
}

std::vector<std::string> cells_of(const PlanRow& row) {
  std::vector<std::string> cells{human_count(row.seq_len), human_count(row.gpus)};
  if (!row.best) {
    cells.insert(cells.end(), {"-", "-", "-", "-", "-", "nothing fits"});
    return cells;
  }
  const Candidate& best = *row.best;
  cells.insert(cells.end(),
               {human_us(best.step_us), human_rate(best.tokens_per_s_per_gpu), human_percent(best.mfu),
                fmt::format("{:.1f}", static_cast<double>(counted(best)) / kGiB),
                human_percent(best.exposed_us / best.step_us), to_string(best.layout)});
  return cells;
}

ordered_json json_of(const Candidate& candidate) {
  return {{"layout", to_string(candidate.layout)},
          {"step_us", candidate.step_us},
          {"low_us", candidate.low_us},
          {"high_us", candidate.high_us},
          {"tokens_per_s_per_gpu", candidate.tokens_per_s_per_gpu},
          {"mfu", candidate.mfu},
          {"exposed_us", candidate.exposed_us},
          {"bound", sim::bound_text(candidate.bound)},
          {"counted_bytes", counted(candidate)},
          {"usable_bytes", candidate.usable_bytes}};
}

// ---- when rates change ----

std::string name_of(const sim::Changed& changed) {
  return str(changed.rate, " 10 % ", changed.factor > 1 ? "faster" : "slower");
}

// Numbers of the layouts, from 1, the fastest first.
std::vector<int> order_of(const std::vector<double>& times) {
  std::vector<int> order(times.size());
  std::iota(order.begin(), order.end(), 1);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return times[static_cast<std::size_t>(a) - 1] < times[static_cast<std::size_t>(b) - 1];
  });
  return order;
}

bool flips(const std::vector<int>& order) { return !std::is_sorted(order.begin(), order.end()); }

std::string summary_of(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity) {
  const std::string asked = asked_of(answer.question, answer.question.workload.seq_len);
  const std::string best = to_string(sensitivity.layouts.front());
  if (sensitivity.layouts.size() == 1) return str(asked, ": ", best, " has no rival");
  if (sensitivity.robust()) return str(asked, ": ", best, " stays the best whatever rate is 10 % off");
  std::vector<std::string> when;
  for (const sim::Changed& changed : sensitivity.changes) {
    if (changed.best != 0) when.push_back(name_of(changed));
  }
  return str(asked, ": ", best, " is the best, but not with ", join(when, ", or "));
}

// "if network turns out more than 4.1 % slower than assumed: tp=8,..., which is 1.3 % faster at 10 %".
std::string what_to_do(const sim::RateMeasurement& of, const sim::TurningPoint& turn,
                       const sim::Sensitivity& sensitivity) {
  const ParallelLayout& layout = sensitivity.layouts[static_cast<std::size_t>(turn.layout)];
  return fmt::format(
      "if {} turns out more than {:.1f} % {} than assumed: {}, which is {:.1f} % faster at 10 %", of.rate,
      100 * std::fabs(turn.factor - 1), turn.factor < 1 ? "slower" : "faster", to_string(layout),
      100 * turn.gain_share);
}

ordered_json next_measurements_json(const sim::PlanAnswer& answer) {
  ordered_json candidates = ordered_json::array();
  for (const NextMeasurement& one : next_measurements(answer))
    candidates.push_back(
        {{"what", name(one)}, {"saves_us", one.saves_us}, {"commands", commands(answer, one)}});
  return candidates;
}

// How far the others are behind: what a change must outweigh.
std::string rivals(const sim::Sensitivity& sensitivity) {
  Table table({{"", Align::right}, {"time", Align::right}, {"behind", Align::right}, {"layout"}});
  for (std::size_t i = 0; i < sensitivity.layouts.size(); ++i) {
    const double more = sensitivity.step_us[i] / sensitivity.step_us[0] - 1;
    table.add_row({str(i + 1), human_us(sensitivity.step_us[i]), i == 0 ? "" : human_percent(more),
                   to_string(sensitivity.layouts[i])});
  }
  return table.text();
}

}  // namespace

std::string asked_of(const sim::PlanQuestion& question, std::int64_t seq_len) {
  const int gpus = question.cluster.num_gpus();
  return str(question.model.name, seq_len > 0 ? str(", ", human_count(seq_len), " tokens") : "", ", ",
             human_count(gpus), gpus == 1 ? " GPU of " : " GPUs of ", question.cluster.name);
}

std::string rows_text(const PlanRows& rows) {
  const Align right = Align::right;
  Table table({{"tokens", right},
               {"GPUs", right},
               {time_title(rows.phase), right},
               {"tokens/s/GPU", right},
               {"MFU", right},
               {"GiB", right},
               {"exposed", right},
               {"layout"}});
  for (const PlanRow& row : rows.rows) table.add_row(cells_of(row));
  return str(wrapped(rows.summary, kScreenWidth, 2), "\n\n", lines(rows.inputs), "\n", table.text(),
             rows.notes.empty() ? "" : "\n", lines(rows.notes));
}

std::string rows_json(const PlanRows& rows) {
  ordered_json json{{"schema", str("cpsim.plan.", rows.question, "/1")},
                    {"summary", rows.summary},
                    {"rows", ordered_json::array()},
                    {"notes", ordered_json::array()}};
  for (const PlanRow& row : rows.rows) {
    json["rows"].push_back({{"seq_len", row.seq_len},
                            {"nodes", row.nodes},
                            {"gpus", row.gpus},
                            {"best", row.best ? json_of(*row.best) : ordered_json()},
                            {"why", row.why}});
  }
  for (const auto& [title, text] : rows.notes) json["notes"].push_back(str(title, ": ", text));
  return json.dump(2);
}

std::string sensitivity_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity) {
  Table table({{"change"},
               {"the best", Align::right},
               {"differs by", Align::right},
               {"then fastest", Align::right},
               {"order"}});
  table.add_row(
      {"none", human_us(sensitivity.step_us[0]), "", "1", join(order_of(sensitivity.step_us), " ")});
  for (const sim::Changed& changed : sensitivity.changes) {
    const std::vector<int> order = order_of(changed.step_us);
    table.add_row({name_of(changed), human_us(changed.step_us[0]),
                   fmt::format("{:+.1f} %", 100 * (changed.step_us[0] / sensitivity.step_us[0] - 1)),
                   str(changed.best + 1), flips(order) ? join(order, " ") : "the same"});
  }
  return str(wrapped(summary_of(answer, sensitivity), kScreenWidth, 2), "\n\n",
             lines(plan_inputs(answer.question)), "\n", table.text(), "\n", rivals(sensitivity));
}

std::string sensitivity_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity) {
  ordered_json json{{"schema", "cpsim.plan.sensitivity/1"},
                    {"summary", summary_of(answer, sensitivity)},
                    {"robust", sensitivity.robust()},
                    {"layouts", ordered_json::array()},
                    {"changes", ordered_json::array()}};
  for (std::size_t i = 0; i < sensitivity.layouts.size(); ++i)
    json["layouts"].push_back(
        {{"layout", to_string(sensitivity.layouts[i])}, {"step_us", sensitivity.step_us[i]}});
  for (const sim::Changed& changed : sensitivity.changes) {
    json["changes"].push_back({{"rate", changed.rate},
                               {"factor", changed.factor},
                               {"step_us", changed.step_us},
                               {"order", order_of(changed.step_us)}});
  }
  return json.dump(2);
}

std::string experiments_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then) {
  const std::vector<sim::RateMeasurement> measured = sim::measurements(answer.question, sensitivity);
  std::string text = summary_of(answer, sensitivity);
  const std::string first = next_measurement_text(answer, then);
  if (measured.empty()) {
    return str(wrapped(text + (first.empty() ? ": no measurement would change that" : ""), kScreenWidth, 2),
               "\n\n", lines(plan_inputs(answer.question)), first.empty() ? "" : "\n", first);
  }
  if (first.empty()) text += str(": measure ", measured.front().rate, " first");
  Table table({{"measure"}, {"settles", Align::right}, {"not knowing it costs", Align::right}});
  std::string todo;
  for (const sim::RateMeasurement& of : measured) {
    table.add_row({of.rate, fmt::format("{:.0f} %", 100 * of.settles), human_us(of.regret_us)});
    // Commands are in one line each, to be copied.
    const auto command = [&](std::string_view title, const std::string& line) {
      if (!line.empty())
        todo += str(title, std::string(kScreenIndent > title.size() ? kScreenIndent - title.size() : 2, ' '),
                    line, "\n");
    };
    command(of.rate, of.command.profile);
    command("  2nd node", of.command.other);
    command("  nccl test", of.command.quick);
    for (const sim::TurningPoint& turn : of.turns) todo += lines({{"", what_to_do(of, turn, sensitivity)}});
  }
  todo += lines({{"else", str("stay with ", to_string(sensitivity.layouts.front()))}});
  todo += str("then        ", then, "\n");
  for (const sim::Experiment& run : sim::next_experiments(sensitivity)) {
    todo += lines({{"or a run", str("time a step of ", to_string(run.layout), ": ", run.settles)}});
  }
  return str(wrapped(text, kScreenWidth, 2), "\n\n", lines(plan_inputs(answer.question)), "\n", first,
             first.empty() ? "" : "\n", table.text(), "\n", todo);
}

std::string experiments_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then) {
  ordered_json json{{"schema", "cpsim.plan.next_experiment/1"},
                    {"summary", summary_of(answer, sensitivity)},
                    {"robust", sensitivity.robust()},
                    {"measurements", ordered_json::array()},
                    {"candidates", next_measurements_json(answer)},
                    {"then", then},
                    {"experiments", ordered_json::array()}};
  for (const sim::RateMeasurement& of : sim::measurements(answer.question, sensitivity)) {
    ordered_json turns = ordered_json::array();
    for (const sim::TurningPoint& turn : of.turns) {
      const ParallelLayout& layout = sensitivity.layouts[static_cast<std::size_t>(turn.layout)];
      turns.push_back(
          {{"factor", turn.factor}, {"layout", to_string(layout)}, {"gain_share", turn.gain_share}});
    }
    json["measurements"].push_back({{"rate", of.rate},
                                    {"settles", of.settles},
                                    {"regret_us", of.regret_us},
                                    {"profile", of.command.profile},
                                    {"other", of.command.other},
                                    {"quick", of.command.quick},
                                    {"turns", std::move(turns)}});
  }
  for (const sim::Experiment& run : sim::next_experiments(sensitivity)) {
    json["experiments"].push_back({{"layout", to_string(run.layout)},
                                   {"expected_us", run.expected_us},
                                   {"settles", run.settles},
                                   {"separates", run.separates}});
  }
  return json.dump(2);
}

}  // namespace cp::sim
