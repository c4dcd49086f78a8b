// RankPasses holds what one rank runs, plan after plan, and the data of each. It stands between code that has
// data and code that has a device: sim/scenario/rank_job.h makes the passes of a scenario (your own program
// may make others), and runtime/rank_run.h runs them beside those of the other ranks.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

class RankPasses {
 public:
  virtual ~RankPasses() = default;

  // A rank may have no part in the passes. Then it has no plans, but still knows from which inputs the plans
  // of the others are made.
  const std::vector<Plan>& plans() const { return plans_; }
  const std::vector<Digest>& inputs() const { return inputs_; }  // one for each pass, equal on every rank

  // The caller's buffers of a pass, in host memory, made on first use. Passes must be bound in order. The
  // buffers live as long as this object.
  virtual Bindings bind(std::size_t pass) = 0;
  // The digests of a pass that has run, by buffer name: of those outputs that are exact in every world.
  virtual std::map<std::string, Digest> digests(std::size_t pass) const = 0;

 protected:
  std::vector<Plan> plans_;
  std::vector<Digest> inputs_;
};

}  // namespace cp
