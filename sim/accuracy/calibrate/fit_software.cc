#include "sim/accuracy/calibrate/fit_software.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/software_fields.h"
#include "sim/cost/timeline/estimate.h"

namespace cp::sim {
namespace {

using Rows = std::vector<const AttentionTime*>;

double time_us(const AttentionTime& row, const SoftwareProfile& software) {
  return repeated_calls(row.plans, *row.cluster, software).time_us;
}

ErrorSummary errors_of(const Rows& rows, const SoftwareProfile& software) {
  std::vector<double> errors;
  for (const AttentionTime* row : rows)
    errors.push_back(std::abs(time_us(*row, software) / row->measured_us - 1));
  return summarize(std::move(errors));
}

double three_digits(double value) {
  std::array<char, 32> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 3);
  double rounded = value;
  std::from_chars(text.data(), end, rounded);
  return rounded;
}

struct Parameter {
  std::string name;
  Range range;
  Rows rows;
};

double& field_of(SoftwareProfile& software, std::string_view name) {
  double* found = nullptr;
  for_each_parameter(software, [&](const char* field, double& value, const Range&) {
    if (name == field) found = &value;
  });
  CP_INVARIANT(found != nullptr, "there is no parameter ", name);
  return *found;
}

Range range_of(const std::string& name) {
  const SoftwareProfile software;
  std::vector<std::string_view> names;
  const Range* found = nullptr;
  Range range;
  for_each_parameter(software, [&](const char* field, double, const Range& of_field) {
    names.emplace_back(field);
    if (name != field) return;
    range = of_field;
    found = &range;
  });
  if (found != nullptr) return range;
  throw InvalidInput(str("--fit ", name, ": there is no such parameter; the nearest one is '",
                         nearest_name(name, names), "'; use some of ", join(names, ", ")));
}

// The rows whose time is another one at the other end of the range.
Rows rows_of(const std::string& name, const Range& range, const std::vector<AttentionTime>& rows,
             const SoftwareProfile& software) {
  SoftwareProfile low = software, high = software;
  field_of(low, name) = range.low, field_of(high, name) = range.high;
  Rows moved;
  for (const AttentionTime& row : rows) {
    if (time_us(row, low) != time_us(row, high)) moved.push_back(&row);
  }
  if (!moved.empty()) return moved;
  throw InvalidInput(str("--fit ", name, ": none of the ", rows.size(),
                         " rows depends on it; give rows of the pass that it is about, or leave it out"));
}

// Where f is smallest in [0, 1]: the best of a grid, then golden sections between its neighbours. The median
// of errors may have several valleys; the grid finds the one.
template <class F>
double smallest_at(const F& f) {
  constexpr int kGrid = 24, kSections = 24;  // 2 / 24 * 0.618^24 < 1e-6
  constexpr double kGolden = 0.6180339887498949;
  double best = 0, best_error = f(0);
  const auto attempt = [&](double x) {
    const double error = f(x);
    if (error < best_error) best = x, best_error = error;
    return error;
  };
  for (int i = 1; i <= kGrid; ++i) attempt(double{1} * i / kGrid);
  double low = std::max(0.0, best - 1.0 / kGrid), high = std::min(1.0, best + 1.0 / kGrid);
  double left = high - kGolden * (high - low), right = low + kGolden * (high - low);
  double at_left = attempt(left), at_right = attempt(right);
  for (int i = 0; i < kSections; ++i) {
    if (at_left <= at_right) {
      high = right, right = left, at_right = at_left;
      left = high - kGolden * (high - low), at_left = attempt(left);
    } else {
      low = left, left = right, at_left = at_right;
      right = low + kGolden * (high - low), at_right = attempt(right);
    }
  }
  return best;
}

// The best value of one parameter, the others as they are. A wide range is searched in finer steps near its
// low end.
double best_value(const Parameter& parameter, SoftwareProfile software) {
  const double width = parameter.range.high - parameter.range.low, power = width > 1 ? 3 : 1;
  const auto value_at = [&](double x) { return parameter.range.low + width * std::pow(x, power); };
  const auto error_of = [&](double value) {
    field_of(software, parameter.name) = value;
    return errors_of(parameter.rows, software).median;
  };
  const double old_value = field_of(software, parameter.name), old_error = error_of(old_value);
  const double value = three_digits(value_at(smallest_at([&](double x) { return error_of(value_at(x)); })));
  return error_of(value) < old_error ? value : old_value;
}

}  // namespace

SoftwareFit fit_software(const SoftwareProfile& software, const std::vector<std::string>& names,
                         const std::vector<AttentionTime>& rows, const std::string& source,
                         const std::function<void(const std::string&)>& progress) {
  SoftwareFit fit{software, {}};
  std::vector<Parameter> parameters;
  for (const std::string& name : names) {
    if (std::count(names.begin(), names.end(), name) > 1)
      throw InvalidInput(str("--fit names ", name, " twice; name it once"));
    const Range range = range_of(name);
    parameters.push_back({name, range, rows_of(name, range, rows, software)});
  }
  // The parameters are fitted in turn until none moves any more. Chosen: 8 sweeps, should they never settle.
  constexpr int kSweeps = 8;
  bool moved = true;
  for (int sweep = 0; moved && sweep < kSweeps; ++sweep) {
    moved = false;
    for (const Parameter& parameter : parameters) {
      if (progress)
        progress(str("fitting ", parameter.name, " to ", parameter.rows.size(), " rows, sweep ", sweep + 1));
      const double value = best_value(parameter, fit.software);
      double& now = field_of(fit.software, parameter.name);
      moved = moved || value != now;
      now = value;
    }
    if (parameters.size() == 1) break;
  }
  for (const Parameter& parameter : parameters) {
    SoftwareProfile old = software;
    const Provenance provenance{Origin::measured, source};
    fit.parameters.push_back({parameter.name, provenance, field_of(old, parameter.name),
                              field_of(fit.software, parameter.name), static_cast<int>(parameter.rows.size()),
                              errors_of(parameter.rows, software), errors_of(parameter.rows, fit.software)});
    set_source(fit.software.sources, {parameter.name, provenance});
  }
  sort_by_field(fit.software.sources);
  validate_software(fit.software);
  return fit;
}

}  // namespace cp::sim
