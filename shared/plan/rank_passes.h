// RankPasses: what one rank runs, plan after plan, and the data of each. It stands between who has data and
// who has a device: sim/scenario/rank_job.h makes the passes of a scenario, a program of one's own may make
// others, and runtime/rank_run.h runs them beside those of the other ranks.
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

  // A rank may have no part in the passes: it has no plans then, and still knows what those of the others are
  // made from.
  const std::vector<Plan>& plans() const { return plans_; }
  const std::vector<Digest>& inputs() const { return inputs_; }  // of each pass, on every rank

  // The caller's buffers of a pass, in memory of the host, made on first use; passes are bound in order. They
  // live as long as this.
  virtual Bindings bind(std::size_t pass) = 0;
  // Of a pass that ran: outputs that are exact in every world, by buffer name.
  virtual std::map<std::string, Digest> digests(std::size_t pass) const = 0;

 protected:
  std::vector<Plan> plans_;
  std::vector<Digest> inputs_;
};

}  // namespace cp
