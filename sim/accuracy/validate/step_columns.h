// Reads the columns that end_to_end.csv and training_steps.csv have in common.
#pragma once

#include "shared/transformer/parallel_layout.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim {

// Reads the column products: b16 or fp8. Throws InvalidInput with the row for anything else.
LinearPrecision products_of(const CsvRow& row);
// Reads the column recompute, as parse_recompute() does, or torchtitan's "op". Throws what parse_recompute()
// throws.
Recompute recompute_of(const CsvRow& row);

}  // namespace cp::sim
