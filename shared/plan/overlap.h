// Decides whether two views of one buffer share an element, in one iteration or across iterations of a
// Repeat.
//
// No true overlap is ever missed. The answer is exact for contiguous views, and for strided views whose
// dimensions nest, as those of tensors do. Only for adversarial strides does the search give up and answer
// "yes". The views must be valid (see validate_step) and be of the same buffer.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/plan/plan.h"

namespace cp {

// The elements [begin, end) between the first and the last element of a view; empty when begin == end.
struct Extent {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool meets(const Extent& other) const {
    return !empty() && !other.empty() && begin < other.end && other.begin < end;
  }
};
Extent extent_at(const View& view, std::int64_t iteration);
// The extent of the first `count` iterations together.
Extent extent(const View& view, std::int64_t count);

// Whether `a` in iteration i and `b` in iteration i - lag share an element, for some i with lag <= i < count.
bool overlaps_at_lag(const View& a, const View& b, std::int64_t lag, std::int64_t count);

// The least lag >= from at which they do. An overlap beyond kMaxLag is reported at kMaxLag, which orders more
// than needed and never less. Chosen: slots and stacks meet themselves after 1 or 2 iterations, so 64 is
// never reached by our builders.
inline constexpr std::int64_t kMaxLag = 64;
std::optional<std::int64_t> least_overlapping_lag(const View& a, const View& b, std::int64_t from,
                                                  std::int64_t count);

// Whether `a` in any of its iterations and `b` in any of its own share an element.
bool ever_overlaps(const View& a, std::int64_t count_a, const View& b, std::int64_t count_b);

}  // namespace cp
