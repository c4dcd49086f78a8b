// The software profile that `cprun profile` makes of its measurements: how plans of this project behave on
// the machine that was measured.
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
  std::vector<std::string> measured;  // the fields that were measured, in ascending order
  std::string text;                   // .txtpb that find_software() reads
};

// Returns the preset "cprun", with these fields replaced by what was measured; or nothing, if no row says
// anything of them.
//
//   max_ctas                              how many channels collectives should have beside attention
//                                         (channel_choice.h), if that is better than the library's choice;
//                                         cprun --software takes it, and cpsim plan --emit attention writes it
//   forward_progress, backward_progress   medians of the share of its speed that attention keeps beside
//                                         collectives, with the number of channels that was chosen; the
//                                         comments of the text have the other numbers of channels
//   merge_passes, pack_passes             medians of their times over that of a copy that moves as many bytes
//   kernel_issue_us, collective_issue_us, transfer_issue_us
//                                         medians of the time that the host takes to issue a small one, in us
//
// If ranks share a GPU, the first three stay as the preset has them. The function throws nothing of its own.
std::optional<MeasuredSoftware> measured_software(const std::string& name,
                                                  const std::vector<ProfileRow>& rows,
                                                  const ProfileMachine& machine);

}  // namespace cp::cli
