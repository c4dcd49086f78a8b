#include "shared/base/digest.h"

#include <array>
#include <bit>

namespace cp {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection in which each input bit flips about
// half of the output bits.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::string to_string(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t word : {digest.high, digest.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15];
  }
  return text;
}

Hasher& Hasher::add_word(std::uint64_t word) {
  ++count_;
  first_ = mix(first_ ^ mix(word + 0x9e3779b97f4a7c15));
  second_ = mix(std::rotl(second_, 23) + mix(word ^ 0xa4093822299f31d0) + count_);
  return *this;
}

Hasher& Hasher::add(double value) { return add_word(std::bit_cast<std::uint64_t>(value)); }

Hasher& Hasher::add(std::string_view text) { return add(std::as_bytes(std::span(text.data(), text.size()))); }

Hasher& Hasher::add(std::span<const std::byte> bytes) {
  add_word(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;  // assembled byte by byte: the same on big- and little-endian machines
    for (std::size_t i = at; i < bytes.size() && i < at + 8; ++i) {
      word |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * (i - at));
    }
    add_word(word);
  }
  return *this;
}

Digest Hasher::digest() const { return {mix(first_ ^ count_), mix(second_ ^ std::rotl(first_, 32))}; }

}  // namespace cp
