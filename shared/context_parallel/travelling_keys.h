// Chooses what travels in place of K and V where a problem has latent rows: K and V of the heads, or the
// rows. Internal to shared/context_parallel; attention_plan.h has the question for others.
#pragma once

#include "shared/context_parallel/attention_context.h"

namespace cp::detail {

// What the strategy says; else what moves fewer bytes, all ranks together, over the forward pass, and over
// the backward pass too if the forward pass keeps what that one needs. If both move the same, or latent rows
// cannot travel (refuse()), heads do.
Strategy::Keys travelling_keys(const AttentionContext& context);

}  // namespace cp::detail
