// MemberBounds: which members of a family may be among the best of a search, and what each takes at least.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/planner/search/marks.h"
#include "sim/planner/search/search_tools.h"

namespace cp::sim {

// A member that may fit, and whose bound is below its limit.
struct BoundedMember {
  ParallelLayout layout;
  double bound_ns = 0;
  double update_ns = 0;  // of its update, as far as that is known
  // Members of which none is looked at as long as this one fits: they take no less time. The former have more
  // chunks of the loss, the latter host memory or more pieces of the MLP.
  std::vector<ParallelLayout> dominated, unneeded;
};

struct BoundedMembers {
  std::vector<BoundedMember> members;
  // Of the others, how many others stand for, how many do not fit, and how many take too long.
  std::int64_t dominated = 0, unneeded = 0, out_of_memory = 0, pruned = 0;
  std::optional<ParallelLayout> leanest;  // of those that do not fit
  std::int64_t leanest_used = 0;          // bytes
};

class MemberBounds {
 public:
  // Both must outlive this.
  MemberBounds(SearchTools& tools, const Marks& marks) : tools_(tools), marks_(marks) {}

  // Of some members of one family, in the order of LayoutSpace::members(), whose update takes `update_ns()`
  // (StepBound::ns), which is asked for once a member may fit.
  BoundedMembers of(const std::vector<ParallelLayout>& members,
                    const std::function<double()>& update_ns) const;

 private:
  using Memories = LeastMemories::Lease;
  Memory memory_with_any_scan(const Memories& memories, const ParallelLayout& layout,
                              const std::vector<StateScan>& lean) const;

  SearchTools& tools_;
  const Marks& marks_;
};

}  // namespace cp::sim
