#include "shared/plan/arena.h"

#include <algorithm>
#include <ctime>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"

namespace cp {

void showValue(const Block& block, std::ostream& out) {
  out << block.size_bytes << " bytes from " << block.first << " to " << block.last << ", aligned to "
      << block.alignment << ", anchor " << static_cast<int>(block.anchor);
}
namespace {

Block block(std::int64_t size_bytes, Position first, Position last, Anchor anchor = Anchor::any) {
  return {size_bytes, 4, anchor, first, last, first};
}

bool live_together(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

bool valid(const std::vector<Block>& blocks, const Packing& packing) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t begin = packing.offsets[i], end = begin + blocks[i].size_bytes;
    if (begin < 0 || end > packing.size_bytes || begin % blocks[i].alignment != 0) return false;
    for (std::size_t j = 0; j < i; ++j) {
      const std::int64_t other = packing.offsets[j];
      const bool apart = end <= other || other + blocks[j].size_bytes <= begin;
      if (!apart && live_together(blocks[i], blocks[j])) return false;
    }
  }
  return true;
}

std::int64_t max_live(const std::vector<Block>& blocks) {
  std::int64_t most = 0;
  for (const Block& at : blocks) {
    std::int64_t live = 0;
    for (const Block& other : blocks) {
      if (other.first <= at.first && at.first <= other.last) live += other.size_bytes;
    }
    most = std::max(most, live);
  }
  return most;
}

TEST(Arena, BlocksThatNeverLiveTogetherShareBytes) {
  const std::vector<Block> blocks = {block(64, 0, 1), block(48, 2, 3), block(16, 1, 2)};
  const Packing packing = pack(blocks);
  EXPECT_TRUE(valid(blocks, packing));
  EXPECT_EQ(packing.size_bytes, 80);
}

TEST(Arena, EmptyBlocksAndNoBlocks) {
  EXPECT_EQ(pack({}).size_bytes, 0);
  const std::vector<Block> blocks = {block(0, 0, 3), block(8, 0, 3), block(0, 0, 3, Anchor::high)};
  EXPECT_EQ(pack(blocks).size_bytes, 8);
}

// The second and third block touch at 60, which would leave 4 between the third and fourth, where 28 live
// with both.
TEST(Arena, AnchoredBlocksLeaveRoomForWhatLivesBetweenThem) {
  const std::vector<Block> blocks = {block(8, 0, 2, Anchor::low), block(32, 2, 6, Anchor::high),
                                     block(28, 3, 8, Anchor::low), block(28, 7, 10, Anchor::high),
                                     block(28, 8, 9)};
  const Packing packing = pack(blocks);
  EXPECT_TRUE(valid(blocks, packing));
  EXPECT_EQ(packing.size_bytes, max_live(blocks));
}

// a 60, b 40, c 60, d 40 in a chain: largest-first puts a and c below, and b and d above them, which fills
// 100; without anchors a 40-60-40-80 chain does not.
TEST(Arena, AChainThatLargestFirstWastesFitsWithAnchors) {
  const auto chain = [](bool anchored) {
    std::vector<Block> blocks;
    const std::int64_t sizes[] = {40, 60, 40, 80, 20, 80, 40, 60};
    for (Position i = 0; i < 8; ++i) {
      const Anchor anchor = !anchored ? Anchor::any : i % 2 == 0 ? Anchor::low : Anchor::high;
      blocks.push_back(block(sizes[i], i, i + 1, anchor));
    }
    return blocks;
  };
  EXPECT_EQ(pack(chain(true)).size_bytes, max_live(chain(true)));
}

TEST(Arena, UnalignedSizesKeepTheAlignmentOfTheirNeighbours) {
  std::vector<Block> blocks = {block(6, 0, 2, Anchor::low), block(10, 1, 3, Anchor::high), block(2, 0, 3),
                               block(8, 1, 1)};
  blocks[0].alignment = blocks[2].alignment = 2;
  blocks[1].alignment = 16;
  blocks[3].alignment = 8;
  EXPECT_TRUE(valid(blocks, pack(blocks)));
}

TEST(Arena, UnorderedBlocksNeverShare) {
  std::vector<Block> blocks = {block(16, 0, 1), block(16, 4, 5)};
  EXPECT_EQ(pack(blocks).size_bytes, 16);
  blocks[1].horizon = 1;  // on another stream, after nothing that the first one's last use is before
  EXPECT_EQ(pack(blocks, [](std::size_t, std::size_t, Turn) { return false; }).size_bytes, 32);
  EXPECT_EQ(
      pack(blocks, [](std::size_t earlier, std::size_t later, Turn) { return earlier == 0 && later == 1; })
          .size_bytes,
      16);
}

// Two of a body, from positions 2 to 3 and from 4 to 5 of 8; the Repeat takes positions 2 to 15. A third
// block lives at 1, one through the Repeat, and one at 16, behind the last use of the first two.
TEST(Arena, BlocksOfABodyShareOnlyIfTheNextIterationWaits) {
  const auto of_body = [](Position first, Position last, Position again) {
    Block made = block(16, first, last);
    made.cycle = {0, 2, 15, again};
    return made;
  };
  const auto packed = [](std::vector<Block> blocks, bool same, bool next) {
    return pack(blocks, [=](std::size_t, std::size_t, Turn turn) { return turn == Turn::same ? same : next; })
        .size_bytes;
  };
  const Position all = 16;
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, all)}, false, false), 16);
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(3, 5, all)}, true, true), 32);
  // The first one begins again when what comes at 5 may not be over.
  EXPECT_EQ(packed({of_body(2, 3, 5), of_body(4, 5, all)}, true, false), 32);
  EXPECT_EQ(packed({of_body(2, 3, 5), of_body(4, 5, all)}, false, true), 16);
  EXPECT_EQ(packed({of_body(2, 3, 6), of_body(4, 5, all)}, false, false), 16);
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, 3)}, false, false), 16);  // 3 is over by 4 anyway
  // For others both live through the Repeat, and on one stream no longer.
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, all), block(8, 1, 1), block(8, 16, 16)}, false, false),
            16);
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, all), block(8, 2, 15)}, true, true), 24);
  Block behind = block(8, 16, 16);
  behind.horizon = 15;
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, all), behind}, false, true), 24);
  EXPECT_EQ(packed({of_body(2, 3, all), of_body(4, 5, all), behind}, true, false), 16);
}

