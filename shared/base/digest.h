// A stable 128-bit digest of plain data: equal inputs give equal digests in every process, on every machine.
// It tells honest plans apart, and is no protection against a forger.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cp {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
};

// 32 lower-case hexadecimal digits.
std::string to_string(const Digest& digest);

// Accumulates values in order. A value of variable length is preceded by its length, so that no two different
// sequences of calls look alike.
class Hasher {
 public:
  template <std::integral T>
  Hasher& add(T value) {
    return add_word(static_cast<std::uint64_t>(value));
  }
  Hasher& add(double value);
  Hasher& add(std::string_view text);
  Hasher& add(std::span<const std::byte> bytes);
  Hasher& add(const Digest& digest) { return add_word(digest.high).add_word(digest.low); }
  template <class Range>
  Hasher& add_all(const Range& values) {
    add(values.size());
    for (const auto& value : values) add(value);
    return *this;
  }

  Digest digest() const;

 private:
  Hasher& add_word(std::uint64_t word);

  std::uint64_t first_ = 0x243f6a8885a308d3;  // digits of pi, the usual start without hidden intent
  std::uint64_t second_ = 0x13198a2e03707344;
  std::uint64_t count_ = 0;
};

}  // namespace cp
