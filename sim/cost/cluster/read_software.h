// Software profiles as text (sim/cost/cluster/software.proto): presets by name, and people's own files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/software.h"

namespace cp::sim {

// Throws one InvalidInput with a line `file:line:column: message` for each error, as read_cluster does. Every
// field has to be given, unless a preset is named that the rest comes from (`like`).
SoftwareProfile read_software(std::string_view text, std::string_view filename);

// A preset by its name ("megatron"), or a file whose name ends in .txtpb.
SoftwareProfile find_software(const std::string& name_or_path);

// Of the presets, ascending.
std::vector<std::string> software_names();

// Reading the text gives the same profile. Throws InvalidInput for a field without a source.
std::string write_software(const SoftwareProfile& software);

// "dp_shard", "dp_shard_cp".
std::string to_string(ShardingGroup group);

}  // namespace cp::sim
