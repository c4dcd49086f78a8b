#include "shared/training/permutation.h"

#include "shared/kernels/philox.h"

namespace cp {

Permutation::Permutation(std::int64_t count, std::uint64_t seed) : count_(count), seed_(seed) {
  while ((std::int64_t{1} << 2 * half_bits_) < count) ++half_bits_;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  // Chosen: Luby and Rackoff need four rounds for a permutation that nobody tells from a random one.
  constexpr std::uint32_t kRounds = 4;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const PhiloxWords words = philox(
          {{static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(right >> 32), round, 0}}, seed_);
      const std::uint64_t next = left ^ (words.words[0] & mask);
      left = right, right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

}  // namespace cp
