// What `cprun profile` measured: the times of its points, and the table of them. All times are in us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/cprun/profile/profile_points.h"
#include "shared/plan/trace.h"

namespace cp::cli {

// The median of several times, and the two values between which half of them lie (the quartiles).
struct Spread {
  int samples = 0;
  double median_us = 0, low_us = 0, high_us = 0;
  double relative() const { return median_us == 0 ? 0 : (high_us - low_us) / median_us; }
};
// Throws InvalidInput if there are no times.
Spread spread_of(std::vector<double> times_us);

// Returns how long each step with this label took, without the first `skip` of these steps.
std::vector<double> times_of(const std::vector<TimedOp>& steps, std::string_view label, std::size_t skip);
// For two kinds of steps that ran at the same time: the times of those steps of one kind during which steps
// of the other kind were under way all along. Either list may be empty, if they did not overlap for long
// enough.
struct Overlapping {
  std::vector<double> a_us, b_us;
};
Overlapping overlapping_times(const std::vector<TimedOp>& steps, std::string_view a, std::string_view b,
                              std::size_t skip);

// Returns how often the head of a point's plan must repeat, so that the host stays ahead of the device for
// `iterations` iterations. `tried` are the steps of a first try with fewer iterations.
std::int64_t head_repeats(const std::vector<TimedOp>& tried, std::int64_t tried_iterations,
                          std::int64_t iterations);

// A spread as text for other ranks: "25 103.5 102.8 105.1", that is, samples, median, low and high. samples
// is 0 if a rank has no part in a point, or if the point left no times.
std::string to_text(const Spread& spread);
Spread spread_from_text(std::string_view text);
// Of the ranks' spreads, returns the one with the largest median.
Spread slowest(const std::vector<Spread>& ranks);

struct ProfileRow {
  ProfilePoint point;
  // The time of the point. For a BesidePoint it is that of the kernel beside the collective, and for an
  // IssuePoint that of the host.
  Spread time;
  // Only for a BesidePoint: the kernel alone, the collective alone, and the collective beside the kernel.
  Spread kernel_alone = {}, collective_alone = {}, collective_beside = {};
};

// All points of one kind, each with its row. The pointers are valid as long as `rows` is.
template <class Point>
std::vector<std::pair<const Point*, const ProfileRow*>> rows_of(const std::vector<ProfileRow>& rows) {
  std::vector<std::pair<const Point*, const ProfileRow*>> found;
  for (const ProfileRow& row : rows) {
    if (const auto* point = std::get_if<Point>(&row.point)) found.emplace_back(point, &row);
  }
  return found;
}

// What each side of the BesidePoints keeps of its speed beside the other side: its time alone over its time
// beside, one value for each point.
struct KeptSpeeds {
  std::vector<double> attention_forward, attention_backward, products, collectives;
};
// By number of channels; 0 means the number that the library chooses.
std::map<int, KeptSpeeds> kept_by_channels(const std::vector<ProfileRow>& rows);

// Of some numbers: how many they are, the least, the median and the greatest. There must be at least one.
struct Summary {
  std::size_t count = 0;
  double least = 0, median = 0, greatest = 0;
};
Summary summary_of(std::vector<double> values);

// Returns what the host took for each of `steps` steps: the times with these steps, less the median of the
// times without them, divided by `steps`. No value is below 0. Throws InvalidInput if either list is empty.
Spread issue_times(const std::vector<double>& with_us, const std::vector<double>& without_us, double steps);
std::string to_text(const Summary& summary);  // "median of 12, from 0.81 to 0.97"

// The table as CSV. Its columns are what, figure, samples, median_us, low_us, high_us, rate and unit, and it
// has one line for each figure.
std::string profile_csv(const std::vector<ProfileRow>& rows);

}  // namespace cp::cli
