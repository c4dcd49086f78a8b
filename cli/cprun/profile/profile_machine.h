// Where `cprun profile` measured, as its files say it.
#pragma once

#include <map>
#include <string>

#include "cli/cprun/profile/profile_points.h"

namespace cp::cli {

struct ProfileMachine {
  std::string gpu, date;                         // "NVIDIA H100 80GB HBM3", "2026-11-22"
  std::map<std::string, std::string> libraries;  // versions, by name
  ProfileWorld world;
  // MHz; 0: unknown. Sustained: after `seconds` of products.
  double max_clock_mhz = 0, sustained_clock_mhz = 0, power_w = 0, seconds = 0;
};

// Where a measured figure comes from: "cprun profile, NVIDIA H100 80GB HBM3, 2026-11-22".
std::string source_of(const ProfileMachine& machine);

// Lines of comments: GPU, date, ranks, versions, clocks.
std::string comments_of(const ProfileMachine& machine);

// The text of a .txtpb with the comments before its first field.
std::string with_comments(const std::string& text, const std::string& comments);

}  // namespace cp::cli
