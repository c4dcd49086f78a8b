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
  double time_us =
      0;  // of one call of many in a row: of the GPUs, or of the host where that needs longer to issue it
  double host_us = 0;  // what the busiest host needs to issue a call
  double low_us = 0,
         high_us = 0;  // eight times in ten the truth lies between, by the doubt of each rate (rate_doubt.h)
  std::vector<RateTimes> chains;    // us: path_chains(), and the host's
  double exposed_comm_us = 0;       // of the rank that has most
  std::int64_t bytes_received = 0;  // of the rank that has most
  std::int64_t peak_bytes = 0;
  int ranks = 0;
  Timeline timeline;  // of the GPUs, with a host that is ahead
};

// As an option among strategies: attention of several ranks is wrong by its strategy's error and the software's, of one rank by its kernel's
// alone.
Option option_of(const AttentionEstimate& estimate);
Doubt doubt_of(const AttentionEstimate& estimate, const Cluster& cluster, const SoftwareProfile& software,
               std::int64_t head_dim);

// The strategy as the software runs it: what it sends, and in which dtype.
Strategy as_run_by(Strategy strategy, const SoftwareProfile& software);

// Plans that are run over and over: the host issues the next call while the GPUs compute, and is waited for where it needs longer than
// they do.
struct RepeatedCalls {
  Timeline timeline;   // of one call, with a host that is ahead
  double host_us = 0;  // what the busiest host needs to issue a call
  double time_us = 0;  // of one call of many
};
RepeatedCalls repeated_calls(const std::vector<Plan>& plans, const Cluster& cluster,
                             const SoftwareProfile& software, const TimelineOptions& options = {});

// Of one of many calls. Throws what planning and replay() throw.
AttentionEstimate estimate_attention(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                                     const SoftwareProfile& software, const TimelineOptions& options = {},
                                     const Target& target = host_target());

}  // namespace cp::sim
