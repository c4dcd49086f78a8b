// SearchTools: what the parts of a search share. One search has one, and its parts are these:
//   search.cc         which layouts are looked at in which order, and what is counted
//   marks.h           what a layout may take at most to be in the answer
//   member_bounds.h   which members of a family may be among the best
//   layout_choices.h  what such a member takes on the timeline, with the choices that it leaves open
#pragma once

#include <cstdint>

#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/least_memories.h"
#include "sim/planner/search/overlap.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Several threads may use one. What its parts find is kept, hence no const.
struct SearchTools {
  explicit SearchTools(const PlanQuestion& asked)  // which must outlive this
      : question(asked),
        space(asked),
        bound(asked),
        attention(asked),
        overlap(asked, space, attention),
        rules(memory_rules(asked)),
        memories(asked, rules),
        usable(usable_bytes(asked)) {}
  SearchTools(const SearchTools&) = delete;
  SearchTools& operator=(const SearchTools&) = delete;

  // By the least that a layout needs until it is replayed, and then by what its plans declare.
  bool fits(const Memory& memory) const { return counted_bytes(memory) <= usable; }
  bool fits(const ParallelLayout& layout) { return fits(memories.of(layout)); }

  const PlanQuestion& question;
  const LayoutSpace space;
  const StepBound bound;
  AttentionTimer attention;
  const OverlapChoice overlap;
  const MemoryRules rules;
  LeastMemories memories;
  const std::int64_t usable;  // bytes of each GPU
};

}  // namespace cp::sim
