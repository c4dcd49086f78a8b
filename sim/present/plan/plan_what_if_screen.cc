#include "sim/present/plan/plan_what_if_screen.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "shared/transformer/short_layout.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/measurements.h"
#include "sim/present/csv_line.h"
#include "sim/present/plan/next_measurement.h"
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

std::string head_of(const sim::PlanAnswer& answer, const char* without, bool brief) {
  const std::string text = head_text(plan_head(answer.question, str("without ", without)), brief);
  return text.empty() ? "" : str("\n", text);
}

// ---- for each value ----

// In columns. Chosen: wider than the text around it (kScreenWidth), since a layout in one line is easier to
// compare.
constexpr std::size_t kTableWidth = 120;

const char* time_title(Phase phase) {
  return phase == Phase::training ? "step" : phase == Phase::prefill ? "TTFT" : "TTIT";
}

bool is_name(const PlanRow& row) { return !row.number && !row.name.empty(); }

// The title of the column of what varies.
std::string title_of(const PlanRows& rows) {
  if (rows.varies.empty() || rows.varies == "seq-len") return "tokens";
  return rows.varies == "gpus" ? "GPUs" : rows.varies;
}

std::string value_of(const PlanRow& row) {
  if (is_name(row)) return row.name;
  return human_count(row.number.value_or(row.seq_len));
}

// The rate with which rows are compared: that of the first row with an answer.
double first_rate(const PlanRows& rows) {
  for (const PlanRow& row : rows.rows) {
    if (row.best) return tokens_per_s(row);
  }
  return 0;
}

// All columns but the layout.
std::vector<Column> columns_of_rows(const PlanRows& rows) {
  const Align right = Align::right;
  const bool names = std::any_of(rows.rows.begin(), rows.rows.end(), is_name);
  std::vector<Column> columns{{title_of(rows), names ? Align::left : right}};
  if (rows.varies != "gpus") columns.push_back({"GPUs", right});
  columns.push_back({time_title(rows.phase), right});
  if (rows.rows.size() > 1) columns.push_back({"vs first", right});
  for (const char* title : {"tokens/s/GPU", "MFU", "GiB"}) columns.push_back({title, right});
  return columns;
}

std::vector<std::string> cells_of(const PlanRows& rows, const PlanRow& row) {
  std::vector<std::string> cells{value_of(row)};
  if (rows.varies != "gpus") cells.push_back(row.gpus > 0 ? human_count(row.gpus) : "-");
  if (!row.best) {
    cells.resize(columns_of_rows(rows).size(), "-");
    return cells;
  }
  const Candidate& best = *row.best;
  cells.push_back(human_us(best.step_us));
  if (rows.rows.size() > 1) cells.push_back(fmt::format("{:.3g}x", tokens_per_s(row) / first_rate(rows)));
  cells.insert(cells.end(), {human_rate(best.tokens_per_s_per_gpu), human_percent(best.mfu),
                             fmt::format("{:.1f}", static_cast<double>(counted(best)) / kGiB)});
  return cells;
}

// Breaks the layout into lines of this width, behind commas.
std::vector<std::string> layout_lines(const std::string& layout, std::size_t width) {
  std::vector<std::string> all{""};
  for (std::size_t begin = 0; begin < layout.size();) {
    const std::size_t comma = layout.find(',', begin);
    const std::size_t end = comma == std::string::npos ? layout.size() : comma + 1;
    if (!all.back().empty() && all.back().size() + end - begin > width) all.emplace_back();
    all.back() += layout.substr(begin, end - begin);
    begin = end;
  }
  return all;
}

std::size_t widest(std::string_view text) {
  std::size_t most = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    most = std::max(most, end - begin);
    begin = end + 1;
  }
  return most;
}

