// The attentions that published tables measured, as requests of an estimate. Internal to
// sim/accuracy/validate.
#pragma once

#include <cstdint>

#include "sim/cost/timeline/estimate.h"

namespace cp::sim::detail {

// An attention in bf16 without a mask. It has as many queries as keys, and values have as many channels as
// keys.
AttentionProblem self_attention(std::int64_t seq_len, std::int64_t q_heads, std::int64_t kv_heads,
                                std::int64_t head_dim);

// The problem split over the ranks 0 .. cp-1. The log-sum-exp stays where it was computed.
AttentionRequest over_ranks(const AttentionProblem& problem, int cp, const Strategy& strategy);

// The page's words for how the interval of a row of cpsim estimate comes about.
inline constexpr const char* kIntervalOfEstimates =
    "the doubt of each rate, of the strategy and of the software, as cpsim estimate prints it";

}  // namespace cp::sim::detail
