// Which attention kernel software runs on a cluster: the first of those that it names that the cluster has a rate or a curve of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"

namespace cp::sim {

// Of the cluster's curves and rates: measured on it, then of tables, then borrowed. The first is the one of software that says "any", or
// that names none of them. Empty where the cluster has neither curves nor rates.
std::vector<std::string> attention_kernels(const Cluster& cluster);

// Of `attention_kernel` of a profile: names with commas between, in the order in which the software would take them.
std::string chosen_kernel(const Cluster& cluster, std::string_view names);

// The profile with that kernel alone (a user's choice, as source). Throws InvalidInput with the nearest one that the cluster has.
SoftwareProfile with_attention_kernel(SoftwareProfile software, const Cluster& cluster,
                                      const std::string& kernel);

}  // namespace cp::sim
