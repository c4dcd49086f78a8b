// Floating-point operations that a model asks for, whatever the layout: nothing is counted twice that is
// computed twice.
#pragma once

#include "shared/transformer/model.h"
#include "shared/transformer/workload.h"

namespace cp {

// (query, key) pairs that the mask allows in one sequence of the workload, of one head and layer.
double allowed_pairs(const Transformer& model, const Workload& workload);

// Of a whole step of all GPUs: products 2 flops a parameter and token, attention 4 * head_dim a pair and
// head; a backward pass twice as much again. Prefill: of the tokens behind `cached`, with one row of logits
// for each request; decode: of one token for each.
struct ModelFlops {
  double products = 0, attention = 0;
  double total() const { return products + attention; }
};
ModelFlops model_flops(const Transformer& model, const Workload& workload);

}  // namespace cp
