// Clusters as text (sim/cost/cluster/cluster.proto): presets by name, and people's own files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Throws one InvalidInput with a line `file:line:column: message` for each error: what read_text says; a
// number or curve without a source; a field that is missing, where no preset is named that the rest comes
// from (`like`); a value out of its range; what validate_cluster says. The cluster has `nodes` as the text
// says.
Cluster read_cluster(std::string_view text, std::string_view filename);

// A preset by its name ("dgx-h100"), or a file whose name ends in .txtpb. `nodes`: 0 for as many as the text
// says. Throws InvalidInput as read_cluster does, or with the presets and the nearest one.
Cluster find_cluster(const std::string& name_or_path, int nodes = 0);

// Of the presets, ascending.
std::vector<std::string> cluster_names();

// The text of a cluster file; reading it gives the same cluster. Throws InvalidInput for a number without a
// source.
std::string write_cluster(const Cluster& cluster);

}  // namespace cp::sim
