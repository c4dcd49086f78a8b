#include "cli/cprun/profile/profile_measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::cli {
namespace {

// Chosen: the first iterations load kernels and connect ranks, which is not what is measured.
constexpr std::size_t kWarmUp = 2;
// How many iterations a point takes. kPilot of them find out how long one takes; then as many are run as fit
// into kPointUs, but at least kLeast and at most kMost. Chosen: of seven, a median and a spread can be told;
// more than 200 make a profile longer and its medians hardly better.
constexpr std::int64_t kPilot = 3, kLeast = 7, kMost = 200;
// How many steps are issued to measure what the host needs for one: the time of the many less that of the few
// leaves out what every run begins with. The many must be fewer than a device takes before the host has to
// wait: NCCL's network has slots for 64 collectives of 16 channels (nccl_launch.h).
constexpr std::int64_t kFewIssued = 8, kManyIssued = 40;
// How many calls of the shorter of two things run beside one call of the longer one. Chosen: a limit for
// pairs whose times are far apart, which would otherwise fill the device's queue.
constexpr std::int64_t kMostBeside = 16;
// About how long one part of a point takes, in us. Chosen: how long a whole profile takes is in proportion to
// it.
constexpr double kPointUs = 200e3;
constexpr double kUsPerS = 1e6;

// Returns one tile of numbers, which fills a buffer over and over. Chosen: 65521 is the largest prime below
// 2^16, so a tile is smaller than 1 MiB, and its length is no multiple of a row's: rows differ. The numbers
// come from a linear congruential generator (the constants of Numerical Recipes).
std::vector<std::byte> tile_of(DType dtype) {
  constexpr std::size_t kNumel = 65521;
  const auto element = static_cast<std::size_t>(size_bytes(dtype));
  std::vector<std::byte> tile(kNumel * element);
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < kNumel; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) / 2147483648.0F;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (element == 2) bits >>= 16;  // bf16; of f16 it is some number too
    std::memcpy(&tile[i * element], &bits, std::min<std::size_t>(element, sizeof bits));
  }
  return tile;
}

}  // namespace

void upload_data(PlanSession& session) {
  std::vector<std::byte> host;
  for (const BufferId id : session.inputs()) {
    const Buffer& buffer = session.plan().buffers[static_cast<std::size_t>(id)];
    if (buffer.numel == 0) continue;
    const std::vector<std::byte> tile = tile_of(buffer.dtype);
    host.resize(static_cast<std::size_t>(buffer.bytes()));
    for (std::size_t at = 0; at < host.size(); at += tile.size())
      std::memcpy(&host[at], tile.data(), std::min(tile.size(), host.size() - at));
    session.upload(id, host);
  }
}

std::optional<ProfileRow> ProfileMeasure::row(const ProfilePoint& point) {
  if (std::holds_alternative<BesidePoint>(point)) return beside(point);
  if (const auto* issued = std::get_if<IssuePoint>(&point)) return issue(*issued);
  const std::vector<TimedOp> steps = run(point, Part::all);
  const bool kernel =
      !std::holds_alternative<CollectivePoint>(point) && !std::holds_alternative<PairsPoint>(point);
  const Spread time = of_slowest(times_of(steps, kernel ? kKernelLabel : kCollectiveLabel, kWarmUp));
  if (time.samples == 0) return std::nullopt;
  return ProfileRow{point, time};
}

std::optional<ProfileRow> ProfileMeasure::beside(const ProfilePoint& point) {
  ProfileRow row{point, {}};
  row.kernel_alone = of_slowest(times_of(run(point, Part::kernel), kKernelLabel, kWarmUp));
  row.collective_alone = of_slowest(times_of(run(point, Part::collective), kCollectiveLabel, kWarmUp));
  if (row.kernel_alone.samples == 0 || row.collective_alone.samples == 0) return std::nullopt;
  const double ratio = row.collective_alone.median_us / row.kernel_alone.median_us;
  ProfilePlanOptions options = first_options();
  options.kernels = std::clamp<std::int64_t>(std::llround(ratio), 1, kMostBeside);
  options.collectives = std::clamp<std::int64_t>(std::llround(1 / ratio), 1, kMostBeside);
  const double iteration_us =
      std::max(static_cast<double>(options.kernels) * row.kernel_alone.median_us,
               static_cast<double>(options.collectives) * row.collective_alone.median_us);
  options.iterations = iterations_for(iteration_us);
  const Overlapping both = overlapping_times(run(point, options), kKernelLabel, kCollectiveLabel, kWarmUp);
  row.time = of_slowest(both.a_us), row.collective_beside = of_slowest(both.b_us);
  if (row.time.samples == 0 || row.collective_beside.samples == 0) return std::nullopt;
  return row;
}

