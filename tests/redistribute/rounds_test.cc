// The lives of a reduce_exchange's buffers, and their places in the arena: all patterns of packing, sending
// and arriving in a few rounds.
#include "shared/redistribute/rounds.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "shared/plan/arena.h"

namespace cp::detail {
namespace {

constexpr std::int32_t kRounds = 3;

// Calls visit(traffic) for each way of keeping an own part, packing, sending directly and receiving.
template <class Visit>
void for_each_traffic(const Visit& visit) {
  const auto for_each_span = [](const auto& f) {
    f(-1, -1);
    for (std::int32_t first = 0; first < kRounds; ++first) {
      for (std::int32_t last = first; last < kRounds; ++last) f(first, last);
    }
  };
  RankTraffic rank;
  for (rank.self_numel = 0; rank.self_numel < 2; ++rank.self_numel) {
    for_each_span([&](std::int32_t first_pack, std::int32_t last_pack) {
      rank.first_pack = first_pack, rank.last_pack = last_pack;
      for (rank.last_direct_send = -1; rank.last_direct_send < kRounds; ++rank.last_direct_send) {
        for_each_span([&](std::int32_t first_arrival, std::int32_t last_arrival) {
          rank.first_arrival = first_arrival, rank.last_arrival = last_arrival;
          visit(rank);
        });
      }
    });
  }
}

// Calls visit(sizes) for all choices of 1, 3 or 4 for each of six.
template <class Visit>
void for_all_sizes(const Visit& visit) {
  constexpr std::array<std::int64_t, 3> kChoices = {1, 3, 4};
  std::array<std::int64_t, 6> sizes{};
  for (std::size_t number = 0; number < 729; ++number) {
    std::size_t digits = number;
    for (std::int64_t& size : sizes) {
      size = kChoices[digits % 3];
      digits /= 3;
    }
    visit(sizes);
  }
}

std::int64_t most_alive(const std::vector<Block>& blocks) {
  std::int64_t most = 0;
  for (const Block& begins : blocks) {
    std::int64_t alive = 0;
    for (const Block& other : blocks) {
      if (other.first <= begins.first && begins.first <= other.last) alive += other.size_bytes;
    }
    most = std::max(most, alive);
  }
  return most;
}

// In the middle of a chain: the old shard is made from a buffer that is on the other end, and so is what the
// new one becomes.
TEST(Rounds, BuffersOfAChainFillTheArenaWithoutHoles) {
  constexpr std::int64_t kStart = 2, kEnd = 3 * (kRounds + 1);
  int patterns = 0;
  for_each_traffic([&](const RankTraffic& rank) {
    ++patterns;
    const RoundLives lives = lives_in_rounds(rank);
    const Anchor old = Anchor::high;
    const RoundAnchors anchors = anchors_in_rounds(lives, old);
    const auto opposite = [](Anchor anchor) { return anchor == Anchor::low ? Anchor::high : Anchor::low; };
    const auto block = [&](std::int64_t size, const Life& life, Anchor anchor) {
      const bool never = life.end < life.begin;
      const auto first = static_cast<Position>(life.begin + kStart);
      const auto last = static_cast<Position>(std::min(life.end, std::int64_t{kEnd}) + kStart);
      return Block{never ? 0 : size, 1, anchor, first, never ? first : last, first};
    };
    for_all_sizes([&](const std::array<std::int64_t, 6>& sizes) {
      const std::vector<Block> blocks = {
          block(sizes[0], {-2, -1}, opposite(old)),
          block(sizes[1], lives.old_shard, old),
          block(sizes[2], lives.packed, anchors.packed),
          block(sizes[3], lives.received, anchors.received),
          block(sizes[4], lives.new_shard, anchors.new_shard),
          block(sizes[5], {kEnd, kEnd + 1}, opposite(anchors.new_shard)),
      };
      ASSERT_EQ(pack(blocks).size_bytes, most_alive(blocks))
          << "own part " << rank.self_numel << ", packs in rounds " << rank.first_pack << " to "
          << rank.last_pack << ", sends directly until " << rank.last_direct_send << ", receives in "
          << rank.first_arrival << " to " << rank.last_arrival;
    });
  });
  EXPECT_EQ(patterns, 2 * 7 * 4 * 7);
}

TEST(Rounds, LivesByHand) {
  RankTraffic rank;  // packs in rounds 1 and 3, receives in round 2
  rank.first_pack = 1, rank.last_pack = 3, rank.send_numel = 10;
  rank.first_arrival = rank.last_arrival = 2, rank.recv_numel = 100;
  const RoundLives lives = lives_in_rounds(rank);
  EXPECT_EQ(lives.old_shard.end, 10);  // the packing of round 3
  EXPECT_EQ(lives.packed.begin, 4);
  EXPECT_EQ(lives.packed.end, 11);
  EXPECT_EQ(lives.received.begin, 8);
  EXPECT_EQ(lives.received.end, 9);
  EXPECT_EQ(lives.new_shard.begin, 9);
  EXPECT_EQ(live_in_rounds(rank, 1000, 10000), 11110);
  rank.last_pack = 1;  // the old shard and the packed staging are gone when the round of the arrival begins
  EXPECT_EQ(live_in_rounds(rank, 1000, 10000), 10100);
  EXPECT_EQ(live_in_rounds(rank, 1000, 0), 1010);
  rank.last_direct_send = 2;
  EXPECT_EQ(live_in_rounds(rank, 1000, 500), 1100);
  rank.self_numel = 1;
  EXPECT_EQ(live_in_rounds(rank, 1000, 500), 1600);
}

}  // namespace
}  // namespace cp::detail
