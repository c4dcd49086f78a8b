#include "sim/cost/cluster/software.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/context_parallel/strategy.h"
#include "sim/cost/cluster/software_fields.h"
#include "sim/cost/frameworks/framework.h"

namespace cp::sim {

std::vector<FieldError> software_errors(const SoftwareProfile& software) {
  std::vector<FieldError> errors;
  if (software.name.empty()) errors.push_back({"name", "is empty; add, for example, name: \"mine\""});
  const auto check = [&](const char* field, double value, const Range& range) {
    const std::string error = range_error(value, range);
    if (!error.empty()) errors.push_back({field, error});
  };
  for_each_parameter(software, check);
  for_each_number_of_facts(software, check);
  for_each_optional_number(software, check);
  if (software.max_ctas != std::floor(software.max_ctas))
    errors.push_back({"max_ctas", str(software.max_ctas, " is no whole number; use 1 to 64, or 0")});
  const std::vector<std::string>& names = strategy_names();
  if (std::find(names.begin(), names.end(), software.strategy) == names.end()) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    errors.push_back(
        {"strategy", str("unknown strategy '", software.strategy, "'; the nearest one is '",
                         nearest_name(software.strategy, views), "'; use one of ", join(names, ", "))});
  }
  // Attention alone is cprun's.
  const std::optional<Framework> framework = find_framework(software.framework);
  if (software.framework != "none" && (!framework || *framework == Framework::attention)) {
    std::vector<std::string_view> known{"none"};
    for (const FrameworkFacts& of : all_frameworks()) {
      if (of.framework != Framework::attention) known.push_back(of.name);
    }
    errors.push_back(
        {"framework", str("unknown framework '", software.framework, "'; the nearest one is '",
                          nearest_name(software.framework, known), "'; use one of ", join(known, ", "))});
  }
  try {
    parse_balance(software.balance);
  } catch (const InvalidInput& error) {
    errors.push_back({"balance", error.what()});
  }
  return errors;
}

void validate_software(const SoftwareProfile& software) {
  raise(str("software ", software.name), software_errors(software));
}

}  // namespace cp::sim
