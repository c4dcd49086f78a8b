// One rank's plan on a cluster, where every other rank of its groups does the same thing at the same time: the whole step of a
// model in a millisecond. Collectives begin when this rank arrives.
//
// What is kept of replay(): streams, edges, kernels slowed beside transfers, measured curves of transfers and collectives, and that
// transfers under way at once share the GPU's NVLink port and its part of a NIC. An Exchange takes what the slowest member of its
// group would take for the same transfers shifted to it. A Repeat is replayed until an iteration takes as long as the one before;
// the rest follow in step (exact: nothing that comes later can differ).
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"
#include "sim/timeline/timeline.h"

namespace cp::sim {

// Time by what it went to; the parts add up to time_ns.
struct StepClock {
  double time_ns = 0;
  double attention_ns = 0, product_ns = 0,
         other_kernel_ns = 0;  // while such a kernel runs (the first of these three that does)
  struct Exposed {
    std::string group;  // name of the group in the plan
    double ns = 0;
  };
  std::vector<Exposed>
      exposed;  // no kernel runs, and of the collectives under way this one began first; by first appearance
  double exposed_ns() const;
  double hidden_ns = 0;                    // a collective is under way and a kernel runs; part of the above
  double nvlink_bytes = 0, nic_bytes = 0;  // sent by this GPU
  std::vector<Span> spans;                 // with keep_spans: of all iterations
};

struct RankReplayOptions {
  bool keep_spans = false;
  CollectiveSettings collectives;
};

// Throws InvalidInput where a rank of the plan's groups has no GPU on the cluster.
StepClock replay_rank(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software,
                      const RankReplayOptions& options = {});

}  // namespace cp::sim
