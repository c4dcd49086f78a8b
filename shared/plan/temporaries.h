// Gives the temporaries of a plan their places.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/builder.h"
#include "shared/plan/order.h"
#include "shared/plan/plan.h"

namespace cp {

// Of each symmetric temporary: 256 bytes, so that its offset is the same whatever the target asks for up to
// there. The segment's size is a multiple of 4096 bytes, NCCL's NCCL_WIN_REQUIRED_ALIGNMENT.
inline constexpr std::int64_t kSymmetricAlignmentBytes = 256, kSymmetricSegmentBytes = 4096;

// Sets first_use, last_use and offset_bytes of the plan's temporaries, plan.symmetric_bytes and
// plan.arena_bytes. Symmetric temporaries come first, one behind the other. `anchors` has one entry for each
// buffer of the plan.
void place_temporaries(Plan& plan, std::span<const Anchor> anchors, const Order& order);

// A plan that has its edges, and whose temporaries have neither lives nor places yet: a replay reads neither.
struct UnplacedPlan {
  Plan plan;
  std::vector<Anchor> anchors;  // by buffer
  Order order;
};
// The plan that PlanBuilder::build() would have given.
Plan placed(UnplacedPlan unplaced);

}  // namespace cp
