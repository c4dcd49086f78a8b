#include "shared/base/checksum.h"

#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace cp {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// 0 to 3 blocks of 32 bytes, and every rest.
TEST(Checksum, EachFlippedBitOfEachLengthShows) {
  for (std::size_t size = 0; size <= 100; ++size) {
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
  for (const auto& [a, b] : {std::pair(0u, 32u), std::pair(0u, 8u), std::pair(8u, 40u)}) {
    std::vector<std::byte> bytes = pattern(64);
    for (std::size_t i = 0; i < 8; ++i) std::swap(bytes[a + i], bytes[b + i]);
    EXPECT_NE(checksum(bytes), checksum(pattern(64)));
  }
}

// Senders and receivers may be other machines.
TEST(Checksum, IsAFixedFunction) {
  EXPECT_EQ(checksum({}), 13772970182826969330u);
  EXPECT_EQ(checksum(pattern(77)), 14313711694822558451u);
}

TEST(Checksum, SeveralPayloadsFoldInOrder) {
  const std::uint64_t a = checksum(pattern(5)), b = checksum(pattern(6));
  EXPECT_NE(fold_checksum(fold_checksum(0, a), b), fold_checksum(fold_checksum(0, b), a));
  EXPECT_NE(fold_checksum(0, a), a);
  EXPECT_NE(fold_checksum(fold_checksum(0, a), b), fold_checksum(0, b));
}

}  // namespace
}  // namespace cp
