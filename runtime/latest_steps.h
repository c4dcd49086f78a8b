// LatestSteps: which step each stream of a device was given last. An error of the GPU does not say which of
// the steps that were enqueued it comes from; this says where they ended.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::runtime {

class LatestSteps {
 public:
  // Streams are the device's. The plan's steps must live until forget(plan), or forget().
  void launched(StreamId stream, const Plan& plan, StepId step);
  // Nothing of the plan, or nothing at all, is under way any more.
  void forget(const Plan& plan);
  void forget() { latest_.clear(); }

  // "step 3 copy "unpack" on stream 0, step 2 all_gather on stream 1"; empty if nothing is under way.
  std::string text() const;

 private:
  struct Latest {
    const Plan* plan = nullptr;
    StepId step = -1;
  };
  std::vector<Latest> latest_;  // by stream
};

}  // namespace cp::runtime
