// cpsim validate: predictions beside published measurements.
#include "sim/accuracy/validate/validate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/accuracy/validate/accuracy_page.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/present/table.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;

struct Flags {
  std::vector<std::string> tables;
  std::string markdown;
  int jobs = sim::num_cores();
  bool rows = false, json = false;
};

using sim::percent_text;
using sim::signed_percent_text;

std::string both(const sim::ErrorSummary& summary) {
  if (summary.rows == 0) return "-";
  return str(percent_text(summary.median), " / ", percent_text(summary.p90));
}

std::string share_text(const sim::CoverageSummary& coverage) {
  return coverage.rows == 0 ? "-" : fmt::format("{:.0f} %", 100 * coverage.share());
}

std::string regret_text(const sim::OrderingSummary& order) {
  return str(percent_text(order.median_regret), " / ", percent_text(order.mean_regret));
}

std::string summary_text(const std::vector<sim::ValidationTable>& tables) {
  sim::Table text({{"table"},
                   {"fitted", sim::Align::right},
                   {"error there", sim::Align::right},
                   {"test", sim::Align::right},
                   {"error", sim::Align::right},
                   {"signed", sim::Align::right},
                   {"worst", sim::Align::right},
                   {"target"},
                   {"in 80 %", sim::Align::right}});
  for (const sim::ValidationTable& table : tables) {
    const sim::ErrorSummary in = table.summary(true), out = table.summary(false);
    text.add_row({table.name, str(in.rows), both(in), str(out.rows), both(out),
                  signed_percent_text(out.signed_median), percent_text(out.worst), target_text(table),
                  share_text(table.coverage())});
  }
  return text.text();
}

std::string choices_text(const std::vector<sim::ValidationTable>& tables) {
  sim::Table text({{"table"},
                   {"chosen by"},
                   {"groups", sim::Align::right},
                   {"told right", sim::Align::right},
                   {"regret, median / mean", sim::Align::right},
                   {"worst", sim::Align::right}});
  bool any = false;
  for (const sim::ValidationTable& table : tables) {
    const auto add = [&](const std::string& by, const sim::OrderingSummary& order) {
      text.add_row({table.name, by, str(order.grids), str(order.right), regret_text(order),
                    percent_text(order.worst_regret)});
    };
    const sim::OrderingSummary model = table.orderings();
    if (model.grids == 0) continue;
    any = true;
    add("the prediction", model);
    for (std::size_t rule = 0; rule < table.rules.size(); ++rule)
      add(table.rules[rule], table.orderings_of_rule(rule));
  }
  return any ? text.text() : "";
}

std::string totals_text(const std::vector<sim::ValidationTable>& tables) {
  std::string text;
  const sim::CoverageSummary coverage = coverage_of(tables);
  const sim::OrderingSummary order = orderings_of(tables);
  if (coverage.rows > 0)
    text += fmt::format("{} of {} test rows lie in their 80 % interval: {}\n", coverage.inside, coverage.rows,
                        share_text(coverage));
  if (order.grids > 0)
    text +=
        fmt::format("regret of what is predicted fastest, over {} groups: {} (median / mean), {} at worst\n",
                    order.grids, regret_text(order), percent_text(order.worst_regret));
  return text;
}

std::string amount(double value, const sim::ValidationTable& table) {
  return table.unit == "us" ? sim::human_us(value) : fmt::format("{:.1f} {}", value, table.unit);
}

std::string worst_text(const sim::ValidationTable& table) {
  // Chosen: enough to see whether the worst rows have something in common.
  constexpr std::size_t kShown = 3;
  std::vector<const sim::ValidationRow*> scored;
  for (const sim::ValidationRow& row : table.rows) {
    if (row.scored()) scored.push_back(&row);
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto* a, const auto* b) { return std::abs(a->error()) > std::abs(b->error()); });
  std::string text = str(table.name, ": ", table.in_sample_rule, "; on ", table.cluster, ", software ",
                         table.software, "\n");
  if (!table.target_origin.empty()) text += str("  target: ", table.target_origin, "\n");
  if (!table.within_target() && !table.miss_reason.empty())
    text += str("  missed: ", table.miss_reason, "\n");
  for (std::size_t i = 0; i < std::min(kShown, scored.size()); ++i) {
    const sim::ValidationRow& row = *scored[i];
    text += fmt::format("  {:+.1f} %  {}: {} measured, {} predicted\n", 100 * row.error(), row.what,
                        amount(row.measured, table), amount(row.predicted, table));
  }
  for (const sim::Exclusion& exclusion : table.exclusions()) {
    text += fmt::format("  not scored, {} ({} in the median): {}; with it {}, worst {}\n",
                        sim::rows_in_words(exclusion.rows), signed_percent_text(exclusion.signed_median),
                        exclusion.reason, both(exclusion.with), percent_text(exclusion.with.worst));
  }
  return text;
}

