#include "tests/support/values.h"

#include <algorithm>
#include <random>

namespace cp::testing {

std::vector<double> small_fractions(std::int64_t numel, std::uint64_t seed) {
  std::vector<double> values = small_integers(numel, seed, 63);
  for (double& value : values) value /= 64;
  return values;
}

std::vector<double> small_integers(std::int64_t numel, std::uint64_t seed, std::int64_t limit) {
  std::mt19937_64 random(
      seed);  // its numbers are the same everywhere, those of std::uniform_int_distribution are not
  const std::uint64_t choices = 2 * static_cast<std::uint64_t>(limit) + 1;
  std::vector<double> values(static_cast<std::size_t>(numel));
  for (double& value : values) {
    value = static_cast<double>(static_cast<std::int64_t>((random() >> 11) % choices) - limit);
  }
  return values;
}

double combined(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::product:
      return a * b;
  }
  return 0;
}

}  // namespace cp::testing
