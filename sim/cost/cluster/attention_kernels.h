// Which attention kernel a software runs on a cluster. A software profile names kernels in the order in which
// it would take them; the first one for which the cluster has a rate or a curve is chosen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim {

// Returns the kernels of the cluster's curves and rates: first those measured on it, then those from tables,
// then those borrowed from another GPU. Software that says "any", or names none of them, gets the first.
// Empty if the cluster has neither curves nor rates.
std::vector<std::string> attention_kernels(const Cluster& cluster, int bits = 16);

// Returns the chosen kernel. `names` is the field `attention_kernel` of a profile: names separated by commas,
// in the order in which the software would take them.
std::string chosen_kernel(const Cluster& cluster, std::string_view names, int bits = 16);

// Returns the profile with that kernel as its only one; the field's source says that a user chose it. Throws
// InvalidInput that names the nearest kernel, if the cluster does not have this one.
SoftwareProfile with_attention_kernel(SoftwareProfile software, const Cluster& cluster,
                                      const std::string& kernel);

// Whether any kernel of the cluster has rates of queries, keys and values in 8 bits.
bool has_attention_8(const Cluster& cluster);

// Returns the profile with attention in 8 bits. Throws InvalidInput if none of the profile's kernels has
// rates for that on the cluster; the message says which kernels have.
SoftwareProfile with_attention_8(SoftwareProfile software, const Cluster& cluster);

}  // namespace cp::sim
