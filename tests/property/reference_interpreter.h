// Runs all ranks' plans together on host memory, one step after the other, in a random order among those that
// streams, edges and collectives allow. Slow and plain: it is what the checker's promises are compared with.
#pragma once

#include <cstddef>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::testing {

// Ranks hang, or disagree in a collective.
struct RunFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the caller's output and inout buffers hold in the end: by plan, then by buffer (empty for others).
using Results = std::vector<std::vector<std::vector<std::byte>>>;

// Inputs hold small numbers that differ from rank to rank and element to element; unwritten memory holds
// random bytes. f32, i32 and i64. With one_at_a_time a rank starts a collective only when those it issued
// before have finished.
Results interpret(std::span<const Plan> plans, std::mt19937_64& random, bool one_at_a_time);

}  // namespace cp::testing
