// What rows of end_to_end.csv and training_steps.csv say in columns of equal names.
#pragma once

#include "shared/transformer/parallel_layout.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim {

// products: b16 or fp8. Throws InvalidInput with the row for anything else.
LinearPrecision products_of(const CsvRow& row);
// recompute: as parse_recompute() reads it, or torchtitan's "op".
Recompute recompute_of(const CsvRow& row);

}  // namespace cp::sim
