// The cluster that `cprun profile` makes of what it measured.
#pragma once

#include <string>
#include <vector>

#include "cli/cprun/profile/profile_machine.h"
#include "cli/cprun/profile/profile_rows.h"
#include "sim/accuracy/calibrate/calibrate.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::cli {

// The preset that knows a GPU of that name: "dgx-h100"; empty where none does.
std::string preset_of_gpu(const std::string& gpu);

// `base` with what was measured instead of what it has; what was not measured stays. The text begins with
// comments that say where, when, with which clocks and versions, and how far the figures of each curve
// spread.
struct DeviceProfile {
  sim::Calibration calibration;
  std::string text;  // .txtpb that find_cluster() reads
  std::vector<std::string>
      notes;  // what was measured and has no place in a cluster, or was left out, and why
};
DeviceProfile device_profile(const sim::Cluster& base, const std::string& name,
                             const std::vector<ProfileRow>& rows, const ProfileMachine& machine);

}  // namespace cp::cli
