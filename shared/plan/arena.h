// The arena: places for temporaries in one piece of memory, so that two share bytes only when they never live
// together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shared/plan/builder.h"
#include "shared/plan/order.h"
#include "shared/plan/plan.h"

namespace cp {

// A temporary that lives from position `first` to `last`, both included.
struct Block {
  std::int64_t size_bytes = 0, alignment = 1;  // alignment: a power of two
  Anchor anchor = Anchor::any;
  Position first = 0, last = 0;
  Position horizon = 0;  // <= first; what ended before it is known to be over when this block starts to live
};

// Whether a block that ended before another one's first position, but not before its horizon, is known to be
// over; the two are given by index. Empty: never needed, since each horizon is the block's first position
// (one stream).
using Ordered = std::function<bool(std::size_t earlier, std::size_t later)>;

struct Packing {
  std::vector<std::int64_t> offsets;  // bytes, by block
  std::int64_t size_bytes = 0;
};

// The smaller of two packings, the first when they are equal:
//   anchored   blocks anchored low or high first, each stacked at its end of the arena in the order in which
//              they start to live; then the others, largest first, each at the lowest place that is free for
//              its life
//   plain      all blocks, largest first, each at the lowest free place
// On one stream a chain of blocks that alternate between low and high, each living with its neighbours, fills
// exactly the greatest sum that lives at once.
Packing pack(std::span<const Block> blocks, const Ordered& ordered = {});

// Sets first and last uses and offsets of the plan's temporaries, and the size of its arena. `anchors`: by
// buffer.
void place_temporaries(Plan& plan, std::span<const Anchor> anchors, const Order& order);

}  // namespace cp
