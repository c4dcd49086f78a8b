#include "sim/present/runs/recurrence_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

// Rows of ranks that have fewer travel with padding, which is not wrong.
std::string received_text(const RecurrencePassResult& pass) {
  const std::int64_t more = pass.received.total() - pass.expected.total();
  return more == 0 ? human_bytes(pass.received.total())
                   : fmt::format("{} ({} needed)", human_bytes(pass.received.total()),
                                 human_bytes(pass.expected.total()));
}

std::string broken_text(const RecurrenceRun& run) {
  std::vector<std::string> broken;
  for (const Verdict& verdict : run.verdicts) {
    if (!verdict.holds) broken.push_back(verdict.name);
  }
  return broken.empty() ? "hold" : str("BROKEN: ", join(broken, ", "));
}

std::string outcomes_table(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes) {
  std::vector<std::string> tensors = {"out"};
  if (job.backward) tensors = {"out", "dq", "dk", "dv", "dlog_decay", "dbeta"};
  std::vector<Column> columns = {
      {"strategy"}, {"steps", Align::right}, {"hops", Align::right}, {"received", Align::right}};
  if (job.backward) columns.push_back({"backward", Align::right});
  columns.push_back({"peak per rank", Align::right});
  for (const std::string& tensor : tensors) columns.push_back({str("error ", tensor), Align::right});
  columns.push_back({"ledgers"}), columns.push_back({"result"});
  Table table(columns);
  for (const RecurrenceOutcome& outcome : outcomes) {
    std::vector<std::string> cells = {to_string(outcome.refusal ? outcome.refusal->strategy : outcome.asked)};
    if (!outcome.run) {
      cells.resize(columns.size() - 1);
      cells.emplace_back("FAILED");
      table.add_row(std::move(cells));
      continue;
    }
    const RecurrenceRun& run = *outcome.run;
    cells.push_back(str(run.forward.steps + run.backward.steps));
    cells.push_back(str(run.forward.hops + run.backward.hops));
    cells.push_back(received_text(run.forward));
    if (job.backward) cells.push_back(received_text(run.backward));
    cells.push_back(human_bytes(std::max(run.forward.peak_bytes, run.backward.peak_bytes)));
    for (const std::string& tensor : tensors) {
      const auto error = std::find_if(run.errors.begin(), run.errors.end(),
                                      [&](const TensorError& one) { return one.tensor == tensor; });
      cells.push_back(error == run.errors.end() ? "-" : fmt::format("{:.1e}", error->max_error));
    }
    cells.push_back(broken_text(run));
    cells.emplace_back(!run.holds() ? "WRONG" : outcome.refusal ? "refused; this instead: exact" : "exact");
    table.add_row(std::move(cells));
  }
  return table.text();
}

// Remarks for which the table has no room.
std::string findings_text(const std::vector<RecurrenceOutcome>& outcomes) {
  std::string text;
  for (const RecurrenceOutcome& outcome : outcomes) {
    const std::string asked = to_string(outcome.asked);
    if (outcome.refusal) text += fmt::format("{}: refused: {}\n", asked, outcome.refusal->reason);
    if (!outcome.error.empty()) text += fmt::format("{}: {}\n", asked, outcome.error);
    if (!outcome.run) continue;
    for (const Verdict& verdict : outcome.run->verdicts) {
      if (!verdict.holds) text += fmt::format("{}: {}: {}\n", asked, verdict.name, verdict.finding);
    }
    for (const TensorError& error : outcome.run->errors) {
      if (!error.holds()) text += fmt::format("{}: {}: {}\n", asked, error.tensor, error.finding);
    }
  }
  return text;
}

std::string count_text(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes) {
  const auto exact =
      std::count_if(outcomes.begin(), outcomes.end(), [](const auto& one) { return one.exact(); });
  double tolerance = 0, seconds = 0;
  for (const RecurrenceOutcome& outcome : outcomes) {
    if (!outcome.run) continue;
    seconds += outcome.run->seconds;
    for (const TensorError& error : outcome.run->errors) tolerance = std::max(tolerance, error.tolerance);
  }
  const std::string rows = fmt::format(", {} rows each computed once{}", human_count(job.problem.seq_len),
                                       job.backward ? " forward and once backward" : "");
  const auto refused = std::count_if(outcomes.begin(), outcomes.end(),
                                     [](const auto& one) { return one.refusal.has_value(); });
  return fmt::format("{} of {} exact{}: {} ranks{}; tolerances up to {:.1e}; {}\n", exact, outcomes.size(),
                     refused > 0 ? str(", ", refused, " in place of refused ones") : "", job.ranks.size(),
                     exact == static_cast<std::ptrdiff_t>(outcomes.size()) ? rows : "", tolerance,
                     human_seconds(seconds));
}

ordered_json pass_of(const RecurrencePassResult& pass) {
  return {{"steps", pass.steps},
          {"hops", pass.hops},
          {"bytes_received", pass.received.total()},
          {"states_received", pass.received.states},
          {"transitions_received", pass.received.transitions},
          {"rows_received", pass.received.rows},
          {"expected_bytes", pass.expected.total()},
          {"bytes_received_max", pass.received_max},
          {"peak_bytes", pass.peak_bytes}};
}

}  // namespace

std::string report_text(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes) {
  const std::string findings = findings_text(outcomes);
  return fmt::format("{} on {}{}\n\n{}\n{}{}", to_string(job.problem), job.where,
                     job.backward ? ", forward and backward" : ", forward", outcomes_table(job, outcomes),
                     findings.empty() ? "" : findings + "\n", count_text(job, outcomes));
}

ordered_json report_json(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes) {
  ordered_json json = {{"problem", to_string(job.problem)}, {"mesh", job.where}, {"ranks", job.ranks.size()}};
  ordered_json rows = ordered_json::array();
  for (const RecurrenceOutcome& outcome : outcomes) {
    ordered_json row = {{"strategy", to_string(outcome.asked)}, {"exact", outcome.exact()}};
    if (outcome.refusal) {
      row["refused"] = outcome.refusal->reason;
      row["alternative"] = to_string(outcome.refusal->strategy);
    }
    if (!outcome.error.empty()) row["error"] = outcome.error;
    if (outcome.run) {
      row["forward"] = pass_of(outcome.run->forward);
      if (job.backward) row["backward"] = pass_of(outcome.run->backward);
      for (const TensorError& error : outcome.run->errors) {
        row["errors"][error.tensor] = {
            {"max_error", error.max_error}, {"tolerance", error.tolerance}, {"finding", error.finding}};
      }
      for (const Verdict& verdict : outcome.run->verdicts)
        row["ledgers"][verdict.name] = {{"holds", verdict.holds}, {"finding", verdict.finding}};
    }
    rows.push_back(std::move(row));
  }
  json["strategies"] = std::move(rows);
  return json;
}

}  // namespace cp::sim
