// Where `cprun profile` measured, and how its files say so.
#pragma once

#include <map>
#include <string>

#include "cli/cprun/profile/profile_points.h"

namespace cp::cli {

struct ProfileMachine {
  std::string gpu, date;                         // "NVIDIA H100 80GB HBM3", "2026-11-22"
  std::map<std::string, std::string> libraries;  // versions, by name
  ProfileWorld world;
  // Clocks of the SMs in MHz (0 if they are unknown) and the power in W. They were read after `seconds` of
  // products.
  double max_clock_mhz = 0, sustained_clock_mhz = 0, power_w = 0, seconds = 0;
};

// Where a measured figure comes from: "cprun profile, NVIDIA H100 80GB HBM3, 2026-11-22".
std::string source_of(const ProfileMachine& machine);

// Comment lines for a file: the GPU, the date, ranks, versions and clocks.
std::string comments_of(const ProfileMachine& machine);

// Returns the text of a .txtpb with the comments inserted before its first field, `name`.
std::string with_comments(const std::string& text, const std::string& comments);

}  // namespace cp::cli
