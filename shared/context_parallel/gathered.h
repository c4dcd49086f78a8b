// K and V that come at once, in parts: bring them, compute on them, give their gradients back. A plan in
// pieces brings those of the next piece before it computes on this one. Internal to shared/context_parallel.
#pragma once

#include <functional>

#include "shared/context_parallel/core.h"
#include "shared/context_parallel/routing.h"

namespace cp::detail {

// K and V of the rows that a rank computes on, and the routing that brings them.
struct Gathered {
  Routing routing;
  Routing::Transport k, v;
};

// Whether the core of this plan gets K and V at once, from other ranks.
bool comes_gathered(const AttentionWriter& writer);
Gathered gather_kv(AttentionWriter& writer, const Tensor& k, const Tensor& v);

// Attention on what gather_kv() brought.
void write_gathered(AttentionWriter& writer, const ForwardTensors& tensors, const Gathered& all);
// `gather` is called once the plan has what must come before. Returns what is left to do where dK and dV
// arrive at home.
Routing::Arrival write_gathered(AttentionWriter& writer, const BackwardTensors& tensors,
                                const std::function<Gathered()>& gather);

}  // namespace cp::detail
