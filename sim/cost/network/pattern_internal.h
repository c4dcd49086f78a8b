// What the ways to time a pattern share. Included by pattern*.cc alone.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "sim/cost/network/pattern.h"
#include "sim/cost/network/topology.h"

namespace cp::sim::internal {

inline bool is_ring(const Pattern& pattern) { return pattern.kind != PatternKind::pairwise_all_to_all; }

// Messages that a rank sends, one after the other (in each channel).
inline int num_steps(const Pattern& pattern, int group_size) {
  return pattern.kind == PatternKind::ring_all_reduce ? 2 * (group_size - 1) : group_size - 1;
}

// Of each message.
inline double message_bytes(const Pattern& pattern, int group_size) {
  return pattern.bytes / group_size / (is_ring(pattern) ? pattern.channels : 1);
}

// Throws InvalidInput on what run_pattern refuses.
void check(const Topology& topology, std::span<const int> gpus, const Pattern& pattern);

// The positions in the group along a channel's ring.
std::vector<int> ring_order(const Topology& topology, std::span<const int> gpus, int channel);

// Finish by position where no message can ever slow another one down; else nothing.
std::optional<std::vector<double>> folded(const Topology& topology, const TransferCurves& curves,
                                          std::span<const int> gpus, const Pattern& pattern);

}  // namespace cp::sim::internal
