#include "sim/proof/run/input_values.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

// The format's bits of precision and the exponent of its least normal number.
struct Format {
  int bits, least_exponent;
};
Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {24, -126};
    case DType::f16:
      return {11, -14};
    case DType::bf16:
      return {8, -126};
    case DType::i32:
    case DType::i64:
      break;
  }
  throw InvalidInput(str("dtype=", name(dtype), " has no fractions; use f32, f16 or bf16"));
}

double rounded(double value, const Format& format) {
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int unit = std::max(exponent - 1, format.least_exponent) - (format.bits - 1);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

}  // namespace

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::vector<double> unit_values(std::int64_t numel, std::uint64_t seed) {
  const double unit = std::ldexp(1, -53);
  std::vector<double> values(static_cast<std::size_t>(numel));
  std::uint64_t state = mix(seed);
  for (double& value : values) value = static_cast<double>(mix(state++) >> 11) * unit;
  return values;
}

std::vector<double> random_values(std::int64_t numel, std::uint64_t seed) {
  const double half_width = std::sqrt(3.0);
  std::vector<double> values = unit_values(numel, seed);
  for (double& value : values) value = half_width * (2 * value - 1);
  return values;
}

std::vector<double> checked_input(std::string_view name, std::vector<double> values, std::int64_t numel,
                                  DType dtype) {
  if (values.size() != static_cast<std::size_t>(numel)) {
    throw InvalidInput(str(name, " has ", values.size(), " values, where the problem has ", numel));
  }
  const Format format = format_of(dtype);
  for (double& value : values) value = rounded(value, format);
  return values;
}

}  // namespace cp::sim
