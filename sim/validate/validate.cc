#include "sim/validate/validate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cluster/read_rates.h"
#include "sim/cluster/read_software.h"
#include "sim/validate/tables.h"

namespace cp::sim {
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
        {"ring_flash_attention", [](const SoftwareProfile* s) { return detail::ring_flash_attention(s); }},
        {"usp", [](const SoftwareProfile* s) { return detail::usp(s); }},
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

// Between the values, as numpy does it.
double percentile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return ascending[below] + (place - static_cast<double>(below)) * (ascending[above] - ascending[below]);
}

}  // namespace

ErrorSummary summarize(std::vector<double> errors) {
  if (errors.empty()) return {};
  std::sort(errors.begin(), errors.end());
  return {static_cast<int>(errors.size()), percentile(errors, 0.5), percentile(errors, 0.9), errors.back()};
}

ErrorSummary ValidationTable::summary(bool in_sample) const {
  std::vector<double> errors;
  for (const ValidationRow& row : rows) {
    if (row.in_sample == in_sample && row.oddity.empty()) errors.push_back(std::abs(row.error()));
  }
  return summarize(std::move(errors));
}

OrderingSummary ValidationTable::orderings() const {
  constexpr double kNearEnough = 1.05;
  std::map<std::string, std::vector<const ValidationRow*>> grids;
  for (const ValidationRow& row : rows) {
    if (!row.grid.empty() && row.oddity.empty()) grids[row.grid].push_back(&row);
  }
  OrderingSummary summary;
  for (const auto& grid : grids) {
    const std::vector<const ValidationRow*>& alternatives = grid.second;
    if (alternatives.size() < 2) continue;
    const auto by = [&](double ValidationRow::*time) {
      return *std::min_element(
          alternatives.begin(), alternatives.end(),
          [&](const ValidationRow* a, const ValidationRow* b) { return a->*time < b->*time; });
    };
    ++summary.grids;
    const double chosen = by(&ValidationRow::predicted)->measured;
    if (chosen <= kNearEnough * by(&ValidationRow::measured)->measured) ++summary.right;
  }
  return summary;
}

bool ValidationTable::within_target() const {
  const ErrorSummary scored = summary(false);
  const auto within = [](double reached, double target) { return target == 0 || reached <= target; };
  if (target_median == 0 && target_p90 == 0 && target_worst == 0) return true;
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

std::vector<FreeParameter> free_parameters() {
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
  std::vector<FreeParameter> parameters;
  for (const Field& field : kFields) {
    SoftwareProfile software = find_software(field.software);
    FreeParameter parameter{field.software, field.name,  "", software.*field.value,
                            field.neutral,  field.table, {}, {}};
    for (const Source& source : software.sources) {
      if (source.field == field.name) parameter.source = source.text;
    }
    const auto predict = std::find_if(tables().begin(), tables().end(),
                                      [&](const auto& table) { return table.first == field.table; });
    parameter.with = predict->second(nullptr).summary(false);
    software.*field.value = field.neutral;
    parameter.without = predict->second(&software).summary(false);
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

}  // namespace cp::sim
