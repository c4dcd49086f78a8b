// What makes plans of any origin legal, and what they compute: said once more, as naively as possible.
//
// Shares nothing with shared/plan's checker, builder and maps of bytes but the types of plan.h. All
// iterations are unrolled; what a step reads and writes is a plain set of bytes, element by element; what
// happens before what is a transitive closure. For small plans alone: tens of steps, a few thousand bytes a
// rank. Operations: all collectives, and of the kernels copy, cast, fill, accumulate, scale and matmul;
// others break an invariant.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// Why the plans of all ranks are illegal together; nothing where they are legal. The rules are those of
// shared/plan/check.h.
std::optional<std::string> refuse_program(std::span<const Plan> plans);

// The part of it that is about ranks together, of plans each of which is sound by itself: members whose
// collectives differ, or are more than others'. `refuse_alone`: the part before, of steps, edges and places
// in memory. What is left are circles of collectives, the order of steps and contents.
std::optional<std::string> refuse_alone(std::span<const Plan> plans);
std::optional<std::string> refuse_meetings(std::span<const Plan> plans);

// Why the step by itself is none: views out of bounds in some iteration, wrong sizes or types, memory that it
// writes and uses otherwise.
struct StepRefusal {
  std::string text;
  bool shares_memory = false;  // it is the last of these alone
};
std::optional<StepRefusal> refuse_step(const Plan& plan, const Step& step, std::int64_t count);

// The first read of bytes that nothing has written before, steps taken in the order in which they are issued,
// or an output that is not written. Each buffer is memory of its own here, wherever temporaries lie.
struct Unwritten {
  StepId step = -1;  // -1: at the end
  BufferId buffer = -1;
};
std::optional<Unwritten> find_unwritten(const Plan& plan);

// Replaces all edges: one wherever two steps of different streams touch a byte that one of them writes, and
// nothing orders them yet.
void order_conflicts(Plan& plan);

// Every value is a whole number. By rank as in `plans`, then BufferId, then element.
using ProgramValues = std::vector<std::vector<std::vector<std::int64_t>>>;
struct ProgramResult {
  ProgramValues values;  // of elements that nothing has written: 0
  // Every value was one that its type holds exactly, whatever the order of additions. False: nothing can be
  // compared.
  bool exact = true;
};
// What legal plans compute, step by step in issue order. `start`: of inputs and inouts; what it has of others
// is not read.
ProgramResult interpret(std::span<const Plan> plans, ProgramValues start);

}  // namespace cp::sim
