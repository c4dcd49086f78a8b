// The floating-point operations that a model needs, whatever the layout: the numerator of MFU (model FLOPs
// utilization; Chowdhery et al. 2022). Work that a layout does twice, such as recomputation, is counted once.
#pragma once

#include "shared/transformer/model.h"
#include "shared/transformer/workload.h"

namespace cp {

// The number of (query, key) pairs that the mask allows in one sequence of the workload, for one head of one
// layer of that kind. 0 for a layer without attention.
double allowed_pairs(const Transformer& model, const Workload& workload, const LayerKind& kind);
// The same for one head of all layers together, in training those that predict further tokens among them.
double allowed_pairs(const Transformer& model, const Workload& workload);

// For one step over all GPUs. Matrix products take 2 flops for each parameter and token; attention takes 4 *
// head_dim flops for each allowed pair and head (2 for q k^T, 2 for p v); of absorbed queries (decoding with
// latent attention) 2 for each element of a latent row, and 2 for each that is a value, too; a recurrence
// takes 2 flops for each element of a head's state and row that is written, and 2 that is read (once, and by
// the delta rule once more, at the row's key). A backward pass takes twice as many
// again, so that training counts three times the forward pass. Prefill counts the tokens behind `cached` and
// one row of logits for each request; decode counts one token for each. Training counts prediction layers,
// and the head once for each of them.
struct ModelFlops {
  double products = 0, attention = 0, recurrence = 0;
  double total() const { return products + attention + recurrence; }
};
ModelFlops model_flops(const Transformer& model, const Workload& workload);

}  // namespace cp
