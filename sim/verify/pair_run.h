// Pairs of layouts, run with data: what the ranks hold afterwards against what the index sets say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/verify/pair_check.h"

namespace cp::sim {

// Executes the plans of the pairs, which all have the same source, on the fabric, one after the other, and
// adds what is wrong with them to their findings. Tensors must be of i64, so that sums are exact. Element e
// of contribution c holds (e + 1) x 3^c: a sum tells which contributions it has, and how often.
void run_pairs(const ExhaustiveSearch& search, std::span<CheckedPair> pairs, Fabric& fabric);

}  // namespace cp::sim
