#include "shared/base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace cp {
namespace {

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f,
                        kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63;
constexpr std::size_t kLanes = 4, kBlockBytes = kLanes * sizeof(std::uint64_t);

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  const auto add_block = [&](const std::byte* block) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = round(lanes[lane], word_at(block + lane * sizeof(std::uint64_t)));
  };
  const std::size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
  for (std::size_t at = 0; at < whole; at += kBlockBytes) add_block(bytes.data() + at);
  if (whole < bytes.size()) {
    std::array<std::byte, kBlockBytes> last{};
    std::memcpy(last.data(), bytes.data() + whole, bytes.size() - whole);
    add_block(last.data());
  }
  std::uint64_t hash = bytes.size();
  for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return avalanche(hash);
}

std::uint64_t fold_checksum(std::uint64_t before, std::uint64_t next) {
  return avalanche(std::rotl(before, 23) * kPrime1 + next * kPrime2 + kPrime3);
}

}  // namespace cp
