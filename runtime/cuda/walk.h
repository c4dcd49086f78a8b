// A Walk tells a kernel where the elements of two strided views lie, by their number. It has few dimensions
// and 32-bit numbers, so that a thread computes offsets in few instructions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/kernels/strided.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Divides n < 2^31 by a fixed size with a multiplication: Granlund and Montgomery, "Division by invariant
// integers using multiplication" (1994).
struct Divider {
  std::uint32_t size = 1, magic = std::uint32_t{1} << 31, shift = 31;

  constexpr std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * magic) >> shift);
  }
};
Divider divider(std::int64_t size);  // 1 <= size < 2^31

struct WalkOffsets {
  std::int64_t in = 0, out = 0;
};

struct Walk {
  // Chosen: a bound is needed, because the walk is a parameter of a kernel. A nest with more dimensions
  // becomes several walks (add_walks).
  static constexpr int kMaxDims = 6;
  // One of the two views. Its dimensions stand innermost first. The last one needs no size.
  struct Side {
    int dims = 1;
    Divider sizes[kMaxDims - 1];
    std::int64_t steps[kMaxDims - 1] = {}, last_step = 0;
  };
  std::uint32_t count = 0;  // the number of elements, below 2^31
  bool same_sizes = true;   // whether `in` has the same sizes of dimensions as `out`
  Side out, in;

  constexpr WalkOffsets at(std::uint32_t number) const {
    WalkOffsets at;
    std::uint32_t rest = number;
    for (int d = 0; d < kMaxDims - 1; ++d) {
      if (d + 1 >= out.dims) break;
      const std::uint32_t next = out.sizes[d].quotient(rest);
      const std::int64_t digit = rest - next * out.sizes[d].size;
      at.out += digit * out.steps[d];
      if (same_sizes) at.in += digit * in.steps[d];
      rest = next;
    }
    at.out += rest * out.last_step;
    if (same_sizes) {
      at.in += rest * in.last_step;
      return at;
    }
    rest = number;
    for (int d = 0; d < kMaxDims - 1; ++d) {
      if (d + 1 >= in.dims) break;
      const std::uint32_t next = in.sizes[d].quotient(rest);
      at.in += static_cast<std::int64_t>(rest - next * in.sizes[d].size) * in.steps[d];
      rest = next;
    }
    at.in += rest * in.last_step;
    return at;
  }
};

// A part of the elements of two views. Offsets count from the views' first elements. If `packed`, a unit of
// the walk is a pack of elements, and its steps count packs.
struct WalkPart {
  Walk walk;
  std::int64_t in_offset = 0, out_offset = 0;  // in elements
  bool packed = false;
};

// Returns the nest of loops over both views, outermost first, with the smallest steps of `out` innermost. In
// the result step_a is that of `in`. The views must have elements. Returns nothing if there is no common
// nest.
std::optional<std::vector<Loop>> ordered_loops(const View& in, const View& out);

// Appends the parts that together make up the nest.
void add_walks(std::vector<Loop> loops, bool packed, std::int64_t pack, std::int64_t in_offset,
               std::int64_t out_offset, std::vector<WalkPart>& parts);

// Returns the parts that make up all elements of the views, in packs of `pack` neighbouring elements as far
// as they come in packs. Returns nothing if they do not come in packs at all, which never happens if `pack`
// is 1. Empty views have no parts.
std::optional<std::vector<WalkPart>> walks(const View& in, const View& out, std::int64_t pack);

// Turns the innermost loop into one over packs; all steps then count packs. Returns false if that is not
// possible.
bool pack_loops(std::vector<Loop>& loops, std::int64_t pack);

}  // namespace cp::runtime
