// The time of attention over a split sequence on a cluster, as one piece of software would run it.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/drawn_times.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

struct AttentionEstimate {
  // The time of one call of many in a row: that of the GPUs, or that of the host if it needs longer to issue
  // the call.
  double time_us = 0;
  double host_us = 0;  // what the busiest host needs to issue a call
  // Eight times in ten the truth lies between these two, by the doubt of each rate (rate_doubt.h).
  double low_us = 0, high_us = 0;
  std::vector<RateTimes> chains;    // us: path_chains(), and the host's
  double exposed_comm_us = 0;       // of the rank that has most
  std::int64_t bytes_received = 0;  // of the rank that has most
  std::int64_t peak_bytes = 0;
  int ranks = 0;
  Timeline timeline;  // of the GPUs, with a host that is ahead
};

// The estimate as an option among strategies. For attention of several ranks its error is that of the
// strategy and that of the software; for one rank it is that of the kernel alone.
Option option_of(const AttentionEstimate& estimate);
Doubt doubt_of(const AttentionEstimate& estimate, const Cluster& cluster, const SoftwareProfile& software,
               std::int64_t head_dim);

// The strategy as the software would run it, which decides what is sent, and in which dtype.
Strategy as_run_by(Strategy strategy, const SoftwareProfile& software);

// The time of plans that are run over and over. The host issues the next call while the GPUs compute, and
// they wait for it if it needs longer than they do.
struct RepeatedCalls {
  Timeline timeline;   // of one call, with a host that is ahead
  double host_us = 0;  // what the busiest host needs to issue a call
  double time_us = 0;  // of one call of many
};
RepeatedCalls repeated_calls(const std::vector<Plan>& plans, const Cluster& cluster,
                             const SoftwareProfile& software, const TimelineOptions& options = {});

// Estimates one of many calls. Throws what planning and replay() throw.
AttentionEstimate estimate_attention(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                                     const SoftwareProfile& software, const TimelineOptions& options = {},
                                     const Target& target = host_target());

}  // namespace cp::sim
