// The cluster file that `cprun profile` makes of its measurements.
#pragma once

#include <string>
#include <vector>

#include "cli/cprun/profile/profile_machine.h"
#include "cli/cprun/profile/profile_rows.h"
#include "sim/accuracy/calibrate/calibrate.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::cli {

// Returns the preset that has a GPU of this name, which is spelled as nvidia-smi spells it: "dgx-h100" for
// "NVIDIA H100 80GB HBM3". Returns the empty text if there is none.
std::string preset_of_gpu(const std::string& gpu);

// The cluster `base` with what was measured instead of its own figures; other figures stay. The text begins
// with comments that say where and when it was measured, with which clocks and versions. Each curve's source
// says how far its figures spread.
struct DeviceProfile {
  sim::Calibration calibration;
  std::string text;  // .txtpb that find_cluster() reads
  // What was measured but has no place in a cluster, or was left out, and why.
  std::vector<std::string> notes;
};

// `name` becomes the cluster's name.
DeviceProfile device_profile(const sim::Cluster& base, const std::string& name,
                             const std::vector<ProfileRow>& rows, const ProfileMachine& machine);

}  // namespace cp::cli
