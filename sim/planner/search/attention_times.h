// The attention of one layer alone on the timeline: what layouts of a search share, and their bounds are
// sharpened with.
#pragma once

#include <map>
#include <mutex>
#include <tuple>

#include "shared/transformer/step_plan.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

struct AttentionTimes {
  struct Pass {
    double kernels_ns = 0;  // some kernel runs
    double exposed_ns = 0;  // none does
  };
  Pass forward, backward;
};

// What attention depends on: sizes, strategy, and how far apart neighbouring cp ranks are, which counts
// within a node (or NVLink domain) alone. Layouts of equal keys share its times.
using AttentionKey = std::tuple<std::int64_t, int, int, int, Core, int, int, Balance::Kind, std::int64_t,
                                Strategy::Rotation, bool, bool>;
AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster);

// For any thread; the question must outlive it.
class AttentionTimer {
 public:
  explicit AttentionTimer(const PlanQuestion& question)
      : question_(question), software_(without_host(question.software)) {}

  // Of the rank that has most pairs, in training.
  const AttentionTimes& of(const ParallelLayout& layout);

 private:
  AttentionTimes::Pass replayed(const ParallelLayout& layout, AttentionPass pass) const;

  const PlanQuestion& question_;
  const SoftwareProfile software_;  // alone, attention would wait for a host that is ahead in a whole step
  std::mutex mutex_;                // of what follows
  std::map<AttentionKey, AttentionTimes> known_;
};

}  // namespace cp::sim