// Compares two runs behind the same head, one of few steps and one of many: their difference is free of what
// the head and the loop cost. The head is as long as the host needs for the many steps, so that the host
// never waits for the device.
std::optional<ProfileRow> ProfileMeasure::issue(const IssuePoint& point) {
  ProfilePlanOptions options = first_options();
  const std::vector<TimedOp> pilot = run(point, options);
  options.head_repeats = head_repeats(pilot, kPilot, kManyIssued);
  options.iterations = kFewIssued;
  const std::vector<double> few = issued_us(point, options);
  options.iterations = kManyIssued;
  const std::vector<double> many = issued_us(point, options);
  const double steps_each = point.step == IssuePoint::Step::transfer ? 2 : 1;
  const bool has_part =
      !times_of(pilot, point.step == IssuePoint::Step::kernel ? kKernelLabel : kCollectiveLabel, 0).empty();
  Spread own;
  if (has_part) own = issue_times(many, few, static_cast<double>(kManyIssued - kFewIssued) * steps_each);
  const Spread time = of_slowest(own);
  if (time.samples == 0) return std::nullopt;
  return ProfileRow{point, time};
}

std::vector<double> ProfileMeasure::issued_us(const IssuePoint& point, const ProfilePlanOptions& options) {
  const Plan plan = profile_plan(point, device_.rank(), world_, device_.target(), options);
  PlanSession session(device_, plan);
  upload_data(session);
  std::vector<double> times_us;
  for (std::int64_t i = 0; i < kLeast; ++i) {
    times_us.push_back(session.run(together()).issue_seconds * kUsPerS);
    device_.take_times();
  }
  return times_us;
}

// Options with which all ranks begin at the same time.
RunOptions ProfileMeasure::together() const {
  RunOptions options;
  options.ready = [this] { all_gather_(""); };
  return options;
}

ProfilePlanOptions ProfileMeasure::first_options() const {
  ProfilePlanOptions options;
  if (size_ == ProfileSize::tiny) options.head_bytes = options.cache_bytes = 4096;
  options.iterations = kPilot;
  return options;
}

std::int64_t ProfileMeasure::iterations_for(double iteration_us) const {
  const std::int64_t most = size_ == ProfileSize::tiny ? kLeast : kMost;
  return std::clamp(static_cast<std::int64_t>(kPointUs / std::max(1.0, iteration_us)), kLeast, most);
}

// Runs as many iterations as fit into the time, judged by the slowest rank of a first try. They stand behind
// a head that is as long as the host needs to issue them.
std::vector<TimedOp> ProfileMeasure::run(const ProfilePoint& point, Part part) {
  ProfilePlanOptions options = first_options();
  options.part = part;
  const std::vector<TimedOp> pilot = run(point, options);
  double pilot_us = 0;
  for (const TimedOp& step : pilot) {
    if (step.label == kKernelLabel || step.label == kCollectiveLabel)
      pilot_us = std::max(pilot_us, static_cast<double>(step.end_ns - step.begin_ns) / 1e3);
  }
  // All ranks must take the same number of iterations. So the number is computed from the texts that all
  // ranks have read: the slowest rank's own figure has a fraction that the others do not see.
  double slowest_us = 0;
  for (const std::string& text : all_gather_(str(static_cast<std::int64_t>(pilot_us))))
    slowest_us = std::max(slowest_us, static_cast<double>(parse_int(text, "time")));
  options.iterations = iterations_for(slowest_us);
  options.head_repeats = head_repeats(pilot, kPilot, options.iterations);
  return run(point, options);
}

std::vector<TimedOp> ProfileMeasure::run(const ProfilePoint& point, const ProfilePlanOptions& options) {
  const Plan plan = profile_plan(point, device_.rank(), world_, device_.target(), options);
  PlanSession session(device_, plan);
  upload_data(session);
  session.run(together());
  return device_.take_times().steps;
}

Spread ProfileMeasure::of_slowest(const std::vector<double>& own_us) {
  return of_slowest(own_us.empty() ? Spread{} : spread_of(own_us));
}

Spread ProfileMeasure::of_slowest(const Spread& own) {
  std::vector<Spread> ranks;
  for (const std::string& text : all_gather_(to_text(own))) ranks.push_back(spread_from_text(text));
  return slowest(ranks);
}

}  // namespace cp::cli
