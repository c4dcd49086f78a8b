// The inputs of test data: drawn from a seed, alike on every machine, and rounded to a dtype.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"

namespace cp::sim {

// Scrambles the bits (splitmix64): neighbouring seeds give unrelated values.
std::uint64_t mix(std::uint64_t x);

// Uniform in [0, 1).
std::vector<double> unit_values(std::int64_t numel, std::uint64_t seed);
// Uniform, with mean 0 and variance 1.
std::vector<double> random_values(std::int64_t numel, std::uint64_t seed);

// The values as a tensor of the floating dtype has them: each rounded to nearest even, far from overflow.
// Throws InvalidInput if there are not `numel` of them; `name` is the tensor's.
std::vector<double> checked_input(std::string_view name, std::vector<double> values, std::int64_t numel,
                                  DType dtype);

}  // namespace cp::sim
