#include "sim/accuracy/validate/validate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/base/parallel_for.h"
#include "sim/cost/cluster/read_rates.h"
#include "sim/cost/cluster/read_software.h"

namespace cp::sim {

double detail::percentile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return ascending[below] + (place - static_cast<double>(below)) * (ascending[above] - ascending[below]);
}

namespace {

// "attention_h100_sxm"
std::string table_of(std::string gpu) {
  std::replace(gpu.begin(), gpu.end(), '-', '_');
  return "attention_" + gpu;
}

using Predict = std::function<ValidationTable(const SoftwareProfile*)>;

const std::vector<std::pair<std::string, Predict>>& tables() {
  static const std::vector<std::pair<std::string, Predict>> tables = [] {
    std::vector<std::pair<std::string, Predict>> all = {
        {"ring_attention_forward", [](const SoftwareProfile* s) { return detail::ring_attention(false, s); }},
        {"ring_attention_backward", [](const SoftwareProfile* s) { return detail::ring_attention(true, s); }},
        {"ring_attention_short", [](const SoftwareProfile* s) { return detail::ring_attention_short(s); }},
        {"ring_flash_attention",
         [](const SoftwareProfile* s) { return detail::ring_flash_attention(s, detail::Kernels::as_known); }},
        {"ring_flash_attention_rescaled",
         [](const SoftwareProfile* s) { return detail::ring_flash_attention(s, detail::Kernels::rescaled); }},
        {"usp", [](const SoftwareProfile* s) { return detail::usp(s, detail::Kernels::as_known); }},
        {"usp_rescaled", [](const SoftwareProfile* s) { return detail::usp(s, detail::Kernels::rescaled); }},
        {"usp_short", [](const SoftwareProfile* s) { return detail::usp_short(s); }},
        {"end_to_end", [](const SoftwareProfile*) { return detail::end_to_end(); }},
        {"end_to_end_memory", [](const SoftwareProfile*) { return detail::end_to_end_memory(); }},
        {"context_parallel_h100", [](const SoftwareProfile*) { return detail::context_parallel("H100"); }},
        {"context_parallel_b200", [](const SoftwareProfile*) { return detail::context_parallel("B200"); }},
        {"attention_forward_cudnn", [](const SoftwareProfile*) { return detail::attention_forward_cudnn(); }},
        {"attention_backward_hopper",
         [](const SoftwareProfile*) { return detail::attention_backward_hopper(); }},
        {"attention_backward_blackwell",
         [](const SoftwareProfile*) { return detail::attention_backward_blackwell(); }},
        {"nccl_tests_large", [](const SoftwareProfile*) { return detail::nccl_tests(detail::Sizes::large); }},
        {"nccl_tests_medium",
         [](const SoftwareProfile*) { return detail::nccl_tests(detail::Sizes::medium); }},
        {"nccl_tests_small", [](const SoftwareProfile*) { return detail::nccl_tests(detail::Sizes::small); }},
        {"flash_attention", [](const SoftwareProfile*) { return detail::flash_attention(); }},
        {"point_to_point", [](const SoftwareProfile*) { return detail::point_to_point(); }},
        {"nccl_algebra_large",
         [](const SoftwareProfile*) { return detail::nccl_algebra(detail::Sizes::large); }},
        {"nccl_algebra_medium",
         [](const SoftwareProfile*) { return detail::nccl_algebra(detail::Sizes::medium); }},
        {"nccl_algebra_small",
         [](const SoftwareProfile*) { return detail::nccl_algebra(detail::Sizes::small); }},
        {"products_16", [](const SoftwareProfile*) { return detail::products(16); }},
        {"products_8", [](const SoftwareProfile*) { return detail::products(8); }},
        {"attention_no_mask", [](const SoftwareProfile*) { return detail::attention_without_mask(); }},
        {"decode_attention", [](const SoftwareProfile*) { return detail::decode_attention(); }},
        {"attention_8", [](const SoftwareProfile*) { return detail::attention_8(); }},
        {"experts_16", [](const SoftwareProfile*) { return detail::experts(16); }},
        {"experts_8", [](const SoftwareProfile*) { return detail::experts(8); }},
        {"latent_attention", [](const SoftwareProfile*) { return detail::latent_attention(); }},
        {"linear_attention", [](const SoftwareProfile*) { return detail::linear_attention(); }},
    };
    all.emplace_back("served_tokens", [](const SoftwareProfile*) { return detail::served_tokens(); });
    all.emplace_back("served_prompts", [](const SoftwareProfile*) { return detail::served_prompts(); });
    for (const std::string& gpu : rates_names())
      all.emplace_back(table_of(gpu),
                       [gpu](const SoftwareProfile*) { return detail::attention_of_gpu(gpu); });
    return all;
  }();
  return tables;
}

// Returns the row with the least `time` of a grid, or of all rows.
template <class Row>
const ValidationRow& least(const std::vector<Row>& rows, double ValidationRow::*time) {
  return **std::min_element(rows.begin(), rows.end(),
                            [&](const auto* a, const auto* b) { return a->*time < b->*time; });
}

using Grid = std::vector<const ValidationRow*>;

// Returns the grids that have two alternatives or more.
std::vector<Grid> grids_of(const ValidationTable& table) {
  std::map<std::string, Grid> by_name;
  for (const ValidationRow& row : table.rows) {
    if (!row.grid.empty() && row.oddity.empty()) by_name[row.grid].push_back(&row);
  }
  std::vector<Grid> grids;
  for (auto& [name, grid] : by_name) {
    if (grid.size() > 1) grids.push_back(std::move(grid));
  }
  return grids;
}

double regret(const Grid& grid, const ValidationRow& chosen) {
  return chosen.measured / least(grid, &ValidationRow::measured).measured - 1;
}

OrderingSummary ordering_of(std::vector<double> regrets) {
  // A choice counts as right if it is at most this much slower than the best one measured. Chosen. Only the
  // count of right choices depends on it, not the regrets.
  constexpr double kNearEnough = 0.05;
  OrderingSummary summary;
  summary.grids = static_cast<int>(regrets.size());
  for (const double each : regrets) {
    summary.right += each <= kNearEnough ? 1 : 0;
    summary.mean_regret += each / static_cast<double>(regrets.size());
  }
  const ErrorSummary of = summarize(std::move(regrets));
  summary.median_regret = of.median, summary.worst_regret = of.worst;
  return summary;
}

std::vector<double> regrets_of(const ValidationTable& table) {
  std::vector<double> regrets;
  for (const Grid& grid : grids_of(table))
    regrets.push_back(regret(grid, least(grid, &ValidationRow::predicted)));
  return regrets;
}

ErrorSummary summarize_rows(const std::vector<const ValidationRow*>& rows) {
  std::vector<double> errors, with_sign;
  for (const ValidationRow* row : rows)
    errors.push_back(std::abs(row->error())), with_sign.push_back(row->error());
  ErrorSummary summary = summarize(std::move(errors));
  summary.signed_median = summarize(std::move(with_sign)).median;
  return summary;
}

}  // namespace

