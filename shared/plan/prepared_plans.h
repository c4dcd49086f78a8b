// PreparedPlans: plans that a device keeps ready because a program runs them again and again. It is what the
// blocking calls of ContextParallelAttention and of a Job are built on: each finds its plan here, runs it and
// waits for the run.
//
//   PreparedPlans plans(device);
//   plans.get(key, [&]() -> const Plan& { return plan; }, bindings).run(bindings, stream).wait();
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/prepared_plan.h"

namespace cp {

// Bounded: the plan that was least recently asked for is given back first. All of them are in one lane, so
// their runs follow one another and they share one arena, which is that of the greatest.
class PreparedPlans {
 public:
  // The device must outlive this object. `most` is how many plans are kept, at least 1. The default of 16 is
  // chosen: both passes of the lengths that a batch has by turns. What it costs to keep one is its tables,
  // not an arena; one that was given back is made ready again.
  explicit PreparedPlans(Device& device, LaneId lane = 0, std::size_t most = 16);

  // The plan of that key. If none is kept, it is a copy of what plan() gives, made ready with `bindings`: a
  // collective call over the plan's ranks, with the errors of PreparedPlan's constructor. So the key must
  // say all that the plan is made from, and must be new on all of the plan's ranks alike. The reference stays
  // valid until `most` other plans were asked for.
  PreparedPlan& get(const Digest& key, const std::function<const Plan&()>& plan, const Bindings& bindings);

  // To be called where other ranks ask for a plan in which this rank has no part, with a key of this rank's
  // own: the plan takes a place here, too. So all ranks give back the plans that they share in one order, and
  // make them ready again together.
  void pass(const Digest& key);

  std::size_t size() const { return kept_.size(); }  // of plans and places

 private:
  struct Kept {
    explicit Kept(const Digest& digest) : key(digest) {}
    Kept(const Digest& digest, const Plan& its_plan, Device& device, const Bindings& bindings, LaneId lane)
        : key(digest), plan(its_plan) {
      prepared.emplace(device, plan, bindings, lane);
    }

    const Digest key;
    const Plan plan;
    std::optional<PreparedPlan> prepared;  // none of a plan without this rank
  };
  bool is_latest(const Digest& key);  // whether it is kept; then it is the latest now
  void make_place();

  Device& device_;
  const LaneId lane_;
  const std::size_t most_;
  std::list<Kept> kept_;  // the latest first
};

}  // namespace cp