std::string table_of(const PlanRows& rows) {
  std::vector<Column> columns = columns_of_rows(rows);
  Table numbers(columns);
  for (const PlanRow& row : rows.rows) numbers.add_row(cells_of(rows, row));
  // The least number of columns that a layout gets, however wide a value is. Chosen: it holds a few degrees.
  constexpr std::size_t kLeast = 24;
  const std::size_t room = kTableWidth - std::min(widest(numbers.text()) + 2, kTableWidth - kLeast);
  columns.push_back({"layout"});
  Table table(columns);
  for (const PlanRow& row : rows.rows) {
    std::vector<std::string> cells = cells_of(rows, row);
    const std::string layout = row.best      ? short_text(row.best->layout)
                               : row.refused ? "not possible"
                                             : "nothing fits";
    for (const std::string& line : layout_lines(layout, room)) {
      cells.push_back(line);
      table.add_row(cells);
      cells.assign(columns.size() - 1, "");
    }
  }
  return str(table.text(), rows.rows.size() > 1 ? "      vs first: tokens a second of all GPUs\n" : "");
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

// The numbers of the layouts, counted from 1, in order of time: the fastest first.
std::vector<int> order_of(const std::vector<double>& times) {
  std::vector<int> order(times.size());
  std::iota(order.begin(), order.end(), 1);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return times[static_cast<std::size_t>(a) - 1] < times[static_cast<std::size_t>(b) - 1];
  });
  return order;
}

bool flips(const std::vector<int>& order) { return !std::is_sorted(order.begin(), order.end()); }

std::string whole_text(const ParallelLayout& layout) { return to_string(layout); }

// `in_words` writes a layout.
std::string summary_of(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                       std::string (*in_words)(const ParallelLayout&)) {
  const std::string asked = asked_of(answer.question, answer.question.workload.seq_len);
  const std::string best = in_words(sensitivity.layouts.front());
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
      100 * std::fabs(turn.factor - 1), turn.factor < 1 ? "slower" : "faster", short_text(layout),
      100 * turn.gain_share);
}

ordered_json next_measurements_json(const sim::PlanAnswer& answer) {
  ordered_json candidates = ordered_json::array();
  for (const NextMeasurement& one : next_measurements(answer))
    candidates.push_back(
        {{"what", name(one)}, {"saves_us", one.saves_us}, {"commands", commands(answer, one)}});
  return candidates;
}

// How far the other layouts are behind the best: a change must outweigh this.
std::string rivals(const sim::Sensitivity& sensitivity) {
  Table table({{"", Align::right}, {"time", Align::right}, {"behind", Align::right}, {"layout"}});
  for (std::size_t i = 0; i < sensitivity.layouts.size(); ++i) {
    const double more = sensitivity.step_us[i] / sensitivity.step_us[0] - 1;
    table.add_row({str(i + 1), human_us(sensitivity.step_us[i]), i == 0 ? "" : human_percent(more),
                   short_text(sensitivity.layouts[i])});
  }
  return table.text();
}

}  // namespace

std::string asked_of(const sim::PlanQuestion& question, std::int64_t seq_len) {
  const int gpus = question.cluster.num_gpus();
  return str(question.model.name, seq_len > 0 ? str(", ", human_count(seq_len), " tokens") : "", ", ",
             human_count(gpus), gpus == 1 ? " GPU of " : " GPUs of ", question.cluster.name);
}

double tokens_per_s(const PlanRow& row) { return row.best ? row.best->tokens_per_s_per_gpu * row.gpus : 0; }

std::string rows_text(const PlanRows& rows, bool brief) {
  const std::string head = head_text(rows.head, brief);
  Lines notes = rows.notes;
  if (brief) std::erase_if(notes, [](const auto& note) { return note.first == "next"; });
  std::string said;
  for (const auto& [title, text] : notes) {
    // A command is in one line, to be copied.
    said += title == "next" ? str("next        ", text, "\n") : titled_line(title, text);
  }
  return str(wrapped(rows.summary, kScreenWidth, 2), "\n\n", head.empty() ? "" : head + "\n", table_of(rows),
             said.empty() ? "" : "\n", said);
}

