// The steps of one rank's plan as replay_rank() (rank_replay.h) runs them: by stream, with what each waits
// for, what it takes alone, and where its time goes. Nothing here changes while they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/host_clock.h"
#include "sim/cost/timeline/port_loads.h"
#include "sim/cost/timeline/rate_times.h"

namespace cp::sim {

struct RankTask {
  // Where the time of a rank goes, and what it sends: places in a list of sums. The groups follow.
  static constexpr std::size_t kAttention = 0, kProduct = 1, kOther = 2, kHidden = 3, kHost = 4, kOffload = 5,
                               kInside = 6, kNetwork = 7, kFixedSums = 8;

  StepId step = -1;
  bool collective = false;
  bool quiet = false;        // a collective that copy engines move: kernels keep their speed beside it
  bool merges = false;       // a kernel beside others (merge_stream.h)
  bool of_host = false;      // copies from and to its memory, and its own kernels: none of the GPU's
  std::size_t sum = kOther;  // where its time goes when it is a kernel; of a collective: its group's
  Rate rate = Rate::memory;  // of a kernel
  double ns = 0, beside_transfers = 1;        // of a kernel: alone; share of its speed beside transfers
  PortLoad load;                              // of a collective
  std::size_t first_need = 0, num_needs = 0;  // in the list of all
};

// What a task waits for.
struct RankNeed {
  StepId step = -1;
  std::int64_t ends = 0;  // of it; inside a Repeat: in iteration i, i + ends of them
  bool inside = false;
};

struct RankTasks {
  // The steps of a segment on one stream.
  struct Part {
    std::int32_t segment = 0;
    std::int64_t count = 1;
    std::size_t begin = 0, end = 0;  // among the stream's tasks
  };
  struct Stream {
    std::vector<RankTask> tasks;
    std::vector<Part> parts;
  };
  std::vector<Stream> streams;  // as the plan has them
  std::vector<RankNeed> needs;  // of all tasks
  std::vector<std::string>
      groups;  // that have collectives, by first appearance: the sums behind the fixed ones
  HostClock host;
  double inside_gbps = 0, network_gbps = 0;  // of the GPU's ports
};

// All times and rates are changed by the factors. `steps` are those of the plan. Throws InvalidInput where a
// rank of the plan or of its groups has no GPU on the cluster.
RankTasks rank_tasks(const Plan& plan, const std::vector<StepRef>& steps, const Cluster& cluster,
                     const SoftwareProfile& software, const CollectiveSettings& settings,
                     const RateFactors& factors);

}  // namespace cp::sim
