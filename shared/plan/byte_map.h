// What the checker knows about each byte of one memory space, as intervals of bytes in the same state; and
// the bytes that a view covers.
//
// All costs grow with the number of contiguous runs, never with the number of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

// Bytes [begin, end).
struct ByteRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// The bytes of a view whose first element is at byte `begin`: ascending, disjoint, and not touching one
// another. The strides of the dimensions may come in any order, and a view that is only read may overlap
// itself.
void byte_ranges(const View& view, std::int64_t begin, std::int64_t element_bytes,
                 std::vector<ByteRange>& ranges);

// Divides the bytes [0, size) of a space into intervals with equal state.
class ByteMap {
 public:
  struct State {
    // The buffer to which these bytes have belonged since they were last written; -1: never written.
    std::int32_t owner = -1;
    std::int32_t writer = -1;  // what wrote them last; -1: nothing, or the caller before the start
    // Who has read them since: a number that the user of this class gives to a set of readers; -1: nobody.
    std::int32_t readers = -1;
    bool operator==(const State&) const = default;
  };

  void reset(std::int64_t size, const State& state);

  // Calls visit(range, state) for the maximal pieces of equal state within `ranges`, in ascending order.
  // Changes that visit() makes to the state hold for exactly this piece. If visit() throws, the map is
  // unchanged. `ranges` must be as byte_ranges() makes them, within [0, size).
  template <class Visit>
  void visit(std::span<const ByteRange> ranges, Visit&& visit);

 private:
  struct Interval {
    std::int64_t begin = 0;  // ends where the next interval begins
    State state;
  };

  std::size_t find(std::int64_t byte) const;  // the index of the interval that holds the byte
  void append(std::int64_t begin, const State& state) {
    if (changed_.empty() || changed_.back().state != state) changed_.push_back({begin, state});
  }
  void replace(std::size_t first, std::size_t last);  // replaces these intervals by changed_

  std::vector<Interval> intervals_;  // ascending; the last one is a sentinel at `size`
  std::vector<Interval> changed_;
};

template <class Visit>
void ByteMap::visit(std::span<const ByteRange> ranges, Visit&& visit) {
  if (ranges.empty()) return;
  changed_.clear();
  const std::size_t first = find(ranges.front().begin);
  std::size_t at = first;
  std::int64_t byte = intervals_[first].begin;  // everything before it is in changed_
  const auto keep_until = [&](std::int64_t end) {
    while (byte < end) {
      append(byte, intervals_[at].state);
      byte = std::min(end, intervals_[at + 1].begin);
      if (byte == intervals_[at + 1].begin) ++at;
    }
  };
  for (const ByteRange& range : ranges) {
    keep_until(range.begin);
    while (byte < range.end) {
      const std::int64_t end = std::min(range.end, intervals_[at + 1].begin);
      State state = intervals_[at].state;
      visit(ByteRange{byte, end}, state);
      append(byte, state);
      byte = end;
      if (byte == intervals_[at + 1].begin) ++at;
    }
  }
  if (byte > intervals_[at].begin) keep_until(intervals_[at + 1].begin);
  replace(first, at);
}

}  // namespace cp