std::string rows_json(const PlanRows& rows) {
  const auto known = [](const auto& value) { return value > 0 ? ordered_json(value) : ordered_json(); };
  ordered_json json{{"schema", str("cpsim.plan.", rows.question, "/1")},
                    {"summary", rows.summary},
                    {"varies", rows.varies.empty() ? ordered_json() : ordered_json(rows.varies)},
                    {"assumptions", rows.assumptions},
                    {"rows", ordered_json::array()},
                    {"notes", ordered_json::array()}};
  const double first = first_rate(rows);
  for (const PlanRow& row : rows.rows) {
    ordered_json value;
    if (row.number) {
      value = *row.number;
    } else if (is_name(row)) {
      value = row.name;
    }
    json["rows"].push_back({{"value", std::move(value)},
                            {"seq_len", known(row.seq_len)},
                            {"global_batch", known(row.batch)},
                            {"nodes", known(row.nodes)},
                            {"gpus", known(row.gpus)},
                            {"cluster", row.cluster.empty() ? ordered_json() : ordered_json(row.cluster)},
                            {"best", row.best ? json_of(*row.best) : ordered_json()},
                            {"tokens_per_s", known(tokens_per_s(row))},
                            {"vs_first", row.best ? ordered_json(tokens_per_s(row) / first) : ordered_json()},
                            {"why", row.why}});
  }
  for (const auto& [title, text] : rows.notes) json["notes"].push_back(str(title, ": ", text));
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

std::string rows_csv(const PlanRows& rows) {
  std::string out;
  CsvLine head(out);
  for (const char* name : {"varies",       "value",
                           "seq_len",      "global_batch",
                           "nodes",        "gpus",
                           "cluster",      "layout",
                           "step_us",      "low_us",
                           "high_us",      "tokens_per_s",
                           "vs_first",     "tokens_per_s_per_gpu",
                           "mfu",          "exposed_us",
                           "bound",        "counted_bytes",
                           "usable_bytes", "why"})
    head.add(name);
  head.end();
  const double first = first_rate(rows);
  for (const PlanRow& row : rows.rows) {
    CsvLine line(out);
    const auto known = [&](std::int64_t value) {
      if (value > 0) {
        line.add(value);
      } else {
        line.add("");
      }
    };
    line.add(rows.varies);
    if (row.number) {
      line.add(*row.number);
    } else {
      line.add(row.name);
    }
    known(row.seq_len), known(row.batch), known(row.nodes), known(row.gpus);
    line.add(row.cluster);
    if (row.best) {
      const Candidate& best = *row.best;
      line.add(to_string(best.layout)).add(best.step_us).add(best.low_us).add(best.high_us);
      line.add(tokens_per_s(row)).add(tokens_per_s(row) / first).add(best.tokens_per_s_per_gpu).add(best.mfu);
      line.add(best.exposed_us).add(sim::bound_text(best.bound)).add(counted(best)).add(best.usable_bytes);
    } else {
      // The columns of rows_csv() from layout to usable_bytes, which are empty in a row without a best
      // layout.
      constexpr int kOfBest = 12;
      for (int i = 0; i < kOfBest; ++i) line.add("");
    }
    line.add(row.why).end();
  }
  return out;
}

std::string sensitivity_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity, bool brief) {
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
  return str(wrapped(summary_of(answer, sensitivity, short_text), kScreenWidth, 2), "\n",
             head_of(answer, "--sensitivity", brief), "\n", table.text(), "\n", rivals(sensitivity));
}

std::string sensitivity_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity) {
  ordered_json json{{"schema", "cpsim.plan.sensitivity/1"},
                    {"summary", summary_of(answer, sensitivity, whole_text)},
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
                             const std::string& then, bool brief) {
  const std::vector<sim::RateMeasurement> measured = sim::measurements(answer.question, sensitivity);
  const std::string head = head_of(answer, "--next-experiment", brief);
  std::string text = summary_of(answer, sensitivity, short_text);
  const std::string first = next_measurement_text(answer, then);
  if (measured.empty()) {
    return str(wrapped(text + (first.empty() ? ": no measurement would change that" : ""), kScreenWidth, 2),
               "\n", head, first.empty() ? "" : "\n", first);
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
  todo += lines({{"else", str("stay with ", short_text(sensitivity.layouts.front()))}});
  todo += str("then        ", then, "\n");
  for (const sim::Experiment& run : sim::next_experiments(sensitivity)) {
    todo += lines({{"or a run", str("time a step of ", short_text(run.layout), ": ", run.settles)}});
  }
  return str(wrapped(text, kScreenWidth, 2), "\n", head, "\n", first, first.empty() ? "" : "\n", table.text(),
             "\n", todo);
}

std::string experiments_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then) {
  ordered_json json{{"schema", "cpsim.plan.next_experiment/1"},
                    {"summary", summary_of(answer, sensitivity, whole_text)},
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