std::string rows_text(const sim::ValidationTable& table) {
  sim::Table text({{"row"},
                   {"what"},
                   {"measured", sim::Align::right},
                   {"predicted", sim::Align::right},
                   {"interval", sim::Align::right},
                   {"error", sim::Align::right},
                   {""}});
  for (const sim::ValidationRow& row : table.rows) {
    const std::string interval =
        row.has_interval() ? str(amount(row.low, table), " - ", amount(row.high, table)) : "-";
    text.add_row({row.where, row.what, amount(row.measured, table), amount(row.predicted, table), interval,
                  fmt::format("{:+.1f} %", 100 * row.error()),
                  !row.oddity.empty()                   ? str("not scored: ", row.oddity)
                  : row.in_sample                       ? "in sample"
                  : !row.has_interval() || row.inside() ? ""
                                                        : "outside"});
  }
  return text.text();
}

std::string parameters_text(const std::vector<sim::FreeParameter>& parameters) {
  sim::Table text({{"free parameter"},
                   {"value", sim::Align::right},
                   {"without it", sim::Align::right},
                   {"table"},
                   {"error", sim::Align::right},
                   {"error without it", sim::Align::right},
                   {"set by"}});
  for (const sim::FreeParameter& parameter : parameters) {
    text.add_row({str(parameter.software, " ", parameter.name), fmt::format("{:g}", parameter.value),
                  fmt::format("{:g}", parameter.neutral), parameter.table, both(parameter.with),
                  both(parameter.without), set_by(parameter)});
  }
  return text.text();
}

std::string widths_text(const std::vector<sim::WidthCheck>& widths) {
  sim::Table text({{"width of"},
                   {"in use", sim::Align::right},
                   {"measured", sim::Align::right},
                   {"without one source", sim::Align::right},
                   {"residuals", sim::Align::right},
                   {"of"}});
  for (const sim::WidthCheck& width : widths) {
    text.add_row({width.name, percent_text(width.in_use), percent_text(width.measured),
                  str(percent_text(width.least), " - ", percent_text(width.most)), str(width.residuals),
                  width.rows_of});
  }
  return text.text();
}

ordered_json json_of(const sim::ErrorSummary& summary) {
  return {{"rows", summary.rows},
          {"median", summary.median},
          {"p90", summary.p90},
          {"worst", summary.worst},
          {"signed_median", summary.signed_median}};
}

ordered_json json_of(const sim::CoverageSummary& coverage) {
  return {{"rows", coverage.rows}, {"inside", coverage.inside}};
}

ordered_json json_of(const sim::OrderingSummary& order) {
  return {{"groups", order.grids},
          {"right", order.right},
          {"median_regret", order.median_regret},
          {"mean_regret", order.mean_regret},
          {"worst_regret", order.worst_regret}};
}

ordered_json json_of(const sim::ValidationRow& row) {
  return {{"where", row.where},
          {"what", row.what},
          {"measured", row.measured},
          {"predicted", row.predicted},
          {"in_sample", row.in_sample},
          {"oddity", row.oddity},
          {"interval", row.has_interval() ? ordered_json{row.low, row.high} : ordered_json()},
          {"group", row.grid}};
}

ordered_json json_of(const sim::ValidationTable& table) {
  ordered_json rows = ordered_json::array(), exclusions = ordered_json::array(),
               rules = ordered_json::array();
  for (const sim::ValidationRow& row : table.rows) rows.push_back(json_of(row));
  for (const sim::Exclusion& exclusion : table.exclusions()) {
    exclusions.push_back({{"reason", exclusion.reason},
                          {"rows", exclusion.rows},
                          {"signed_median", exclusion.signed_median},
                          {"with_them", json_of(exclusion.with)}});
  }
  for (std::size_t rule = 0; rule < table.rules.size(); ++rule)
    rules.push_back({{"rule", table.rules[rule]}, {"choices", json_of(table.orderings_of_rule(rule))}});
  const sim::OrderingSummary order = table.orderings();
  return {
      {"table", table.name},
      {"cluster", table.cluster},
      {"software", table.software},
      {"set_by", table.in_sample_rule},
      {"is_an_answer", !table.rescaled},
      {"in_sample", json_of(table.summary(true))},
      {"out_of_sample", json_of(table.summary(false))},
      {"unit", table.unit},
      {"target", {{"median", table.target_median}, {"p90", table.target_p90}, {"worst", table.target_worst}}},
      {"target_origin", table.target_origin},
      {"within_target", table.within_target()},
      {"miss_reason", table.miss_reason},
      {"coverage", json_of(table.coverage())},
      {"interval_origin", table.interval_origin},
      {"grids", order.grids},
      {"grids_right", order.right},
      {"choices", json_of(order)},
      {"rules", std::move(rules)},
      {"exclusions", std::move(exclusions)},
      {"rows", std::move(rows)}};
}

