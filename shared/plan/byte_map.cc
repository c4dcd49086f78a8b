#include "shared/plan/byte_map.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp {
namespace {

struct Dim {
  std::int64_t size = 0, stride = 0;  // of bytes
};

// The dimensions that matter, the largest stride first, with all that is contiguous folded into `run` bytes.
std::vector<Dim> outer_dims(const View& view, std::int64_t element_bytes, std::int64_t& run) {
  std::vector<Dim> dims;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] != 1 && view.strides[i] != 0) {
      dims.push_back({view.shape[i], view.strides[i] * element_bytes});
    }
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  while (!dims.empty() && dims.back().stride <= run) {
    run += (dims.back().size - 1) * dims.back().stride;
    dims.pop_back();
  }
  return dims;
}

// Joins what touches or overlaps; the ranges ascend afterwards.
void normalize(std::vector<ByteRange>& ranges) {
  const auto apart = [](const ByteRange& a, const ByteRange& b) { return a.end >= b.begin; };
  if (std::adjacent_find(ranges.begin(), ranges.end(), apart) == ranges.end()) return;
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[last].end) {
      ranges[last].end = std::max(ranges[last].end, ranges[i].end);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(last + 1);
}

}  // namespace

void byte_ranges(const View& view, std::int64_t begin, std::int64_t element_bytes,
                 std::vector<ByteRange>& ranges) {
  ranges.clear();
  if (view.numel() == 0) return;
  if (is_contiguous(view)) {
    ranges.push_back({begin, begin + view.numel() * element_bytes});
    return;
  }
  std::int64_t run = element_bytes;
  ranges.push_back({begin, 0});
  for (const Dim& dim : outer_dims(view, element_bytes, run)) {
    // From the outermost inwards: each start so far becomes `size` starts.
    const std::size_t starts = ranges.size();
    ranges.resize(starts * static_cast<std::size_t>(dim.size));
    for (std::size_t i = starts; i-- > 0;) {
      const std::int64_t start = ranges[i].begin;
      for (std::size_t j = static_cast<std::size_t>(dim.size); j-- > 0;) {
        ranges[i * static_cast<std::size_t>(dim.size) + j].begin =
            start + static_cast<std::int64_t>(j) * dim.stride;
      }
    }
  }
  for (ByteRange& range : ranges) range.end = range.begin + run;
  normalize(ranges);
}

void ByteMap::reset(std::int64_t size, const State& state) {
  intervals_.clear();
  if (size > 0) intervals_.push_back({0, state});
  intervals_.push_back({size, {}});
}

std::size_t ByteMap::find(std::int64_t byte) const {
  const auto after = std::upper_bound(intervals_.begin(), intervals_.end(), byte,
                                      [](std::int64_t value, const Interval& i) { return value < i.begin; });
  return static_cast<std::size_t>(after - intervals_.begin()) - 1;
}

void ByteMap::replace(std::size_t first, std::size_t last) {
  const auto begin = intervals_.begin() + static_cast<std::ptrdiff_t>(first);
  const std::size_t common = std::min(changed_.size(), last - first);
  std::copy_n(changed_.begin(), common, begin);
  const auto rest = begin + static_cast<std::ptrdiff_t>(common);
  if (changed_.size() > common) {
    intervals_.insert(rest, changed_.begin() + static_cast<std::ptrdiff_t>(common), changed_.end());
  } else {
    intervals_.erase(rest, intervals_.begin() + static_cast<std::ptrdiff_t>(last));
  }
}

}  // namespace cp
