// Products of a plan that a library computes in one call: those of a rank's experts, each with rows and a
// matrix of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// Several products of one call: [rows, k] times [k, n], or the gradients of the matrices, whose inner
// dimension the rows are. Both compute 2 rows n k flops.
struct GroupedCall {
  double products = 0;  // that have a row, or more
  double rows = 0;      // of all together
  double n = 0, k = 0;
  DType dtype = DType::bf16;  // of the operands
};

// Products that follow one another on a stream with none but products between them are one call where each
// one's rows, results and matrix begin in their buffers just where those of the one before end: a plan writes
// a rank's experts so, and nothing else.
class GroupedProducts {
 public:
  explicit GroupedProducts(const Plan& plan);

  // The call that begins with this step; null: none.
  const GroupedCall* begun_by(StepId step) const;
  // Whether the call that this step is a part of has been begun by an earlier one.
  bool is_within(StepId step) const { return !of_step_.empty() && of_step_[at(step)] <= kWithin; }
  // Of the operands of the call that this step is within.
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
