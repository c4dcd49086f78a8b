// What the checker's rules share: the plans, with tables in which every rule looks things up. Private to
// check*.cc; the contract is in check.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/check.h"
#include "shared/plan/plan.h"
#include "shared/plan/step_text.h"

namespace cp::checker {

// A collective step as its group sees it. The body of a Repeat is listed once.
struct CollectiveRef {
  const Collective* work = nullptr;
  StepId step = -1;
  GroupId group = -1;
  std::int64_t count = 1;          // iterations
  std::int32_t repeat = -1;        // which Repeat on the group it is in (0, 1, ...); -1 if it is in none
  std::int64_t sequence = 0;       // number on the group, in the first iteration
  std::int64_t per_iteration = 1;  // how many collectives on the group one iteration has
};

struct RankPlan {
  const Plan* plan = nullptr;
  std::vector<StepRef> steps;
  std::vector<std::int32_t> index_in_group;  // by GroupId
  std::vector<std::int32_t> communicator;    // by GroupId; index into World::communicators
  std::vector<CollectiveRef> collectives;    // in issue order
  // The collectives of group g, in order, are collectives[by_group[i]] for each i in [group_begin[g],
  // group_begin[g+1]).
  std::vector<std::int32_t> by_group, group_begin;

  const Buffer& buffer(const View& view) const { return plan->buffers[idx(view.buffer)]; }
  // The rank's index in the group of a collective; 0 for a kernel.
  std::int32_t index_for(const Work& work) const {
    const Collective* collective = std::get_if<Collective>(&work);
    return collective == nullptr ? 0 : index_in_group[idx(group_of(*collective))];
  }
};

// A group of the world, with the plans of its members by index in the group.
struct Communicator {
  struct Member {
    std::int32_t plan = -1;  // index into World::ranks
    GroupId group = -1;      // number of the group in this plan
  };
  const Group* group = nullptr;
  std::vector<Member> members;
};

struct World {
  std::vector<RankPlan> ranks;
  std::vector<Communicator> communicators;
};

// The rules, in the order in which they are checked; each may rely on those before it.
RankPlan check_structure(const Plan& plan);                          // check_structure.cc
void check_memory(const RankPlan& rank, const CheckLimits& limits);  // check_memory.cc
void find_communicators(World& world);                               // check_communicators.cc
void check_matching(const World& world);                             // check_matching.cc
void check_symmetric(const World& world);                            // check_symmetric.cc
void check_progress(const World& world);                             // check_progress.cc
void check_order_and_contents(const World& world);                   // check_order.cc

// ---- words for messages ----

std::string text(const Group& group);  // tp[0,1,2,3]
std::string collective_text(const RankPlan& rank, const CollectiveRef& ref,
                            std::int64_t iteration = 0);  // all_gather #2 on tp[0,1]

}  // namespace cp::checker
