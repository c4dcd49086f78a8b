// Scenarios from seeds: redistributions, attention and recurrences of every kind that processes run.
#pragma once

#include <cstdint>

#include "traces/scenario.pb.h"

namespace cp::testing {

// Equal in every process. The scenario needs `ranks` ranks, numbered from 0, and has a plan.
proto::Scenario redistribute_scenario(std::uint64_t seed, int ranks);

// One strategy and balance, with lengths that nothing divides, windows, documents, grouped heads; mostly with
// gradients.
proto::Scenario attention_scenario(std::uint64_t seed, int ranks);

// A recurrence by one scan and balance, with documents, odd lengths, shared key heads; mostly with gradients.
proto::Scenario recurrence_scenario(std::uint64_t seed, int ranks);

}  // namespace cp::testing
