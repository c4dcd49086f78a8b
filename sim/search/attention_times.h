// The attention of one layer alone on the timeline: what layouts of a search share, and their bounds are sharpened with.
#pragma once

#include <map>
#include <tuple>

#include "shared/transformer/step_plan.h"
#include "sim/search/question.h"

namespace cp::sim {

struct AttentionTimes {
  struct Pass {
    double kernels_ns = 0;  // some kernel runs
    double exposed_ns = 0;  // none does
  };
  Pass forward, backward;
};

// What attention depends on; layouts of equal keys share its plans.
using AttentionKey = std::tuple<std::int64_t, int, int, AxisOrder, Core, int, int, Balance::Kind,
                                std::int64_t, Strategy::Rotation, bool, bool, int>;
AttentionKey attention_key(const ParallelLayout& layout);

// For one thread; the question must outlive it.
class AttentionTimer {
 public:
  explicit AttentionTimer(const PlanQuestion& question) : question_(question) {}

  // Of the rank that has most pairs, in training.
  const AttentionTimes& of(const ParallelLayout& layout);

 private:
  AttentionTimes::Pass replayed(const ParallelLayout& layout, AttentionPass pass) const;

  const PlanQuestion& question_;
  std::map<AttentionKey, AttentionTimes> known_;
};

}  // namespace cp::sim
