// The arena is one piece of memory that holds all temporaries of a plan. This finds a place for each of them,
// so that two share bytes only if they never live at the same time (lives.h says when they live).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shared/plan/builder.h"
#include "shared/plan/order.h"

namespace cp {

// Of a block that lives anew in each iteration of a Repeat. What neighbouring iterations are to each other is
// the same for all of them, so that the first two speak for all.
struct Cycle {
  std::int32_t body = -1;        // which Repeat; -1: the block lives once
  Position first = 0, last = 0;  // of all iterations of the Repeat
  // Whatever of the first iteration ended before it is known to be over when the block starts to live in the
  // second; above `last`: all of it
  Position again = 0;
};

// A temporary that lives from position `first` to `last`, both included. If it lives anew in each iteration
// of a Repeat, these are positions of the first one. Against what is not of this kind and of this Repeat it
// lives through all iterations: nothing else begins or ends inside of a Repeat.
struct Block {
  std::int64_t size_bytes = 0, alignment = 1;  // alignment in bytes: a power of two
  Anchor anchor = Anchor::any;
  Position first = 0, last = 0;
  // <= first. Whatever ended before it is known to be over when this block starts to live
  Position horizon = 0;
  Cycle cycle = {};

  bool cycles() const { return cycle.body >= 0; }
  // The span for all that is not of the same body.
  Position begin() const { return cycles() ? cycle.first : first; }
  Position end() const { return cycles() ? cycle.last : last; }
};

// Whether `earlier` is known to be over when `later` starts to live, in the same iteration or in the next one
// (Turn::next: only for blocks of one body); both are indices of blocks. It is asked only for pairs that
// positions do not decide: `earlier` ends before later.first, but not before later.horizon; or not before
// later.cycle.again. (Streams run beside one another, so an earlier position alone does not mean that a step
// is over.) Empty: never needed, because each horizon is the block's first position, and nothing of an
// iteration lasts into the next one, as on one stream.
enum class Turn : std::uint8_t { same, next };
using Ordered = std::function<bool(std::size_t earlier, std::size_t later, Turn turn)>;

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

}  // namespace cp
