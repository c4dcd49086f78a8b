// What `cprun profile` measured: times of its points, and the table of them.
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

// Of several times: the median, and between which values half of them lie.
struct Spread {
  int samples = 0;
  double median_us = 0, low_us = 0, high_us = 0;
  double relative() const { return median_us == 0 ? 0 : (high_us - low_us) / median_us; }
};
// Throws InvalidInput for none.
Spread spread_of(std::vector<double> times_us);

// The times of the steps with the label, without the first `skip` of them.
std::vector<double> times_of(const std::vector<TimedOp>& steps, std::string_view label, std::size_t skip);
// Of two kinds of steps that ran at once: each one's times while the other was under way all along. Either
// may be empty, where they did not overlap for long enough.
struct Overlapping {
  std::vector<double> a_us, b_us;
};
Overlapping overlapping_times(const std::vector<TimedOp>& steps, std::string_view a, std::string_view b,
                              std::size_t skip);

// How often the head of a point's plan is to repeat, so that the host stays ahead of the device for so many
// iterations: from the times of a first try with fewer.
std::int64_t head_repeats(const std::vector<TimedOp>& tried, std::int64_t tried_iterations,
                          std::int64_t iterations);

// "25 103.5 102.8 105.1": for other ranks; of a point that a rank has no part in, or that left no times,
// samples are 0.
std::string to_text(const Spread& spread);
Spread spread_from_text(std::string_view text);
// Of all ranks' own: that of the slowest.
Spread slowest(const std::vector<Spread>& ranks);

struct ProfileRow {
  ProfilePoint point;
  Spread time;  // of a BesidePoint: of its kernel beside the collective; of an IssuePoint: the host's
  // Of a BesidePoint: the kernel alone, the collective alone and beside.
  Spread kernel_alone = {}, collective_alone = {}, collective_beside = {};
};

// The points of that kind, with their rows.
template <class Point>
std::vector<std::pair<const Point*, const ProfileRow*>> rows_of(const std::vector<ProfileRow>& rows) {
  std::vector<std::pair<const Point*, const ProfileRow*>> found;
  for (const ProfileRow& row : rows) {
    if (const auto* point = std::get_if<Point>(&row.point)) found.emplace_back(point, &row);
  }
  return found;
}

// What each side of the BesidePoints keeps of its speed beside the other, over all of one number of channels.
struct KeptSpeeds {
  std::vector<double> attention_forward, attention_backward, products, collectives;
};
std::map<int, KeptSpeeds> kept_by_channels(const std::vector<ProfileRow>& rows);

// Of at least one number.
struct Summary {
  std::size_t count = 0;
  double least = 0, median = 0, greatest = 0;
};
Summary summary_of(std::vector<double> values);
// What the host took for each of `steps` that were issued when so many times, over the time of issuing none
// of them; at least 0.
Spread issue_times(const std::vector<double>& with_us, const std::vector<double>& without_us, double steps);
std::string to_text(const Summary& summary);  // "median of 12, from 0.81 to 0.97"

// One line a figure: kind, what, its sizes, median, low, high, samples.
std::string profile_csv(const std::vector<ProfileRow>& rows);

}  // namespace cp::cli
