#include "shared/base/checksum.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace cp {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// 0 to 3 blocks of 256 bytes, and the rests around them.
TEST(Checksum, EachFlippedBitOfEachLengthShows) {
  for (std::size_t size = 0; size <= 800; size += size % 256 < 20 || size % 256 > 240 ? 1 : 17) {
    std::vector<std::byte> bytes = pattern(size);
    const std::uint64_t right = checksum(bytes);
    EXPECT_EQ(checksum(bytes), right);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(checksum(bytes), right) << "bit " << bit << " of " << size << " bytes";
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Checksum, LengthsAndPlacesDiffer) {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size < 200; ++size)
    seen.insert(checksum(std::vector<std::byte>(size)));  // zeros
  EXPECT_EQ(seen.size(), 200u);
  // Two words swapped: of one lane, of two lanes.
  for (const auto& [a, b] : {std::pair(0u, 256u), std::pair(0u, 8u), std::pair(8u, 264u)}) {
    std::vector<std::byte> bytes = pattern(512);
    for (std::size_t i = 0; i < 8; ++i) std::swap(bytes[a + i], bytes[b + i]);
    EXPECT_NE(checksum(bytes), checksum(pattern(512)));
  }
}

// Senders and receivers may be other machines.
TEST(Checksum, IsAFixedFunction) {
  EXPECT_EQ(checksum({}), 17089547816592859957u);
  EXPECT_EQ(checksum(pattern(77)), 6909051412077773820u);
  EXPECT_EQ(checksum(pattern(777)), 3962460857813507269u);
}

TEST(Checksum, PartsGiveThatOfTheWhole) {
  const std::vector<std::byte> bytes = pattern(1500);
  ChecksumOfParts parts;
  for (const std::size_t first : {0u, 1u, 100u, 255u, 256u, 257u, 700u, 1500u}) {
    for (std::size_t next = 1; next <= 600; next += next < 5 || next > 250 ? 1 : 31) {
      const std::span<const std::byte> all(bytes);
      parts.add(all.first(first));
      for (std::size_t at = first; at < all.size(); at += next)
        parts.add(all.subspan(at, std::min(next, all.size() - at)));
      EXPECT_EQ(parts.size(), bytes.size());
      EXPECT_EQ(parts.take(), checksum(bytes)) << first << ", then parts of " << next;
    }
  }
  EXPECT_EQ(parts.take(), checksum({}));
}

TEST(Checksum, SeveralPayloadsFoldInOrder) {
  const std::uint64_t a = checksum(pattern(5)), b = checksum(pattern(6));
  EXPECT_NE(fold_checksum(fold_checksum(0, a), b), fold_checksum(fold_checksum(0, b), a));
  EXPECT_NE(fold_checksum(0, a), a);
  EXPECT_NE(fold_checksum(fold_checksum(0, a), b), fold_checksum(0, b));
}

}  // namespace
}  // namespace cp
