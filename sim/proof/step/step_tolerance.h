// How far the results of a whole step may be from one device's in float64.
//
// A bound for each element, as attention has it (attention_tolerance.h), would have to follow every value of
// a model through all of its layers. Instead the reference makes the step several times with its values moved
// at random: every value that a layer makes, and every gradient, by up to `moved` times itself (tape.h). What
// comes out differs by as much as roundings of that size make it differ, with all that the model amplifies;
// where a choice or a sign hangs on a rounding, that shows, too.
//
// moved = r + u sqrt(n): r is the roundoff of the coarsest dtype in which values or gradients are stored, u
// that of f32, in which sums are added up, and n the terms of the longest sum. Roundings of partial sums are
// independent, and a partial sum of k terms of random signs is about sqrt(k) of them, so that n of them move
// the sum by no more than u sqrt(n) moves each of its terms (Higham and Mary 2019).
//
// A tensor holds if the root mean square of its errors is at most kGrowth times that of what it was moved by,
// and no error more than kGrowth times as large as the largest movement; beside what the optimizer rounds
// itself. Parameters of AdamW are held against what the rank's own moments make of them (prove_step.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/transformer/step_plan.h"
#include "sim/proof/reference/reference_step.h"

namespace cp::sim {

// What a step begins with.
struct StepValues {
  NamedMatrices parameters;
  OptimizerState state;
  ReferenceBatch batch;  // the global one
};

// Of the values of one tensor in all runs of the reference.
struct Movement {
  double mean_square = 0, largest = 0;
};
// What the reference makes of a step, and how far roundings move it.
class StepExpectation {
 public:
  // The movements come from `runs` more steps. Throws what reference_step() throws.
  StepExpectation(const StepRequest& request, const StepValues& values, const ReferenceRules& rules,
                  const OptimizerRules& optimizer, int runs = 4);

  const ReferenceStep& step() const { return step_; }

  // Of a tensor: of the updated parameter, and of each state.
  struct Of {
    const Matrix64* expected = nullptr;
    Movement movement;
  };
  Of parameter(const std::string& tensor) const;
  Of state(const std::string& tensor, int state) const;
  double loss_movement() const { return loss_movement_; }  // the largest
  // The largest of the loss of one row, over all rows.
  double row_movement() const { return row_movement_; }
  double norm_movement() const { return norm_movement_; }  // of the norm of all gradients, too

 private:
  double moved_;
  ReferenceStep step_;
  std::vector<ReferenceStep> moved_steps_;
  double loss_movement_ = 0, row_movement_ = 0, norm_movement_ = 0;
};

// The terms of the longest sum of a step.
std::int64_t longest_sum(const StepRequest& request);

}  // namespace cp::sim