ordered_json json_of(const sim::Accuracy& found) {
  ordered_json tables = ordered_json::array(), parameters = ordered_json::array(),
               widths = ordered_json::array();
  for (const sim::ValidationTable& table : found.tables) tables.push_back(json_of(table));
  for (const sim::FreeParameter& parameter : found.parameters) {
    parameters.push_back({{"software", parameter.software},
                          {"parameter", parameter.name},
                          {"value", parameter.value},
                          {"neutral", parameter.neutral},
                          {"origin", to_string(parameter.provenance.origin)},
                          {"source", parameter.provenance.source},
                          {"table", parameter.table},
                          {"error", json_of(parameter.with)},
                          {"error_without", json_of(parameter.without)}});
  }
  for (const sim::WidthCheck& width : found.widths) {
    widths.push_back({{"width", width.name},
                      {"in_use", width.in_use},
                      {"measured", width.measured},
                      {"without_one_source", {width.least, width.most}},
                      {"residuals", width.residuals},
                      {"of", width.rows_of}});
  }
  return {{"coverage", json_of(coverage_of(found.tables))},
          {"choices", json_of(orderings_of(found.tables))},
          {"tables", std::move(tables)},
          {"free_parameters", std::move(parameters)},
          {"widths", std::move(widths)}};
}

void require_writable(const std::string& path) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  if (out) return;
  throw InvalidInput(
      str("--markdown ", path,
          ": the file cannot be written; use a path in a folder that exists, for example accuracy.md"));
}

void write_page(const std::string& path, const sim::Accuracy& found) {
  std::ofstream out(path, std::ios::binary);
  out << accuracy_page(found);
  out.flush();
  if (!out)
    throw InvalidInput(
        str("--markdown ", path, ": the file could not be written to its end; make room on that disk"));
}

// Whether the table misses its target and nothing explains it.
bool is_failure(const sim::ValidationTable& table) {
  return !table.within_target() && table.miss_reason.empty();
}

int run(const Flags& flags) {
  if (!flags.markdown.empty() && !flags.tables.empty()) {
    throw InvalidInput(
        str("--markdown writes a page of all tables, so it takes no names of tables; leave out ",
            join(flags.tables, ", ")));
  }
  if (!flags.markdown.empty()) require_writable(flags.markdown);
  const bool all = flags.tables.empty();
  sim::Accuracy found;
  {
    Progress progress(true);
    progress.show(all ? "predicting all tables" : str("predicting ", join(flags.tables, ", ")));
    if (all) {
      found = sim::accuracy(flags.jobs);
    } else {
      found.tables = sim::validate_tables(flags.tables, flags.jobs);
      found.widths = sim::width_checks(found.tables);
    }
  }
  const std::vector<sim::ValidationTable>& tables = found.tables;
  if (!flags.markdown.empty()) write_page(flags.markdown, found);
  if (flags.json) {
    fmt::print("{}\n", json_of(found).dump(2));
  } else if (flags.markdown.empty()) {
    fmt::print("absolute relative errors, median / 90th percentile\n\n{}\n", summary_text(tables));
    if (const std::string choices = choices_text(tables); !choices.empty()) fmt::print("{}\n", choices);
    if (const std::string totals = totals_text(tables); !totals.empty()) fmt::print("{}\n", totals);
    for (const sim::ValidationTable& table : tables)
      fmt::print("{}", flags.rows ? rows_text(table) : worst_text(table));
    if (all) fmt::print("\n{}\n{}", parameters_text(found.parameters), widths_text(found.widths));
  }
  const bool failed = std::any_of(tables.begin(), tables.end(), is_failure);
  return failed ? exit_code(ErrorKind::check_failed) : kSuccess;
}

}  // namespace

Command add_validate(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand("validate", "Compare predictions with published measurements");
  const auto flags = std::make_shared<Flags>();
  app.add_option("tables", flags->tables, "The tables that are compared [all]").type_name("TABLE");
  app.add_flag("--rows", flags->rows, "Print every row, with its interval");
  app.add_flag("--json", flags->json, "Print JSON");
  app.add_option("--markdown", flags->markdown,
                 "Write the page of all tables, docs/accuracy.md, to this file")
      .type_name("FILE");
  add_value(app, "--jobs", "N", "How many threads predict; the result does not depend on it [one per core]",
            [flags](const std::string& text) {
              flags->jobs = static_cast<int>(parse_whole("--jobs", text, 1, 1024));
            });
  app.footer(
      "The exit code is 1 if a table misses its target and no measurement explains why.\n\n"
      "Example:\n"
      "  cpsim validate\n"
      "  cpsim validate ring_attention_backward --rows\n"
      "  cpsim validate --markdown docs/accuracy.md");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
