// What merges cost on the timeline where they have a stream of their own (Strategy::merges).
//
// A merge takes all multiprocessors while it runs alone, as attention does: what one of them gets of the GPU,
// the other lacks. So a merge and what runs beside it have half of their speed each, and together they take
// as long as one after the other. What is left as the gain is the time in which attention waits, for blocks
// that arrive or for its host, and the GPU merges meanwhile.
//
// That is the least that there is to gain, derived from nothing but that no kernel becomes faster beside
// another. A GPU may do better: merges wait for memory, while attention waits for products, and blocks of
// a merge fit where the last blocks of an attention leave multiprocessors idle. The most is all of the time
// that merges take (docs/overlap.md has both). What it really is nobody has measured.
//
// Other kernels that run beside one another, as the casts of sharded parameters, are not held to this: there
// the rates are calibrated without.
#pragma once

#include "shared/base/index.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/plan.h"

namespace cp::sim {

inline bool merges_beside(const Plan& plan, StreamId stream) {
  return plan.streams[idx(stream)] == kMergeStream;
}

// The shares of a GPU among the merges and the other kernels that run on it. The others count as one: among
// themselves they keep their speeds.
class GpuShares {
 public:
  GpuShares(int merges, int others)
      : of_merge_(merges == 0 ? 1 : 1.0 / (merges + (others > 0 ? 1 : 0))), of_other_(1.0 / (merges + 1)) {}
  double of(bool merge) const { return merge ? of_merge_ : of_other_; }

 private:
  double of_merge_, of_other_;
};

}  // namespace cp::sim
