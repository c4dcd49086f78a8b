#include "sim/accuracy/validate/accuracy_page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "shared/base/text.h"

namespace cp::sim {
namespace {

// Writes a number; what rounds to zero has no sign.
std::string fixed(double value, int digits) {
  char text[32];
  const double scale = std::pow(10.0, digits), rounded = std::round(value * scale) / scale;
  std::snprintf(text, sizeof(text), "%.*f", digits, rounded == 0 ? 0.0 : rounded);
  return text;
}

std::string both(const ErrorSummary& summary) {
  if (summary.rows == 0) return "-";
  return str(percent_text(summary.median), " / ", percent_text(summary.p90));
}

std::string row(const std::vector<std::string>& cells) { return str("| ", join(cells, " | "), " |\n"); }

std::string head(const std::vector<std::string>& titles) {
  std::string rule = "|";
  for (std::size_t i = 0; i < titles.size(); ++i) rule += "---|";
  return str(row(titles), rule, "\n");
}

std::string coverage_text(const CoverageSummary& coverage) {
  return coverage.rows == 0 ? "-" : fixed(100 * coverage.share(), 0) + " %";
}

std::string regret_text(const OrderingSummary& order) {
  return str(percent_text(order.median_regret), " / ", percent_text(order.mean_regret));
}

std::string tables_text(const std::vector<ValidationTable>& tables) {
  std::string text = head({"table", "fitted on", "error there", "test rows", "error", "signed", "worst",
                           "target", "inside 80 %"});
  for (const ValidationTable& table : tables) {
    const ErrorSummary in = table.summary(true), out = table.summary(false);
    text += row({str("`", table.name, "`"), str(in.rows), both(in), str(out.rows), both(out),
                 signed_percent_text(out.signed_median), percent_text(out.worst), target_text(table),
                 coverage_text(table.coverage())});
  }
  return text;
}

std::string choices_text(const std::vector<ValidationTable>& tables) {
  std::string text = head({"table", "chosen by", "groups", "fastest told right", "regret, median / mean"});
  for (const ValidationTable& table : tables) {
    const OrderingSummary model = table.orderings();
    if (model.grids == 0) continue;
    const auto add = [&](const std::string& by, const OrderingSummary& order) {
      text += row({str("`", table.name, "`"), by, str(order.grids), str(order.right), regret_text(order)});
    };
    add("the prediction", model);
    for (std::size_t rule = 0; rule < table.rules.size(); ++rule)
      add(table.rules[rule], table.orderings_of_rule(rule));
  }
  return text;
}

std::string details_text(const ValidationTable& table) {
  std::string text = str("### `", table.name, "`\n\n");
  if (table.rescaled) text += "No answer of a command: shows what is left where the kernels are known.\n\n";
  text += str("- On ", table.cluster, "; software: ", table.software, ".\n");
  text += str("- Set by rows: ", table.in_sample_rule, ".\n");
  if (!table.target_origin.empty()) text += str("- Target: ", table.target_origin, ".\n");
  if (!table.within_target() && !table.miss_reason.empty())
    text += str("- Missed: ", table.miss_reason, ".\n");
  if (!table.interval_origin.empty()) text += str("- Interval: ", table.interval_origin, ".\n");
  for (const Exclusion& exclusion : table.exclusions()) {
    text += str("- Not scored, ", rows_in_words(exclusion.rows), " (",
                signed_percent_text(exclusion.signed_median), " in the median): ", exclusion.reason,
                ". With it: ", both(exclusion.with), ", worst ", percent_text(exclusion.with.worst), ".\n");
  }
  return text + "\n";
}

std::string parameters_text(const std::vector<FreeParameter>& parameters) {
  std::string text =
      head({"free parameter", "value", "without it", "table", "error", "error without it", "set by"});
  for (const FreeParameter& parameter : parameters) {
    text += row({str(parameter.software, " `", parameter.name, "`"), str(parameter.value),
                 str(parameter.neutral), str("`", parameter.table, "`"), both(parameter.with),
                 both(parameter.without), set_by(parameter)});
  }
  return text;
}

std::string widths_text(const std::vector<WidthCheck>& widths) {
  std::string text = head({"width of", "in use", "measured", "leaving one source out", "residuals", "of"});
  for (const WidthCheck& width : widths) {
    text += row({width.name, percent_text(width.in_use), percent_text(width.measured),
                 str(percent_text(width.least), " to ", percent_text(width.most)), str(width.residuals),
                 width.rows_of});
  }
  return text;
}

// Tables of one kind of prediction, as the README counts them.
struct Kind {
  const char* words;
  std::vector<std::string_view> names;  // whole, or what they begin with
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kinds = {
      {"Attention kernels, rows left out of the fits", {"attention_"}},
      {"Products, rows left out of the fits", {"products_"}},
      {"Collectives that nobody measured on that system", {"nccl_algebra_"}},
      {"Attention over 8 to 64 GPUs: rings, Ulysses and both",
       {"ring_attention_forward", "ring_attention_backward", "ring_flash_attention", "usp"}},
      {"Whole training steps and prefills", {"end_to_end"}},
  };
  return kinds;
}

bool is_of(const Kind& kind, const std::string& name) {
  return std::any_of(kind.names.begin(), kind.names.end(), [&](std::string_view known) {
    return known.back() == '_' ? std::string_view(name).starts_with(known) : name == known;
  });
}

}  // namespace

std::string percent_text(double share) { return fixed(100 * share, 1) + " %"; }

std::string signed_percent_text(double share) {
  const std::string text = percent_text(share);
  return text.front() == '-' || text == "0.0 %" ? text : "+" + text;
}

std::string rows_in_words(int rows) { return str(rows, rows == 1 ? " row" : " rows"); }

std::string target_text(const ValidationTable& table) {
  std::vector<std::string> parts;
  if (table.target_median > 0) parts.push_back(percent_text(table.target_median));
  if (table.target_p90 > 0) parts.push_back(percent_text(table.target_p90));
  std::string target = join(parts, " / ");
  if (table.target_worst > 0)
    target += str(target.empty() ? "" : ", ", percent_text(table.target_worst), " at worst");
  if (target.empty()) return "-";
  return target + (table.within_target() ? ", met" : ", MISSED");
}

Accuracy accuracy(int threads) {
  Accuracy found;
  found.tables = validate_tables({}, threads);
  found.parameters = free_parameters(threads);
  found.widths = width_checks(found.tables);
  return found;
}

std::vector<std::string> accuracy_lines(const Accuracy& accuracy) {
  std::vector<std::string> lines = {"| prediction | rows | median | 90th percentile | signed median |",
                                    "|---|---|---|---|---|"};
  for (const Kind& kind : kinds()) {
    ValidationTable all;
    for (const ValidationTable& table : accuracy.tables) {
      if (is_of(kind, table.name)) all.rows.insert(all.rows.end(), table.rows.begin(), table.rows.end());
    }
    const ErrorSummary error = all.summary(false);
    if (error.rows == 0) continue;
    lines.push_back(str("| ", kind.words, " | ", error.rows, " | ", percent_text(error.median), " | ",
                        percent_text(error.p90), " | ", signed_percent_text(error.signed_median), " |"));
  }
  const CoverageSummary coverage = coverage_of(accuracy.tables);
  const OrderingSummary order = orderings_of(accuracy.tables);
  lines.emplace_back();
  lines.push_back(str("Of ", coverage.rows, " rows, ", coverage_text(coverage),
                      " lie in the printed interval, which is to hold 80 %; of ", order.grids,
                      " groups of alternatives, what is predicted fastest takes ",
                      percent_text(order.median_regret), " (median) and ", percent_text(order.mean_regret),
                      " (mean) longer than what is."));
  return lines;
}

std::string accuracy_page(const Accuracy& accuracy) {
  std::string text =
      "# How good the predictions are\n\n"
      "Written by `cpsim validate --markdown docs/accuracy.md`; a test holds the page to what the command "
      "finds.\n\n"
      "Every row of the published tables in "
      "[sim/cost/presets/validation](../sim/cost/presets/validation/README.md) is "
      "predicted as `cpsim estimate` or\n`cpsim plan` would answer it. Errors are relative and of the time, "
      "median / "
      "90th percentile of their absolute values; *signed* is the median\nwith its sign, below zero where "
      "predictions "
      "are too fast. *Fitted on* counts the rows that set a number of the prediction; the test rows set "
      "none.\n"
      "*Inside 80 %*: test rows within the printed interval, which is to hold eight in ten. Tables called "
      "`_rescaled` are "
      "no answers of a command, and count in no total.\n\n";
  text += join(accuracy_lines(accuracy), "\n");
  text += "\n\n## The tables\n\n" + tables_text(accuracy.tables);
  text +=
      "\n## Choices\n\n"
      "Alternatives that were measured on one system and size: told right where what is chosen takes at most "
      "5 % "
      "longer than the fastest.\nThe regret is how much longer it takes. Rules choose without a model.\n\n";
  text += choices_text(accuracy.tables);
  text +=
      "\n## Widths\n\n"
      "What the intervals rest on beside the rates' own errors (`sim/cost/timeline/widths.h`), and the "
      "residuals "
      "that "
      "each is derived from: as measured\nby all, and without one of their sources (a table, a GPU, a "
      "collective).\n\n";
  text += widths_text(accuracy.widths);
  text += "\n## Numbers that measurements have set\n\n" + parameters_text(accuracy.parameters);
  text += "\n## Table by table\n\n";
  for (const ValidationTable& table : accuracy.tables) text += details_text(table);
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace cp::sim
