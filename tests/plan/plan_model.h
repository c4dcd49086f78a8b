// A slow and obvious model of plans for tests: every iteration of every step, every element of every view,
// and the order between all pairs by following streams and edges.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::test {

struct Instance {
  StepId step = 0;
  std::int64_t iteration = 0;
  StreamId stream = 0;
  std::int32_t segment = 0;
  std::set<std::pair<BufferId, std::int64_t>> reads, writes;  // elements
};

// In issue order.
std::vector<Instance> instances_of(const Plan& plan);

// The elements of a view whose first one is at `offset`.
std::set<std::int64_t> elements(const View& view, std::int64_t offset);

bool conflict(const Instance& a, const Instance& b);

// before[b][a]: instance a has finished before instance b starts.
using Before = std::vector<std::vector<bool>>;
Before happens_before(const Plan& plan, const std::vector<Instance>& instances);

// What goes wrong with temporaries that share bytes of the arena, in words; empty if nothing does. Each use
// of the one must be ordered with each use of the other, and what a buffer was written with must still be
// there when it is read.
std::string trouble_in_arena(const Plan& plan);

// Whether some iteration of a Repeat reads of the buffer what it has not written before, or a step outside of
// this Repeat uses it.
bool carried(const std::vector<Instance>& instances, BufferId buffer);

}  // namespace cp::test
