// Training steps of whole models on other GPUs and by other software than those of end_to_end.csv
// (training_steps.csv).
#pragma once

#include <vector>

#include "sim/accuracy/validate/published_steps.h"

namespace cp::sim {

// In the order of the table, in tokens a second and GPU, whatever was published. A step whose balance its
// source does not state comes twice, as head_tail and as contiguous, and is not scored. Throws InvalidInput
// with the row that cannot be read.
std::vector<PublishedStep> training_steps();

// Of a token, as NeMo counted until August 2025: three times a forward pass, all pairs of a sequence, allowed
// or not.
double flops_counted_by_nemo(const PlanQuestion& question);

}  // namespace cp::sim
