// The attentions that published tables measured, as requests of an estimate. For the tables of
// sim/accuracy/validate alone.
#pragma once

#include <cstdint>

#include "sim/cost/timeline/estimate.h"

namespace cp::sim::detail {

// bf16, as many queries as keys, as many channels of values as of keys, without a mask.
AttentionProblem self_attention(std::int64_t seq_len, std::int64_t q_heads, std::int64_t kv_heads,
                                std::int64_t head_dim);

// On ranks 0 to cp - 1, with the log-sum-exp left where it was computed.
AttentionRequest over_ranks(const AttentionProblem& problem, int cp, const Strategy& strategy);

// How the interval of a row of cpsim estimate comes about, for its page.
inline constexpr const char* kIntervalOfEstimates =
    "the doubt of each rate, of the strategy and of the software, as cpsim estimate prints it";

}  // namespace cp::sim::detail
