#include "shared/redistribute/dim_spec.h"

#include <algorithm>

#include "shared/base/index.h"

namespace cp::detail {
namespace {

// The most blocks of periodic index sets that are listed to find which parts meet; beyond it, parts are
// compared pair by pair. Chosen: a Block is a few words, so that the list is about 100 MiB at most.
constexpr std::int64_t kListedBlocks = 1 << 22;

Shared share_ranges(std::int64_t from_begin, std::int64_t from_size, std::int64_t to_begin,
                    std::int64_t to_size) {
  const std::int64_t begin = std::max(from_begin, to_begin);
  const std::int64_t end = std::min(from_begin + from_size, to_begin + to_size);
  if (begin >= end) return {};
  return {end - begin, begin - from_begin, begin - to_begin, true};
}

bool is_range(const IndexSet& set) {
  return set.size() == 1 && (set[0].count == 1 || set[0].run == set[0].stride);
}

Shared share(const IndexSet& from, const IndexSet& to) {
  if (from.empty() || to.empty()) return {};
  if (is_range(from) && is_range(to))
    return share_ranges(from[0].begin, from[0].size(), to[0].begin, to[0].size());
  Shared shared;
  const std::vector<Overlap> overlaps = intersect(from, to);
  if (overlaps.empty()) return shared;
  for (const Overlap& overlap : overlaps) shared.numel += overlap.run * overlap.count;
  shared.from_start = overlaps.front().in_a;
  shared.to_start = overlaps.front().in_b;
  const Overlap& first = overlaps.front();
  shared.contiguous = overlaps.size() == 1 &&
                      (first.count == 1 || (first.stride_a == first.run && first.stride_b == first.run));
  return shared;
}

// One stretch of global indices of a part.
struct Block {
  std::int64_t begin = 0, end = 0;
  std::int32_t part = 0;
};

std::int64_t num_blocks(const DimSpec& spec) {
  if (spec.ranges) return spec.degree;
  std::int64_t blocks = 0;
  for (std::int32_t part = 0; part < spec.degree; ++part) {
    for (const Run& run : spec.part(part)) blocks += run.count;
  }
  return blocks;
}

// Calls visit(Block) for each stretch of the part.
template <class Visit>
void visit_blocks(const DimSpec& spec, std::int32_t part, const Visit& visit) {
  for (const Run& run : spec.part(part)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t begin = run.begin + i * run.stride;
      visit(Block{begin, begin + run.run, part});
    }
  }
}

// The stretches of all parts, ascending. Parts have no index in common, so stretches do not overlap.
std::vector<Block> sorted_blocks(const DimSpec& spec) {
  std::vector<Block> blocks;
  for (std::int32_t part = 0; part < spec.degree; ++part)
    visit_blocks(spec, part, [&](const Block& block) { blocks.push_back(block); });
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
  return blocks;
}

}  // namespace

IndexSet DimSpec::part(std::int32_t part) const {
  if (!ranges) return sets_[static_cast<std::size_t>(part)];
  return index_range(begin(part), begin(part) + size(part));
}

PairTable::PairTable(const DimSpec& from, const DimSpec& to, bool keeps) : from_(from), to_(to) {
  if (keeps) known_.assign(idx(from.degree * to.degree), Shared{-1, 0, 0, false});
}

Shared PairTable::at(std::int32_t from, std::int32_t to) const {
  if (from_.ranges && to_.ranges)
    return share_ranges(from_.begin(from), from_.size(from), to_.begin(to), to_.size(to));
  if (known_.empty()) return share(from_.part(from), to_.part(to));
  Shared& known = known_[idx(from * to_.degree + to)];
  if (known.numel < 0) known = share(from_.part(from), to_.part(to));
  return known;
}

std::span<const std::int32_t> PairTable::overlapping(std::int32_t to) const {
  if (first_.empty()) find_overlapping();
  return std::span(overlapping_).subspan(idx(first_[idx(to)]), idx(first_[idx(to) + 1] - first_[idx(to)]));
}

void PairTable::find_overlapping() const {
  first_.reserve(idx(to_.degree) + 1);
  first_.push_back(0);
  const bool listed = known_.empty() && num_blocks(from_) + num_blocks(to_) <= kListedBlocks;
  const std::vector<Block> blocks = listed ? sorted_blocks(from_) : std::vector<Block>{};
  for (std::int32_t t = 0; t < to_.degree; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(overlapping_.size());
    if (listed) {
      visit_blocks(to_, t, [&](const Block& wanted) {
        auto block = std::partition_point(blocks.begin(), blocks.end(),
                                          [&](const Block& b) { return b.end <= wanted.begin; });
        for (; block != blocks.end() && block->begin < wanted.end; ++block) {
          if (block->begin < block->end) overlapping_.push_back(block->part);
        }
      });
      std::sort(overlapping_.begin() + begin, overlapping_.end());
      overlapping_.erase(std::unique(overlapping_.begin() + begin, overlapping_.end()), overlapping_.end());
    } else {
      for (std::int32_t f = 0; f < from_.degree; ++f) {
        if (at(f, t).numel > 0) overlapping_.push_back(f);
      }
    }
    first_.push_back(static_cast<std::int64_t>(overlapping_.size()));
  }
}

}  // namespace cp::detail
