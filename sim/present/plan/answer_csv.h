// A PlanAnswer as comma-separated values: what `cpsim plan --csv` prints.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// A line of column names, and one for each candidate of `all`. The columns: rank, layout, its fields,
// step_us, low_us, high_us, chance, regret_us, tokens_per_s_per_gpu, mfu, exposed_us, bound; part_<name>_us
// of every part that any candidate has (0 where it has none); memory_<term>_bytes, counted_bytes (all terms
// but the context), usable_bytes, memory_low_bytes, memory_high_bytes; nvlink_utilisation, nic_utilisation;
// ttft_us (empty where it is not known: answer.h).
// Quoted as read_csv (sim/cost/presets/csv.h) takes it; numbers with all their digits.
std::string to_csv(const PlanAnswer& answer);

}  // namespace cp::sim
