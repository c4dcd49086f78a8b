// A PlanAnswer as comma-separated values: the table that `cpsim plan --csv` prints.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// Writes a line of column names, and one line for each candidate of `all`. The columns are:
//
//   rank, layout, the layout's fields, step_us, low_us, high_us, chance, regret_us, tokens_per_s_per_gpu,
//   mfu, exposed_us, bound;
//   part_<name>_us of every part that any candidate has (0 if this one does not have it);
//   memory_<term>_bytes, counted_bytes (all terms but the context), usable_bytes, memory_low_bytes,
//   memory_high_bytes;
//   nvlink_utilisation, nic_utilisation;
//   ttft_us (empty if it is not known: answer.h).
//
// Cells are quoted as read_csv() (sim/cost/presets/csv.h) takes them, and numbers have all their digits.
std::string to_csv(const PlanAnswer& answer);

}  // namespace cp::sim
