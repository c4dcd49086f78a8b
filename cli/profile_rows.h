// What `cprun profile` measured, and the cluster that it makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/profile_points.h"
#include "shared/plan/trace.h"
#include "sim/calibrate/calibrate.h"
#include "sim/cluster/cluster.h"

namespace cp::cli {

// Of several times: the median, and between which values half of them lie.
struct Spread {
  int samples = 0;
  double median_us = 0, low_us = 0, high_us = 0;
  double relative() const { return (high_us - low_us) / median_us; }
};
// Throws InvalidInput for none.
Spread spread_of(std::vector<double> times_us);

// The times of the steps with the label, without the first `skip` of them.
std::vector<double> times_of(const std::vector<TimedOp>& steps, std::string_view label, std::size_t skip);
// Of two kinds of steps that ran at once: each one's times while the other was under way all along. Either may be empty, where they did
// not overlap for long enough.
struct Overlapping {
  std::vector<double> a_us, b_us;
};
Overlapping overlapping_times(const std::vector<TimedOp>& steps, std::string_view a, std::string_view b,
                              std::size_t skip);

// "25 103.5 102.8 105.1": for other ranks; of a point that a rank has no part in, or that left no times, samples are 0.
std::string to_text(const Spread& spread);
Spread spread_from_text(std::string_view text);
// Of all ranks' own: that of the slowest.
Spread slowest(const std::vector<Spread>& ranks);

struct ProfileRow {
  ProfilePoint point;
  Spread time;  // of a BesidePoint: of its kernel beside the collective
  // Of a BesidePoint: the kernel alone, the collective alone and beside.
  Spread kernel_alone = {}, collective_alone = {}, collective_beside = {};
};

struct ProfileMachine {
  std::string gpu, date;                         // "NVIDIA H100 80GB HBM3", "2026-11-22"
  std::map<std::string, std::string> libraries;  // versions, by name
  int world = 1, machines = 1;
  bool shared_gpu = false;  // ranks share one: what they send says nothing of a cluster
  // MHz; 0: unknown. Sustained: after `seconds` of products.
  double max_clock_mhz = 0, sustained_clock_mhz = 0, power_w = 0, seconds = 0;
};

// One line a figure: kind, what, its sizes, median, low, high, samples.
std::string profile_csv(const std::vector<ProfileRow>& rows);

// The preset that knows a GPU of that name: "dgx-h100"; empty where none does.
std::string preset_of_gpu(const std::string& gpu);

// `base` with what was measured instead of what it has; what was not measured stays. The text begins with comments that say where, when,
// with which clocks and versions, and how far the figures of each curve spread.
struct DeviceProfile {
  sim::Calibration calibration;
  std::string text;  // .txtpb that find_cluster() reads
  std::vector<std::string>
      notes;  // what was measured and has no place in a cluster, or was left out, and why
};
DeviceProfile device_profile(const sim::Cluster& base, const std::string& name,
                             const std::vector<ProfileRow>& rows, const ProfileMachine& machine);

}  // namespace cp::cli
