#include "shared/base/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace cp {
namespace {

// The primes 1 to 4 of XXH64 (Collet, xxHash): odd, with well spread bits. Any odd numbers would keep the
// guarantees of checksum.h; other ones would change every checksum.
constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f,
                        kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63;
using Lanes = std::array<std::uint64_t, 32>;
constexpr std::size_t kBlockBytes = sizeof(Lanes);
using Vector16 = std::uint64_t __attribute__((vector_size(16)));
using Vector32 = std::uint64_t __attribute__((vector_size(32)));

// The vectors stay in registers. Without products of 64 bits, which vectors do not have: 513 times by a shift
// and a sum.
template <class Vector>
[[gnu::always_inline]] inline void add_blocks(Lanes& lanes, const std::byte* bytes, std::size_t blocks) {
  constexpr std::size_t kVectors = kBlockBytes / sizeof(Vector);
  Vector all[kVectors];
  std::memcpy(all, lanes.data(), sizeof all);
  for (const std::byte* end = bytes + blocks * kBlockBytes; bytes != end; bytes += kBlockBytes) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kVectors; ++i) {
      Vector words;
      std::memcpy(&words, bytes + i * sizeof(Vector), sizeof words);
      if constexpr (std::endian::native == std::endian::big) {
        for (std::size_t lane = 0; lane < sizeof(Vector) / 8; ++lane)
          words[lane] = __builtin_bswap64(words[lane]);
      }
      Vector lane = all[i] + words;
      lane ^= lane >> 29;
      all[i] = lane + (lane << 9);
    }
  }
  std::memcpy(lanes.data(), all, sizeof all);
}

using AddBlocks = void (*)(Lanes& lanes, const std::byte* bytes, std::size_t blocks);

void add_blocks_anywhere(Lanes& lanes, const std::byte* bytes, std::size_t blocks) {
  add_blocks<Vector16>(lanes, bytes, blocks);
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void add_blocks_avx2(Lanes& lanes, const std::byte* bytes, std::size_t blocks) {
  add_blocks<Vector32>(lanes, bytes, blocks);
}

AddBlocks fastest() { return __builtin_cpu_supports("avx2") ? add_blocks_avx2 : add_blocks_anywhere; }
#else
AddBlocks fastest() { return add_blocks_anywhere; }
#endif

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

ChecksumOfParts::ChecksumOfParts() {
  static_assert(kBlockBytes == sizeof(Lanes));
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes_[lane] = kPrime1 * (lane + 1);
}

void ChecksumOfParts::add(std::span<const std::byte> part) {
  static const AddBlocks kAddBlocks = fastest();
  const std::size_t begun = size_ % kBlockBytes;
  size_ += part.size();
  if (begun > 0) {
    const std::size_t missing = std::min(kBlockBytes - begun, part.size());
    std::copy_n(part.begin(), missing, begun_.begin() + begun);
    if (begun + missing < kBlockBytes) return;
    kAddBlocks(lanes_, begun_.data(), 1);
    part = part.subspan(missing);
  }
  const std::size_t whole = part.size() / kBlockBytes;
  kAddBlocks(lanes_, part.data(), whole);
  part = part.subspan(whole * kBlockBytes);
  std::copy(part.begin(), part.end(), begun_.begin());
}

std::uint64_t ChecksumOfParts::take() {
  if (const std::size_t begun = size_ % kBlockBytes; begun > 0) {
    std::fill(begun_.begin() + begun, begun_.end(), std::byte{0});
    fastest()(lanes_, begun_.data(), 1);
  }
  std::uint64_t hash = size_;
  for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  *this = {};
  return avalanche(hash);
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  ChecksumOfParts parts;
  parts.add(bytes);
  return parts.take();
}

std::uint64_t fold_checksum(std::uint64_t before, std::uint64_t next) {
  return avalanche(std::rotl(before, 23) * kPrime1 + next * kPrime2 + kPrime3);
}

}  // namespace cp