ErrorSummary summarize(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::sort(errors.begin(), errors.end());
  return {static_cast<int>(errors.size()), detail::percentile(errors, 0.5), detail::percentile(errors, 0.9),
          errors.back()};
}

ErrorSummary ValidationTable::summary(bool in_sample) const {
  std::vector<const ValidationRow*> of;
  for (const ValidationRow& row : rows) {
    if (row.in_sample == in_sample && row.oddity.empty()) of.push_back(&row);
  }
  return summarize_rows(of);
}

CoverageSummary ValidationTable::coverage() const {
  CoverageSummary summary;
  for (const ValidationRow& row : rows) {
    if (!row.scored() || !row.has_interval()) continue;
    ++summary.rows;
    summary.inside += row.inside() ? 1 : 0;
  }
  return summary;
}

OrderingSummary ValidationTable::orderings() const { return ordering_of(regrets_of(*this)); }

OrderingSummary ValidationTable::orderings_of_rule(std::size_t rule) const {
  std::vector<double> regrets;
  for (const Grid& grid : grids_of(*this)) {
    Grid chosen;
    std::copy_if(grid.begin(), grid.end(), std::back_inserter(chosen),
                 [&](const ValidationRow* row) { return (row->rules >> rule & 1U) != 0; });
    // Of several the rule knows no better one: the first.
    if (!chosen.empty()) regrets.push_back(regret(grid, *chosen.front()));
  }
  return ordering_of(std::move(regrets));
}

