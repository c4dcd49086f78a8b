// cpsim validate: predictions beside published measurements.
#include "sim/validate/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/cpsim/commands.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/units.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;

struct Flags {
  std::vector<std::string> tables;
  bool rows = false, json = false;
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string both(const sim::ErrorSummary& summary) {
  if (summary.rows == 0) return "-";
  return str(percent(summary.median), " / ", percent(summary.p90));
}

std::string target_of(const sim::ValidationTable& table) {
  const std::string target =
      table.target_median > 0
          ? str(percent(table.target_median), " / ", table.target_p90 > 0 ? percent(table.target_p90) : "-")
      : table.target_worst > 0 ? str(percent(table.target_worst), " each")
                               : "";
  if (target.empty()) return "-";
  return target + (table.within_target() ? "  met" : "  MISSED");
}

std::string summary_text(const std::vector<sim::ValidationTable>& tables) {
  Table text({{"table"},
              {"rows", Align::right},
              {"in sample", Align::right},
              {"rows", Align::right},
              {"out of sample", Align::right},
              {"worst", Align::right},
              {"target", Align::right},
              {"fastest told right", Align::right}});
  for (const sim::ValidationTable& table : tables) {
    const sim::ErrorSummary in = table.summary(true), out = table.summary(false);
    const sim::OrderingSummary order = table.orderings();
    text.add_row({table.name, str(in.rows), both(in), str(out.rows), both(out), percent(out.worst),
                  target_of(table), order.grids == 0 ? "-" : str(order.right, " of ", order.grids)});
  }
  return text.text();
}

std::string amount(double value, const sim::ValidationTable& table) {
  return table.unit == "us" ? human_us(value) : fmt::format("{:.1f} {}", value, table.unit);
}

std::string worst_text(const sim::ValidationTable& table) {
  constexpr std::size_t kShown = 3;
  std::vector<const sim::ValidationRow*> scored;
  for (const sim::ValidationRow& row : table.rows) {
    if (!row.in_sample && row.oddity.empty()) scored.push_back(&row);
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto* a, const auto* b) { return std::abs(a->error()) > std::abs(b->error()); });
  std::string text = str(table.name, ": ", table.in_sample_rule, "; on ", table.cluster, ", software ",
                         table.software, "\n");
  for (std::size_t i = 0; i < std::min(kShown, scored.size()); ++i) {
    const sim::ValidationRow& row = *scored[i];
    text += fmt::format("  {:+.1f} %  {}: {} measured, {} predicted\n", 100 * row.error(), row.what,
                        amount(row.measured, table), amount(row.predicted, table));
  }
  for (const sim::ValidationRow& row : table.rows) {
    // Whole lengths that are not scored are many: --rows prints them.
    const bool many = row.oddity.starts_with("hops") || row.oddity == "noisy";
    if (row.oddity.empty() || many) continue;
    text += fmt::format("  not scored, {:+.1f} %: {}: {}\n", 100 * row.error(), row.what, row.oddity);
  }
  return text;
}

std::string rows_text(const sim::ValidationTable& table) {
  Table text({{"row"},
              {"what"},
              {"measured", Align::right},
              {"predicted", Align::right},
              {"error", Align::right},
              {""}});
  for (const sim::ValidationRow& row : table.rows) {
    text.add_row({row.where, row.what, amount(row.measured, table), amount(row.predicted, table),
                  fmt::format("{:+.1f} %", 100 * row.error()),
                  !row.oddity.empty() ? str("not scored: ", row.oddity)
                  : row.in_sample     ? "in sample"
                                      : ""});
  }
  return text.text();
}

std::string parameters_text(const std::vector<sim::FreeParameter>& parameters) {
  Table text({{"free parameter"},
              {"value", Align::right},
              {"without it", Align::right},
              {"table"},
              {"error", Align::right},
              {"error without it", Align::right},
              {"set by"}});
  for (const sim::FreeParameter& parameter : parameters) {
    text.add_row({str(parameter.software, " ", parameter.name), fmt::format("{:g}", parameter.value),
                  fmt::format("{:g}", parameter.neutral), parameter.table, both(parameter.with),
                  both(parameter.without), parameter.source.substr(0, parameter.source.find(": cpsim "))});
  }
  return text.text();
}

ordered_json json_of(const sim::ErrorSummary& summary) {
  return {{"rows", summary.rows}, {"median", summary.median}, {"p90", summary.p90}, {"worst", summary.worst}};
}

ordered_json json_of(const sim::ValidationTable& table) {
  ordered_json rows = ordered_json::array();
  for (const sim::ValidationRow& row : table.rows) {
    rows.push_back({{"where", row.where},
                    {"what", row.what},
                    {"measured", row.measured},
                    {"predicted", row.predicted},
                    {"in_sample", row.in_sample},
                    {"oddity", row.oddity}});
  }
  const sim::OrderingSummary order = table.orderings();
  return {
      {"table", table.name},
      {"in_sample", json_of(table.summary(true))},
      {"out_of_sample", json_of(table.summary(false))},
      {"unit", table.unit},
      {"target", {{"median", table.target_median}, {"p90", table.target_p90}, {"worst", table.target_worst}}},
      {"within_target", table.within_target()},
      {"grids", order.grids},
      {"grids_right", order.right},
      {"rows", std::move(rows)}};
}

int run(const Flags& flags) {
  std::vector<sim::ValidationTable> tables;
  std::vector<sim::FreeParameter> parameters;
  {
    Progress progress;
    for (const std::string& name : flags.tables.empty() ? sim::validation_names() : flags.tables) {
      progress.show(str("predicting ", name));
      tables.push_back(sim::validate_table(name));
    }
    if (flags.tables.empty()) {
      progress.show("without each free parameter");
      parameters = sim::free_parameters();
    }
  }
  const bool met =
      std::all_of(tables.begin(), tables.end(), [](const auto& table) { return table.within_target(); });
  if (flags.json) {
    ordered_json json = ordered_json::array();
    for (const sim::ValidationTable& table : tables) json.push_back(json_of(table));
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("absolute relative errors, median / 90th percentile\n\n{}\n", summary_text(tables));
    for (const sim::ValidationTable& table : tables)
      fmt::print("{}", flags.rows ? rows_text(table) : worst_text(table));
    if (!parameters.empty()) fmt::print("\n{}", parameters_text(parameters));
  }
  return static_cast<int>(met ? ExitCode::success : ExitCode::check_failed);
}

}  // namespace

Command add_validate(CLI::App& cpsim) {
  CLI::App* app = cpsim.add_subcommand("validate", "Predicted against published measurements");
  const auto flags = std::make_shared<Flags>();
  app->add_option("tables", flags->tables, "Some of the tables [all]")->type_name("TABLE");
  app->add_flag("--rows", flags->rows, "Print every row");
  app->add_flag("--json", flags->json, "Print JSON");
  app->footer(
      "Exit code 1 when a table misses its target.\n"
      "Example:\n"
      "  cpsim validate\n"
      "  cpsim validate ring_attention_backward --rows");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
