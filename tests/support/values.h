// Test data: lists of numbers that all floating types hold exactly, for encode() of
// shared/kernels/host_kernels.h, and what reductions make of two of them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "shared/base/dtype.h"

namespace cp::testing {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Multiples of 1/64 in (-1, 1): exact in every floating type; equal for equal seeds everywhere.
std::vector<double> small_fractions(std::int64_t numel, std::uint64_t seed);
// Integers in [-limit, limit].
std::vector<double> small_integers(std::int64_t numel, std::uint64_t seed, std::int64_t limit);

// Of two contributions; an average's are added up, and divided by whoever knows how many there are.
double combined(ReduceOp op, double a, double b);

}  // namespace cp::testing