std::vector<Exclusion> ValidationTable::exclusions() const {
  std::vector<const ValidationRow*> scored;
  for (const ValidationRow& row : rows) {
    if (row.scored()) scored.push_back(&row);
  }
  std::vector<Exclusion> all;
  for (const ValidationRow& first : rows) {
    const auto same = [&](const Exclusion& exclusion) { return exclusion.reason == first.oddity; };
    if (first.oddity.empty() || std::any_of(all.begin(), all.end(), same)) continue;
    std::vector<const ValidationRow*> excluded, with = scored;
    for (const ValidationRow& row : rows) {
      if (row.oddity == first.oddity) excluded.push_back(&row), with.push_back(&row);
    }
    all.push_back({first.oddity, static_cast<int>(excluded.size()), summarize_rows(excluded).signed_median,
                   summarize_rows(with)});
  }
  return all;
}

bool ValidationTable::within_target() const {
  const ErrorSummary scored = summary(false);
  const auto within = [](double reached, double target) { return target == 0 || reached <= target; };
  if (target_median == 0 && target_p90 == 0 && target_worst == 0)
    return false;  // it would pass by definition
  return scored.rows > 0 && within(scored.median, target_median) && within(scored.p90, target_p90) &&
         within(scored.worst, target_worst);
}

std::vector<std::string> validation_names() {
  std::vector<std::string> names;
  for (const auto& [name, predict] : tables()) names.push_back(name);
  return names;
}

ValidationTable validate_table(std::string_view name) {
  for (const auto& [known, predict] : tables()) {
    if (known != name) continue;
    ValidationTable table = predict(nullptr);
    table.name = known;
    return table;
  }
  throw InvalidInput(
      str("there is no validation table '", name, "'; use one of ", join(validation_names(), ", ")));
}

std::vector<ValidationTable> validate_tables(const std::vector<std::string>& names, int threads) {
  const std::vector<std::string> all = names.empty() ? validation_names() : names;
  std::vector<ValidationTable> tables(all.size());
  parallel_for(all.size(), threads, [&](std::size_t i, std::size_t) { tables[i] = validate_table(all[i]); });
  return tables;
}

OrderingSummary orderings_of(const std::vector<ValidationTable>& tables) {
  std::vector<double> regrets;
  for (const ValidationTable& table : tables) {
    if (table.rescaled) continue;
    const std::vector<double> of_table = regrets_of(table);
    regrets.insert(regrets.end(), of_table.begin(), of_table.end());
  }
  return ordering_of(std::move(regrets));
}

CoverageSummary coverage_of(const std::vector<ValidationTable>& tables) {
  CoverageSummary all;
  for (const ValidationTable& table : tables) {
    if (table.rescaled) continue;
    const CoverageSummary of = table.coverage();
    all.rows += of.rows, all.inside += of.inside;
  }
  return all;
}

std::string set_by(const FreeParameter& parameter) {
  const std::string text = to_string(parameter.provenance);
  return text.substr(0, text.find(": cpsim "));
}

std::vector<FreeParameter> free_parameters(int threads) {
  struct Field {
    const char* software;
    const char* name;
    double SoftwareProfile::*value;
    double neutral;
    const char* table;
  };
  static const Field kFields[] = {
      {"ring-flash-attention", "forward_progress", &SoftwareProfile::forward_progress, 1,
       "ring_attention_forward"},
      {"ring-flash-attention", "backward_progress", &SoftwareProfile::backward_progress, 1,
       "ring_attention_backward"},
      {"ring-flash-attention", "merge_passes", &SoftwareProfile::merge_passes, 1, "ring_flash_attention"},
      {"usp", "forward_progress", &SoftwareProfile::forward_progress, 1, "usp"},
      {"usp", "merge_passes", &SoftwareProfile::merge_passes, 1, "usp"},
  };
  std::vector<FreeParameter> parameters(std::size(kFields));
  parallel_for(parameters.size(), threads, [&](std::size_t i, std::size_t) {
    const Field& field = kFields[i];
    SoftwareProfile software = find_software(field.software);
    FreeParameter parameter{field.software, field.name,  {}, software.*field.value,
                            field.neutral,  field.table, {}, {}};
    for (const Source& source : software.sources) {
      if (source.field == field.name) parameter.provenance = source.provenance;
    }
    const auto predict = std::find_if(tables().begin(), tables().end(),
                                      [&](const auto& table) { return table.first == field.table; });
    parameter.with = predict->second(nullptr).summary(false);
    software.*field.value = field.neutral;
    parameter.without = predict->second(&software).summary(false);
    parameters[i] = std::move(parameter);
  });
  return parameters;
}

}  // namespace cp::sim
