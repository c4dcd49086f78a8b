// The time of attention over a split sequence on a cluster, as one piece of software would run it.
#pragma once

#include <cstdint>

#include "shared/context_parallel/attention_plan.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"
#include "sim/timeline/timeline.h"

namespace cp::sim {

// How far the truth may lie from an estimate, as a factor each way: by what the cluster's numbers rest on.
double uncertainty(const Cluster& cluster, bool attention, bool transfers);
// The same of attention as the software runs it there, of a head size; `backward`: of both passes.
double attention_uncertainty(const Cluster& cluster, const SoftwareProfile& software, std::int64_t head_dim,
                             bool backward);
// The same of matrix products: by the rates' own errors on rows that were left out of their fit; of an efficiency that its source calls an estimate as of one that was taken over.
// Software that serves stored operands has their rates' errors.
double product_uncertainty(const Cluster& cluster, const SoftwareProfile& software);
// Of the products of experts in one call; 0 where nothing computes them so.
double expert_uncertainty(const Cluster& cluster, const SoftwareProfile& software);

struct AttentionEstimate {
  double time_us = 0, low_us = 0, high_us = 0;
  double exposed_comm_us = 0;       // of the rank that has most
  std::int64_t bytes_received = 0;  // of the rank that has most
  std::int64_t peak_bytes = 0;
  int ranks = 0;
  Timeline timeline;
};

// The strategy as the software runs it: what it sends, and in which dtype.
Strategy as_run_by(Strategy strategy, const SoftwareProfile& software);

// Throws what planning and replay() throw.
AttentionEstimate estimate_attention(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                                     const SoftwareProfile& software, const TimelineOptions& options = {},
                                     const Target& target = host_target());

}  // namespace cp::sim
