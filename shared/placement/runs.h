// Building blocks of the operations on index sets. Private to shared/placement.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

inline bool is_contiguous(const Run& run) { return run.count == 1 || run.stride == run.run; }

// One past the last index of a run.
inline std::int64_t end_of(const Run& run) { return run.begin + (run.count - 1) * run.stride + run.run; }

// The global index at position `local` of a run.
inline std::int64_t global_in_run(const Run& run, std::int64_t local) {
  return run.begin + local / run.run * run.stride + local % run.run;
}

// How many indices of a run are below `global`. If the run holds `global`, this is its position in the run.
inline std::int64_t count_below(const Run& run, std::int64_t global) {
  if (global <= run.begin) return 0;
  const std::int64_t distance = global - run.begin;
  const std::int64_t block = distance / run.stride;
  if (block >= run.count) return run.size();
  return block * run.run + std::min(distance - block * run.stride, run.run);
}

// Calls emit(Run) for what `run` holds inside [begin, end), in order. There are at most three parts: a first
// block that `begin` cuts, the whole blocks, and a last block that `end` cuts.
template <class Emit>
void clip_run(const Run& run, std::int64_t begin, std::int64_t end, const Emit& emit) {
  const std::int64_t before = begin - run.begin - run.run;  // < 0: the first block reaches past `begin`
  const std::int64_t first = before < 0 ? 0 : before / run.stride + 1;
  if (end <= run.begin || end <= begin || first >= run.count) return;
  const std::int64_t last = std::min(run.count - 1, (end - 1 - run.begin) / run.stride);
  if (first > last) return;

  const std::int64_t head = run.begin + first * run.stride;
  const std::int64_t tail = run.begin + last * run.stride;
  if (first == last) {
    const std::int64_t size = std::min(tail + run.run, end) - std::max(head, begin);
    emit(Run{std::max(head, begin), size, size, 1});
    return;
  }
  const bool head_is_cut = head < begin;
  const bool tail_is_cut = tail + run.run > end;
  if (head_is_cut) emit(Run{begin, head + run.run - begin, head + run.run - begin, 1});
  const std::int64_t whole = last - first + 1 - (head_is_cut ? 1 : 0) - (tail_is_cut ? 1 : 0);
  if (whole > 0) {
    emit(Run{head_is_cut ? head + run.stride : head, run.run, whole == 1 ? run.run : run.stride, whole});
  }
  if (tail_is_cut) emit(Run{tail, end - tail, end - tail, 1});
}

// Builds an index set from runs appended in local order, and keeps it canonical.
//
// Why the form depends on the indices alone and not on how they were cut into runs: a list of indices falls
// into maximal blocks of consecutive ones in just one way; and read from the left, each run takes as many
// blocks of its length at its distance as follow.
class RunBuilder {
 public:
  void append(const Run& run);  // ignored when it is empty
  IndexSet take();              // leaves the builder empty

 private:
  void append_blocks(Run blocks);  // maximal blocks: nothing that follows can lengthen the last of them

  IndexSet runs_;
  std::int64_t tail_begin_ = 0, tail_size_ = 0;  // the last block, which the next run may still lengthen
};

// Finds the runs of a set that can touch a range, without looking at all of them.
class RunFinder {
 public:
  explicit RunFinder(const IndexSet& set);

  // Calls f(position of the run in the set) for each run whose hull touches [begin, end). The calls come in
  // ascending order of the runs' first indices, which is not always local order.
  template <class F>
  void for_each(std::int64_t begin, std::int64_t end, const F& f) const {
    const auto reaches = [](std::int64_t value, const Hull& hull) { return value < hull.reach; };
    for (auto hull = std::upper_bound(hulls_.begin(), hulls_.end(), begin, reaches);
         hull != hulls_.end() && hull->begin < end; ++hull) {
      if (hull->end > begin) f(hull->run);
    }
  }

 private:
  struct Hull {
    std::int64_t begin, end;
    std::int64_t reach;  // the largest end of this hull and those before it
    std::size_t run;
  };
  std::vector<Hull> hulls_;  // ascending by begin
};

}  // namespace cp
