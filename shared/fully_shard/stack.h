// A stack is a buffer of equal pieces, one for each layer. Slots are a few pieces that layers use in turn.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/plan.h"

namespace cp {

// Says which piece a step means: in iteration i of its Repeat, piece number first + i * step. Outside of a
// Repeat, step is 0.
struct StackIndex {
  std::int64_t first = 0, step = 0;
};

// Where a piece begins, and how this place advances with the iterations of the Repeat. Offsets are in
// elements. The first elements of a piece may lie apart from the others: no view holds some of both.
struct Window {
  BufferId buffer = -1;
  std::int64_t offset = 0;
  Advance advance = {};
  std::int64_t front = 0, front_offset = 0;  // of the first `front` elements

  std::int64_t at(std::int64_t element) const { return element + (element < front ? front_offset : offset); }
  View flat(std::int64_t begin, std::int64_t numel) const {
    CP_INVARIANT(begin >= front || begin + numel <= front, "elements ", begin, " to ", begin + numel,
                 " lie on both sides of the first ", front);
    return flat_view(buffer, at(begin), numel, advance);
  }
  View dense(std::int64_t begin, Shape shape) const {
    return dense_view(buffer, at(begin), std::move(shape), advance);
  }
  // A matrix of `rows` rows of `width` elements; the rows begin `stride` elements apart.
  View rows(std::int64_t begin, std::int64_t rows, std::int64_t width, std::int64_t stride) const {
    return {buffer, at(begin), {rows, width}, {stride, 1}, advance};
  }
};

inline Window in_stack(BufferId buffer, std::int64_t piece, StackIndex index) {
  return {buffer, index.first * piece, index.step == 0 ? Advance{} : Advance{index.step * piece, 0, 0}};
}

// A slot of a turn: as many turns as there are slots, one behind the other, have different ones. Turn n has
// slot n % slots where the turns of a Repeat advance by one. Where they advance by a step that has the
// greatest common divisor g with `slots`, they visit every g-th slot, and the k-th visit has the k-th of
// these, so that Advance can say it: turn n = a + g * m, with a below g, has slot a + g * ((m / s) % (slots /
// g)), where s = step / g, and 1 / s is taken modulo slots / g.
inline Window in_slot(BufferId buffer, std::int64_t piece, StackIndex index, int slots) {
  const std::int64_t g = std::gcd(index.step, std::int64_t{slots}), visited = slots / g;
  if (visited == 1) return {buffer, index.first % slots * piece, {}};
  const std::int64_t step = (index.step / g % visited + visited) % visited;
  std::int64_t inverse = 1;
  while (inverse * step % visited != 1) ++inverse;
  return {
      buffer, index.first % g * piece, {g * piece, visited, index.first / g % visited * inverse % visited}};
}

}  // namespace cp
