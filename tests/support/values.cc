#include "tests/support/values.h"

#include <random>

#include "shared/kernels/host_kernels.h"

namespace cp::testing {

std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

std::vector<double> decode(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return values;
}

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

}  // namespace cp::testing
