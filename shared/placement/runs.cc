#include "shared/placement/runs.h"

#include <utility>

namespace cp {

void RunBuilder::append(const Run& run) {
  if (run.run <= 0 || run.count <= 0) return;
  std::int64_t begin = run.begin;
  std::int64_t blocks = is_contiguous(run) ? 1 : run.count;
  const std::int64_t block = blocks == 1 ? run.size() : run.run;
  if (tail_size_ > 0) {
    if (tail_begin_ + tail_size_ == begin) {
      tail_size_ += block;
      if (--blocks == 0) return;
      begin += run.stride;
    }
    append_blocks({tail_begin_, tail_size_, tail_size_, 1});
  }
  if (blocks > 1) append_blocks({begin, block, run.stride, blocks - 1});
  tail_begin_ = begin + (blocks - 1) * run.stride;
  tail_size_ = block;
}

void RunBuilder::append_blocks(Run blocks) {
  if (!runs_.empty() && runs_.back().run == blocks.run) {
    Run& last = runs_.back();
    const std::int64_t step = blocks.begin - (last.begin + (last.count - 1) * last.stride);
    if (step > blocks.run && (last.count == 1 || step == last.stride)) {
      last.stride = step;
      const std::int64_t taken = blocks.count == 1 || blocks.stride == step ? blocks.count : 1;
      last.count += taken;
      blocks.begin += taken * blocks.stride;
      blocks.count -= taken;
    }
  }
  if (blocks.count == 0) return;
  if (blocks.count == 1) blocks.stride = blocks.run;
  runs_.push_back(blocks);
}

IndexSet RunBuilder::take() {
  if (tail_size_ > 0) append_blocks({tail_begin_, tail_size_, tail_size_, 1});
  tail_size_ = 0;
  return std::exchange(runs_, {});
}

RunFinder::RunFinder(const IndexSet& set) {
  hulls_.reserve(set.size());
  for (std::size_t i = 0; i < set.size(); ++i) hulls_.push_back({set[i].begin, end_of(set[i]), 0, i});
  const auto earlier = [](const Hull& a, const Hull& b) { return a.begin < b.begin; };
  if (!std::is_sorted(hulls_.begin(), hulls_.end(), earlier))
    std::sort(hulls_.begin(), hulls_.end(), earlier);
  std::int64_t reach = 0;
  for (Hull& hull : hulls_) hull.reach = reach = std::max(reach, hull.end);
}

}  // namespace cp
