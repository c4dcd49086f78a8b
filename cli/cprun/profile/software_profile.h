// The software profile that `cprun profile` makes of what it measured: what plans of this project do on that
// machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/cprun/profile/profile_machine.h"
#include "cli/cprun/profile/profile_rows.h"
#include "sim/cost/cluster/software.h"

namespace cp::cli {

struct MeasuredSoftware {
  sim::SoftwareProfile software;
  std::vector<std::string> measured;  // its fields that were, ascending
  std::string text;                   // .txtpb that find_software() reads
};
// The preset "cprun" with what was measured instead of what it assumes:
//   forward_progress, backward_progress   medians of what attention keeps of its speed beside collectives of
//                                         the library's own number of channels; the comments of the text have
//                                         the other numbers
//   merge_passes, pack_passes             medians of their times over that of a copy that moves as many bytes
//   kernel_issue_us, collective_issue_us, transfer_issue_us
//                                         medians of the host's time to issue a small one
// Nothing where no row says anything of these.
std::optional<MeasuredSoftware> measured_software(const std::string& name,
                                                  const std::vector<ProfileRow>& rows,
                                                  const ProfileMachine& machine);

}  // namespace cp::cli
