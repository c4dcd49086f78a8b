// One rank's plan on a cluster, where every other rank of its groups does the same thing at the same time:
// the whole step of a model in a millisecond. Collectives begin when this rank arrives.
//
// What is kept of replay(): streams, edges, kernels slowed beside transfers and transfers beside kernels,
// measured curves of transfers and collectives, and that flows under way at once share the GPU's port into
// its node and its part of a NIC, max-min fair, each up to what it takes alone (port_loads.h). An Exchange
// takes what the slowest member of its group would take for the same transfers shifted to it. A Repeat is
// replayed until the state of all streams at the end of an iteration comes again; the rest follow in step
// (exact: nothing that comes later can differ).
//
// Left out: that other ranks come late, that uneven transfers of one Exchange share links with others in
// turn, and what lies behind NICs. Where all ranks do the same (attention by ring, pass_q, all_gather,
// Ulysses and their hybrids on 2 to 16 ranks of one and two nodes) the rank that takes longest takes
// replay()'s time, to rounding. Where ranks wait for one another in turn it takes less: need_only backward by
// up to 0.8 %, double rings on two nodes by 0.01 %.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/rate_times.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

// Time by what it went to; the parts add up to time_ns.
struct StepClock {
  double time_ns = 0;
  // While such a kernel runs, of the first of these three that does. Attention: forward and backward, not
  // what merges its parts.
  double attention_ns = 0, product_ns = 0, other_kernel_ns = 0;
  struct Exposed {
    std::string group;  // name of the group in the plan
    double ns = 0;
  };
  // While no kernel runs and, of the collectives under way, this one began first: all groups that have
  // collectives, by first appearance in the plan.
  std::vector<Exposed> exposed;
  double exposed_ns() const;
  // No kernel runs on the GPU: something is copied from or to the host's memory, or the host computes.
  double offload_ns = 0;
  double host_ns = 0;    // nothing runs: the next step is not issued yet
  double hidden_ns = 0;  // a collective is under way and a kernel runs; part of the above
  // Ns of the chain of operations, each waiting for the one before, that takes the whole time: they add up to
  // it.
  RateTimes path;
  double nvlink_bytes = 0, nic_bytes = 0;  // sent by this GPU: inside of its node or NVLink domain; to others
  std::vector<Span> spans;                 // with keep_spans: of all iterations
};

struct RankReplayOptions {
  bool keep_spans = false;
  CollectiveSettings collectives = {};
  RateFactors factors = {};  // of kernels' and transfers' times
};

// Throws InvalidInput where a rank of the plan's groups has no GPU on the cluster.
StepClock replay_rank(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software,
                      const RankReplayOptions& options = {});

}  // namespace cp::sim
