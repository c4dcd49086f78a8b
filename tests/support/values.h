// Test data: values of buffers as doubles, whatever their dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/dtype.h"

namespace cp::testing {

// The values as elements of the dtype, and back.
std::vector<std::byte> encode(DType dtype, const std::vector<double>& values);
std::vector<double> decode(DType dtype, std::span<const std::byte> bytes);

// Multiples of 1/64 in (-1, 1): exact in every floating type; equal for equal seeds everywhere.
std::vector<double> small_fractions(std::int64_t numel, std::uint64_t seed);
// Integers in [-limit, limit].
std::vector<double> small_integers(std::int64_t numel, std::uint64_t seed, std::int64_t limit);

}  // namespace cp::testing
