#include "sim/present/runs/attention_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

int cp_of(const sim::AttentionJob& job) { return static_cast<int>(job.ranks.size()); }

const sim::TensorError* error_of(const sim::AttentionRun& run, std::string_view tensor) {
  const auto at = std::find_if(run.errors.begin(), run.errors.end(),
                               [&](const sim::TensorError& error) { return error.tensor == tensor; });
  return at == run.errors.end() ? nullptr : &*at;
}

std::string bytes_cell(const sim::AttentionPassResult& pass) {
  const bool as_expected = pass.bytes_received == pass.expected_bytes;
  return as_expected
             ? human_bytes(pass.bytes_received)
             : fmt::format("{} (not {})", human_bytes(pass.bytes_received), human_bytes(pass.expected_bytes));
}

std::string ledger_cell(const sim::AttentionRun& run) {
  std::vector<std::string> broken;
  for (const sim::Verdict& verdict : run.verdicts) {
    if (!verdict.holds) broken.push_back(verdict.name);
  }
  return broken.empty() ? "hold" : str("BROKEN: ", join(broken, ", "));
}

std::vector<std::string> tensors(const sim::AttentionJob& job) {
  std::vector<std::string> names = {"out", "lse"};
  if (!job.backward) return names;
  const Gradients& wanted = job.options.gradients;
  if (job.problem.has_latent()) {
    if (wanted.dq) names.emplace_back("dq");
    if (wanted.dk) names.insert(names.end(), {"dlatent", "dkv_up"});
  } else {
    const std::string gradients = to_string(wanted);
    for (const std::string_view gradient : split(gradients, ',')) names.emplace_back(gradient);
  }
  if (job.problem.sinks) names.emplace_back("dsinks");
  return names;
}

std::string passes_text(const sim::AttentionJob& job) {
  if (!job.backward) return ", forward";
  const bool all = job.options.gradients == Gradients{};
  return str(", forward and backward", all ? "" : str(" (", to_string(job.options.gradients), ")"));
}

// What travels in place of keys and values.
Strategy::Keys keys_of(const sim::AttentionJob& job, const Strategy& strategy) {
  return travelling_keys({job.problem, job.ranks, strategy, job.backward, job.options});
}

std::string table_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes) {
  const bool has_latent = job.problem.has_latent();
  std::vector<Column> columns = {{"strategy"}};
  if (has_latent) columns.push_back({"keys travel as"});
  columns.push_back({"steps", Align::right});
  columns.push_back({"received", Align::right});
  if (job.backward) columns.push_back({"backward", Align::right});
  columns.push_back({"unneeded k, v", Align::right});
  columns.push_back({"peak per rank", Align::right});
  columns.push_back({"bound", Align::right});
  for (const std::string& tensor : tensors(job)) columns.push_back({str("error ", tensor), Align::right});
  columns.push_back({"ledgers"});
  columns.push_back({"result"});
  Table table(columns);
  for (const StrategyOutcome& outcome : outcomes) {
    const Strategy& ran = outcome.refusal ? outcome.refusal->strategy : outcome.asked;
    std::vector<std::string> cells = {to_string(ran, cp_of(job))};
    if (has_latent) cells.emplace_back(name(keys_of(job, ran)));
    if (!outcome.run) {
      cells.resize(columns.size() - 1);
      cells.push_back("FAILED");
      table.add_row(std::move(cells));
      continue;
    }
    const sim::AttentionRun& run = *outcome.run;
    cells.push_back(str(run.forward.steps + run.backward.steps));
    cells.push_back(bytes_cell(run.forward));
    if (job.backward) cells.push_back(bytes_cell(run.backward));
    cells.push_back(human_bytes(run.forward.redundant_kv_bytes + run.backward.redundant_kv_bytes));
    cells.push_back(human_bytes(std::max(run.forward.peak_bytes, run.backward.peak_bytes)));
    cells.push_back(human_bytes(std::max(run.forward.peak_bound_bytes, run.backward.peak_bound_bytes)));
    for (const std::string& tensor : tensors(job)) {
      const sim::TensorError* error = error_of(run, tensor);
      cells.push_back(error == nullptr ? "-" : fmt::format("{:.1e}", error->max_error));
    }
    cells.push_back(ledger_cell(run));
    cells.push_back(!run.holds() ? "WRONG" : outcome.refusal ? "refused; this instead: exact" : "exact");
    table.add_row(std::move(cells));
  }
  return table.text();
}

