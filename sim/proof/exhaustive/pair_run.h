// Pairs of layouts, run with data: what the ranks hold afterwards against what the index sets say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/proof/exhaustive/pair_check.h"

namespace cp::sim {

// Executes the plans of the pairs, which all have the same source, on the fabric, one after the other, and
// adds what is wrong with them to their findings. All results are exact, and tell which contributions they
// have; element e of contribution c, of n, holds
//   sum       (e + 1) x 3^c, in i64, which tells how often, too
//   avg       n times that, in f32: every mean over some of the axes is a whole number, below 2^24 for as
//             many ranks and elements as VerifyRedistributeOptions allows
//   min, max  (e + 1) x n + (c + e) mod n, in i64: each contribution is decisive for some elements
//   product   an odd number that looks random, in i64, modulo 2^64, where odd numbers have inverses
void run_pairs(const ExhaustiveSearch& search, std::span<CheckedPair> pairs, Fabric& fabric);

}  // namespace cp::sim
