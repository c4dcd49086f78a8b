// WrittenRows remembers which rows of a result have been written. Internal to shared/context_parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "shared/context_parallel/tensor.h"

namespace cp::detail {

class WrittenRows {
 public:
  WrittenRows(std::int64_t rows, bool all) {
    if (!all && rows > 0) missing_.push_back({0, rows});
  }

  // The rows not yet written, as ascending, disjoint ranges.
  const std::vector<Range>& missing() const { return missing_; }
  std::vector<Range> missing(Range of) const {
    std::vector<Range> result;
    for (const Range& gap : missing_) {
      const std::int64_t begin = std::max(gap.begin, of.begin),
                         end = std::min(gap.begin + gap.len, of.begin + of.len);
      if (begin < end) result.push_back({begin, end - begin});
    }
    return result;
  }
  bool none(Range of) const { return missing(of) == std::vector<Range>{of}; }
  bool all(Range of) const { return missing(of).empty(); }
  void add(Range rows) {
    std::vector<Range> left;
    for (const Range& gap : missing_) {
      const std::int64_t gap_end = gap.begin + gap.len, end = rows.begin + rows.len;
      if (gap.begin < rows.begin) left.push_back({gap.begin, std::min(gap_end, rows.begin) - gap.begin});
      if (end < gap_end) left.push_back({std::max(gap.begin, end), gap_end - std::max(gap.begin, end)});
    }
    missing_ = std::move(left);
  }

 private:
  std::vector<Range> missing_;
};

}  // namespace cp::detail
