// The oracle of programs says once more, as naively as possible, what makes plans of any origin legal, and
// what they compute.
//
// It shares nothing with shared/plan's checker, builder and maps of bytes, except for the types of plan.h.
// All iterations are unrolled; what a step reads and writes is a plain set of bytes, element by element; what
// happens before what is a transitive closure. So it is only for small plans: tens of steps, and a few
// thousand bytes a rank. It knows all collectives and, of the kernels, copy, cast, fill, accumulate, scale
// and matmul. Another kernel breaks an invariant, which aborts the process.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// Says why the plans of all ranks are illegal together; nothing if they are legal. The rules are those of
// shared/plan/check.h.
std::optional<std::string> refuse_program(std::span<const Plan> plans);

// Two parts of it. refuse_alone() looks at each plan by itself: its steps, edges and places in memory.
// refuse_meetings() takes plans that each are sound by themselves, and looks at what the ranks do together:
// members whose collectives differ, or who have more of them than others. Neither looks at circles of
// collectives, the order of steps, and contents.
std::optional<std::string> refuse_alone(std::span<const Plan> plans);
std::optional<std::string> refuse_meetings(std::span<const Plan> plans);

// Says why the step is illegal by itself: views out of bounds in some iteration, wrong sizes or types, or
// memory that it writes and also uses in another way. `count` is the number of iterations.
struct StepRefusal {
  std::string text;
  bool shares_memory = false;  // whether it is only the last of these reasons
};
std::optional<StepRefusal> refuse_step(const Plan& plan, const Step& step, std::int64_t count);

// Finds the first read of bytes that nothing has written before, with the steps in issue order; or else an
// output that is not written whole. Here each buffer is memory of its own, wherever temporaries lie.
struct Unwritten {
  StepId step = -1;  // -1: at the end
  BufferId buffer = -1;
};
std::optional<Unwritten> find_unwritten(const Plan& plan);

// Replaces all edges: there is one wherever two steps of different streams touch a byte that one of them
// writes, and nothing orders the two yet.
void order_conflicts(Plan& plan);

// The elements of all buffers, by rank as in `plans`, then BufferId, then element. Every value is a whole
// number.
using ProgramValues = std::vector<std::vector<std::vector<std::int64_t>>>;
struct ProgramResult {
  ProgramValues values;  // an element that nothing has written is 0
  // Whether every value was one that its type holds exactly, whatever the order of additions. If not, nothing
  // can be compared.
  bool exact = true;
};
// What legal plans compute, step by step in issue order. `start` has the values of inputs and inouts; what it
// has of other buffers is not read.
ProgramResult interpret(std::span<const Plan> plans, ProgramValues start);

}  // namespace cp::sim
