// GroupedProducts: the products of a plan that a library computes in one call. They are those of a rank's
// experts, each of which has rows and a matrix of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// Several products of one call: [rows, k] times [k, n], or the gradients of the matrices, whose inner
// dimension the rows are. Both compute 2 rows n k flops.
struct GroupedCall {
  double products = 0;  // how many of them have at least one row
  double rows = 0;      // of all products together
  double n = 0, k = 0;
  DType dtype = DType::bf16;  // of the operands
};

// Products are one call if they follow one another on a stream with nothing else between them, and the rows,
// the results and the matrix of each begin in their buffers exactly where those of the one before end; and if
// a step has several. Plans write the experts of a rank in this way, and nothing else.
class GroupedProducts {
 public:
  explicit GroupedProducts(const Plan& plan);

  // Returns the call that begins with this step, or null.
  const GroupedCall* begun_by(StepId step) const;
  // True if the step is part of a call that an earlier step began.
  bool is_within(StepId step) const { return !of_step_.empty() && of_step_[at(step)] <= kWithin; }
  // The type of the operands of that call.
  DType dtype_of(StepId step) const {
    return calls_[static_cast<std::size_t>(kWithin - of_step_[at(step)])].dtype;
  }

 private:
  static constexpr int kAlone = -1, kWithin = -2;
  static std::size_t at(StepId step) { return static_cast<std::size_t>(step); }

  // Place of a call that it begins; of one that it is within, kWithin - place; empty: there are no calls.
  std::vector<int> of_step_;
  std::vector<GroupedCall> calls_;
};

}  // namespace cp::sim
