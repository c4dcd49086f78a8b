#include "cli/cprun/profile/profile_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"

namespace cp::cli {
namespace {

std::vector<const TimedOp*> labelled(const std::vector<TimedOp>& steps, std::string_view label,
                                     std::size_t skip) {
  std::vector<const TimedOp*> found;
  for (const TimedOp& step : steps) {
    if (step.label == label) found.push_back(&step);
  }
  found.erase(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(std::min(skip, found.size())));
  return found;
}

// The times of the steps of `own` that lie between the begin of the first step of `other` and the end of the
// last one: outside of this span they may have run alone.
std::vector<double> inside(const std::vector<const TimedOp*>& own, const std::vector<const TimedOp*>& other) {
  std::vector<double> times;
  if (other.empty()) return times;
  for (const TimedOp* step : own) {
    if (step->begin_ns < other.front()->begin_ns || step->end_ns > other.back()->end_ns) continue;
    times.push_back(static_cast<double>(step->end_ns - step->begin_ns) / kNsPerUs);
  }
  return times;
}

// Returns the quantile q. If it falls between two values, it is interpolated linearly.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Spread spread_of(std::vector<double> times_us) {
  if (times_us.empty()) throw InvalidInput("no time was measured, so there is no median");
  std::sort(times_us.begin(), times_us.end());
  return {static_cast<int>(times_us.size()), quantile(times_us, 0.5), quantile(times_us, 0.25),
          quantile(times_us, 0.75)};
}

std::vector<double> times_of(const std::vector<TimedOp>& steps, std::string_view label, std::size_t skip) {
  std::vector<double> times;
  for (const TimedOp* step : labelled(steps, label, skip))
    times.push_back(static_cast<double>(step->end_ns - step->begin_ns) / kNsPerUs);
  return times;
}

Overlapping overlapping_times(const std::vector<TimedOp>& steps, std::string_view a, std::string_view b,
                              std::size_t skip) {
  const std::vector<const TimedOp*> of_a = labelled(steps, a, skip), of_b = labelled(steps, b, skip);
  return {inside(of_a, of_b), inside(of_b, of_a)};
}

std::int64_t head_repeats(const std::vector<TimedOp>& tried, std::int64_t tried_iterations,
                          std::int64_t iterations) {
  // Estimate: a host needs no longer than this to issue a step; the slowest are a fused attention and a
  // collective. If a host is slower, the steps behind the head are issued too late and look slower than they
  // are.
  constexpr double kHostUs = 30;
  constexpr double kMostRepeats = 10'000;  // chosen: ends the loop if the head takes no time at all
  const std::vector<double> heads = times_of(tried, kHeadLabel, 0);
  if (heads.empty()) return 1;
  const auto steps = static_cast<double>(tried.size() - heads.size()) / static_cast<double>(tried_iterations);
  const double needed_us = static_cast<double>(iterations) * steps * kHostUs;
  return static_cast<std::int64_t>(
      std::clamp(std::ceil(needed_us / std::max(heads.front(), 1.0)), 1.0, kMostRepeats));
}

std::string to_text(const Spread& spread) {
  return fmt::format("{} {:.17g} {:.17g} {:.17g}", spread.samples, spread.median_us, spread.low_us,
                     spread.high_us);
}

Spread spread_from_text(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ' ');
  CP_INVARIANT(parts.size() == 4, std::string(text));
  const auto number = [&](std::size_t i) { return std::stod(std::string(parts[i])); };
  return {static_cast<int>(parse_int(parts[0], "samples")), number(1), number(2), number(3)};
}

Spread slowest(const std::vector<Spread>& ranks) {
  Spread result;
  for (const Spread& rank : ranks) {
    if (rank.samples > 0 && rank.median_us >= result.median_us) result = rank;
  }
  return result;
}

std::map<int, KeptSpeeds> kept_by_channels(const std::vector<ProfileRow>& rows) {
  std::map<int, KeptSpeeds> kept;
  const auto add = [](std::vector<double>& to, const Spread& alone, const Spread& beside) {
    if (alone.samples > 0 && beside.samples > 0) to.push_back(alone.median_us / beside.median_us);
  };
  for (const auto& [point, row] : rows_of<BesidePoint>(rows)) {
    KeptSpeeds& of = kept[point->channels];
    const auto* attention = std::get_if<AttentionPoint>(&point->kernel);
    add(attention == nullptr  ? of.products
        : attention->backward ? of.attention_backward
                              : of.attention_forward,
        row->kernel_alone, row->time);
    add(of.collectives, row->collective_alone, row->collective_beside);
  }
  return kept;
}

Spread issue_times(const std::vector<double>& with_us, const std::vector<double>& without_us, double steps) {
  const double without = spread_of(without_us).median_us;
  std::vector<double> each;
  for (const double with : with_us) each.push_back(std::max(0.0, with - without) / steps);
  return spread_of(std::move(each));
}

Summary summary_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.size(), values.front(), quantile(values, 0.5), values.back()};
}

std::string to_text(const Summary& summary) {
  return fmt::format("median of {}, from {:.3g} to {:.3g}", summary.count, summary.least, summary.greatest);
}

std::string profile_csv(const std::vector<ProfileRow>& rows) {
  std::string text = "what,figure,samples,median_us,low_us,high_us,rate,unit\n";
  const auto add = [&text](const std::string& what, const char* figure, const Spread& time, double rate,
                           const char* unit) {
    if (time.samples == 0) return;
    text += fmt::format("\"{}\",{},{},{:.6g},{:.6g},{:.6g},{:.5g},{}\n", what, figure, time.samples,
                        time.median_us, time.low_us, time.high_us,
                        time.median_us == 0 ? 0 : rate / time.median_us, unit);
  };
  for (const ProfileRow& row : rows) {
    const std::string what = name(row.point);
    if (const auto* attention = std::get_if<AttentionPoint>(&row.point)) {
      add(what, "kernel", row.time, flops(*attention) * 1e-6, "TFLOP/s");
    } else if (const auto* memory = std::get_if<MemoryPoint>(&row.point)) {
      add(what, "kernel", row.time, static_cast<double>(moved_bytes(*memory)) * 1e-3, "GB/s");
    } else if (const auto* product = std::get_if<ProductPoint>(&row.point)) {
      add(what, "kernel", row.time, flops(*product) * 1e-6, "TFLOP/s");
    } else if (const auto* collective = std::get_if<CollectivePoint>(&row.point)) {
      add(what, "collective", row.time, static_cast<double>(collective->bytes) * 1e-3, "GB/s");
    } else if (const auto* pairs = std::get_if<PairsPoint>(&row.point)) {
      add(what, "collective", row.time, static_cast<double>(pairs->bytes) * 1e-3, "GB/s of a pair");
    } else if (std::holds_alternative<IssuePoint>(row.point)) {
      add(what, "host", row.time, 1, "a us");
    } else {
      // The rate is the share of its speed that each one keeps, against itself alone.
      add(what, "kernel alone", row.kernel_alone, row.kernel_alone.median_us, "of itself");
      add(what, "kernel beside", row.time, row.kernel_alone.median_us, "of it alone");
      add(what, "collective alone", row.collective_alone, row.collective_alone.median_us, "of itself");
      add(what, "collective beside", row.collective_beside, row.collective_alone.median_us, "of it alone");
    }
  }
  return text;
}

}  // namespace cp::cli