std::vector<Block> random_blocks(bool anchors) {
  return pick_case("blocks", [=] {
    const auto draw = [](int begin, int end) {
      return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
    };
    std::vector<Block> blocks;
    for (int n = draw(0, 25); n > 0; --n) {
      const Position first = draw(0, 30);
      blocks.push_back(block(draw(0, 60), first, first + draw(0, 8),
                             anchors ? static_cast<Anchor>(draw(0, 3)) : Anchor::any));
      blocks.back().alignment = std::int64_t{1} << draw(0, 5);
    }
    return blocks;
  });
}

RC_GTEST_PROP(Arena, BlocksThatLiveTogetherAreDisjoint, ()) {
  const std::vector<Block> blocks = random_blocks(true);
  const Packing packing = pack(blocks);
  RC_ASSERT(valid(blocks, packing));
  RC_ASSERT(packing.size_bytes >= max_live(blocks));
}

RC_GTEST_PROP(Arena, AnchorsNeverCost, ()) {
  std::vector<Block> blocks = random_blocks(true);
  const std::int64_t anchored = pack(blocks).size_bytes;
  for (Block& each : blocks) each.anchor = Anchor::any;
  RC_ASSERT(anchored <= pack(blocks).size_bytes);
}

// Beside many lives, blocks are found in another way than beside few. Empty ones take no place.
RC_GTEST_PROP(Arena, EmptyBlocksInAnyNumberMoveNoOther, ()) {
  std::vector<Block> blocks = random_blocks(true);
  const Packing few = pack(blocks);
  for (Position i = 0; i < 600; ++i) blocks.push_back(block(0, i, i));
  Packing many = pack(blocks);
  many.offsets.resize(few.offsets.size());
  RC_ASSERT(many.offsets == few.offsets);
  RC_ASSERT(many.size_bytes == few.size_bytes);
}

// The promise that the redistribution planner's memory bound rests on.
RC_GTEST_PROP(Arena, AChainThatAlternatesFillsTheGreatestLiveSumExactly, ()) {
  const auto draw = [](int begin, int end) {
    return pick("size", rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end)));
  };
  std::vector<Block> blocks;
  Position at = 0;
  const int length = draw(1, 40);
  for (int i = 0; i < length; ++i) {  // made at one step, used until the one that makes the next has read it
    const Position next = at + draw(1, 3);
    blocks.push_back(block(4 * draw(1, 100), at, next, i % 2 == 0 ? Anchor::low : Anchor::high));
    at = next;
  }
  const Packing packing = pack(blocks);
  RC_ASSERT(valid(blocks, packing));
  RC_ASSERT(packing.size_bytes == max_live(blocks));
}

// Not a benchmark: a guard against quadratic work, which four times as many blocks would show as sixteen
// times the processor time, and work in proportion as four; ten lies between. The time of the process is
// counted, so that a busy machine changes nothing; the least of a few runs, since the first one also gets the
// memory.
TEST(Arena, ManyBlocksOnOneStreamStayCheap) {
  const auto least_ticks_of = [](Position count) {
    std::vector<Block> blocks;
    for (Position i = 0; i < count; ++i)
      blocks.push_back(block(64 + i % 7, i, i + 3, static_cast<Anchor>(i % 3)));
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    for (int run = 0; run < 3; ++run) {
      const std::clock_t begin = std::clock();
      pack(blocks);
      least = std::min(least, std::clock() - begin);
    }
    return least;
  };
  EXPECT_LT(least_ticks_of(40'000), 10 * least_ticks_of(10'000));
}

}  // namespace
}  // namespace cp
