// Runs pairs of layouts with data: what the ranks hold afterwards is compared with what the index sets say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/proof/exhaustive/pair_check.h"

namespace cp::sim {

// Runs the plans of the pairs on the fabric, one pair after the other, and adds what is wrong with them to
// their findings. All pairs must have the same source.
//
// All results are exact, and tell which contributions they have. Element e of contribution c, of n, holds
//   sum       (e + 1) x 3^c in i64, which also tells how often it was added
//   avg       n times that in f32: every mean over some of the axes is a whole number, below 2^24 for as many
//             ranks and elements as VerifyRedistributeOptions allows
//   min, max  (e + 1) x n + (c + e) mod n in i64: each contribution decides some elements
//   product   an odd number that looks random in i64, modulo 2^64, where odd numbers have inverses
void run_pairs(const ExhaustiveSearch& search, std::span<CheckedPair> pairs, Fabric& fabric);

}  // namespace cp::sim
