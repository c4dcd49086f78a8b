// The handful of plain types that every part of the project shares.
#pragma once

#include <cstdint>
#include <vector>

namespace cp {

// A rank is always global: its number in the world. A position inside a group or a mesh is called an index.
using Rank = std::int32_t;

// Sizes of a tensor's dimensions, in elements. Empty for a scalar.
using Shape = std::vector<std::int64_t>;

// Number of elements; 1 for a scalar.
constexpr std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

// The quotient rounded down, also of a negative numerator. The denominator is positive.
constexpr std::int64_t floor_div(std::int64_t numerator, std::int64_t denominator) {
  return numerator / denominator - (numerator % denominator < 0 ? 1 : 0);
}
constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

constexpr std::int64_t align_up(std::int64_t value, std::int64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

// Combines the lambdas of a std::visit over a closed set.
template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // Clang 14 does not deduce aggregates by itself

}  // namespace cp
