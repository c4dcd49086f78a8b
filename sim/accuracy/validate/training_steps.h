// Training steps of whole models on other GPUs, and by other software, than those of end_to_end.csv
// (training_steps.csv).
#pragma once

#include <vector>

#include "sim/accuracy/validate/published_steps.h"

namespace cp::sim {

// Returns the steps in the order of the table. The measured values are in tokens a second and GPU, whatever
// was published. If a source does not state the balance, its step comes twice, as head_tail and as
// contiguous, and is not scored. Throws InvalidInput with the row if a row cannot be read.
std::vector<PublishedStep> training_steps();

// Returns the flops of one token as NeMo counted them until August 2025: three times those of a forward pass,
// with all pairs of a sequence, whether the mask allows them or not. It undoes the count in a published
// number of TFLOP/s.
double flops_counted_by_nemo(const PlanQuestion& question);

}  // namespace cp::sim
