// The arena is one piece of memory that holds all temporaries of a plan. This finds a place for each of them,
// so that two share bytes only if they never live at the same time.
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
  std::int64_t size_bytes = 0, alignment = 1;  // alignment in bytes: a power of two
  Anchor anchor = Anchor::any;
  Position first = 0, last = 0;
  // <= first. Whatever ended before it is known to be over when this block starts to live
  Position horizon = 0;
};

// Whether `earlier` is known to be over when `later` starts to live; both are indices of blocks. It is asked
// only for pairs that positions do not decide: `earlier` ends before later.first, but not before
// later.horizon. (Streams run beside one another, so an earlier position alone does not mean that a step is
// over.) Empty: never needed, because each horizon is the block's first position, as on one stream.
using Ordered = std::function<bool(std::size_t earlier, std::size_t later)>;

struct Packing {
  std::vector<std::int64_t> offsets;  // bytes, by block
  std::int64_t size_bytes = 0;
};

// Makes two packings and returns the smaller one, the first if they are equal:
//   anchored   blocks anchored low or high come first, each stacked at its end of the arena in the order in
//              which they start to live; then the others, largest first, each at the lowest place that is
//              free for its life
//   plain      all blocks, largest first, each at the lowest free place
//
// On one stream, a chain of blocks that alternate between low and high, each living with its neighbours,
// takes exactly as many bytes as live at once at most.
Packing pack(std::span<const Block> blocks, const Ordered& ordered = {});

// Of each symmetric temporary: 256 bytes, so that its offset is the same whatever the target asks for up to
// there. The segment's size is a multiple of 4096 bytes, NCCL's NCCL_WIN_REQUIRED_ALIGNMENT.
inline constexpr std::int64_t kSymmetricAlignmentBytes = 256, kSymmetricSegmentBytes = 4096;

// Sets first_use, last_use and offset_bytes of the plan's temporaries, plan.symmetric_bytes and
// plan.arena_bytes. Symmetric temporaries come first, one behind the other. `anchors` has one entry for each
// buffer of the plan.
void place_temporaries(Plan& plan, std::span<const Anchor> anchors, const Order& order);

}  // namespace cp
