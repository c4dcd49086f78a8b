// Which attention kernel software runs on a cluster: the first of those that it names that the cluster has a
// rate or a curve of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim {

// Of the cluster's curves and rates: measured on it, then of tables, then borrowed. The first is the one of
// software that says "any", or that names none of them. Empty where the cluster has neither curves nor rates.
std::vector<std::string> attention_kernels(const Cluster& cluster, int bits = 16);

// Of `attention_kernel` of a profile: names with commas between, in the order in which the software would
// take them.
std::string chosen_kernel(const Cluster& cluster, std::string_view names, int bits = 16);

// The profile with that kernel alone (a user's choice, as source). Throws InvalidInput with the nearest one
// that the cluster has.
SoftwareProfile with_attention_kernel(SoftwareProfile software, const Cluster& cluster,
                                      const std::string& kernel);

// Whether any kernel of the cluster has rates of queries, keys and values in 8 bits.
bool has_attention_8(const Cluster& cluster);

// The profile with attention in 8 bits. Throws InvalidInput where no kernel that it names has rates of it on
// the cluster; says which have.
SoftwareProfile with_attention_8(SoftwareProfile software, const Cluster& cluster);

}  // namespace cp::sim