// Remarks for which the table has no room.
std::string remarks_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes) {
  std::string text;
  for (const std::string& note : job.notes) text += note + "\n";
  for (const StrategyOutcome& outcome : outcomes) {
    const std::string asked = to_string(outcome.asked, cp_of(job));
    if (outcome.refusal) text += fmt::format("{}: refused: {}\n", asked, outcome.refusal->reason);
    if (!outcome.error.empty()) text += fmt::format("{}: {}\n", asked, outcome.error);
    if (!outcome.run) continue;
    for (const sim::Verdict& verdict : outcome.run->verdicts) {
      if (!verdict.holds) text += fmt::format("{}: {}: {}\n", asked, verdict.name, verdict.finding);
    }
    for (const sim::TensorError& error : outcome.run->errors) {
      if (!error.holds()) text += fmt::format("{}: {}: {}\n", asked, error.tensor, error.finding);
    }
  }
  return text;
}

std::string summary_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes) {
  const auto exact = std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return o.exact(); });
  double seconds = 0;
  std::int64_t cells = 0;
  double tolerance = 0;
  for (const StrategyOutcome& outcome : outcomes) {
    if (!outcome.run) continue;
    const sim::AttentionRun& run = *outcome.run;
    seconds += run.plan_s + run.check_s + run.run_s + run.ledger_s + run.compare_s;
    cells = std::max(cells, run.forward.cells);
    for (const sim::TensorError& error : run.errors) tolerance = std::max(tolerance, error.tolerance);
  }
  const auto refused =
      std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return o.refusal.has_value(); });
  return fmt::format(
      "{} of {} exact{}: {} ranks, {} allowed pairs each computed once{}; tolerances up to {:.1e}; {}\n",
      exact, outcomes.size(), refused > 0 ? str(", ", refused, " in place of refused ones") : "",
      job.ranks.size(), human_count(cells), job.backward ? " forward and once backward" : "", tolerance,
      human_seconds(seconds));
}

ordered_json pass_json(const sim::AttentionPassResult& pass) {
  return {{"steps", pass.steps},
          {"bytes_received", pass.bytes_received},
          {"bytes_received_max", pass.bytes_received_max},
          {"expected_bytes", pass.expected_bytes},
          {"redundant_kv_bytes", pass.redundant_kv_bytes},
          {"peak_bytes", pass.peak_bytes},
          {"peak_bound_bytes", pass.peak_bound_bytes},
          {"cells", pass.cells}};
}

}  // namespace

std::string report_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes) {
  const std::string remarks = remarks_text(job, outcomes);
  return fmt::format("{} on {}{}\n\n{}\n{}{}", to_string(job.problem), job.where, passes_text(job),
                     table_text(job, outcomes), remarks.empty() ? "" : remarks + "\n",
                     summary_text(job, outcomes));
}

ordered_json report_json(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes) {
  ordered_json json = {{"problem", to_string(job.problem)}, {"mesh", job.where}, {"ranks", job.ranks.size()}};
  ordered_json rows = ordered_json::array();
  for (const StrategyOutcome& outcome : outcomes) {
    ordered_json row = {{"strategy", to_string(outcome.asked, cp_of(job))}, {"exact", outcome.exact()}};
    if (job.problem.has_latent()) {
      const Strategy& ran = outcome.refusal ? outcome.refusal->strategy : outcome.asked;
      row["keys"] = std::string(name(keys_of(job, ran)));
    }
    if (outcome.refusal) {
      row["refused"] = outcome.refusal->reason;
      row["alternative"] = to_string(outcome.refusal->strategy, cp_of(job));
    }
    if (!outcome.error.empty()) row["error"] = outcome.error;
    if (outcome.run) {
      row["forward"] = pass_json(outcome.run->forward);
      if (job.backward) row["backward"] = pass_json(outcome.run->backward);
      for (const sim::TensorError& error : outcome.run->errors) {
        row["errors"][error.tensor] = {
            {"max_error", error.max_error}, {"tolerance", error.tolerance}, {"finding", error.finding}};
      }
      for (const sim::Verdict& verdict : outcome.run->verdicts) {
        row["ledgers"][verdict.name] = {{"holds", verdict.holds}, {"finding", verdict.finding}};
      }
    }
    rows.push_back(std::move(row));
  }
  if (!job.notes.empty()) json["notes"] = job.notes;
  json["strategies"] = std::move(rows);
  return json;
}

}  // namespace cp::sim
