#include "runtime/cuda/walk.h"

#include <algorithm>
#include <bit>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - 1;  // the limit of Divider

std::int64_t count_of(const std::vector<Loop>& loops) {
  std::int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.size;
  return count;
}

// Dimensions of one view, outermost first, those of size 1 left out.
std::vector<Loop> loops_of(const View& view) {
  std::vector<Loop> loops;
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] != 1) loops.push_back({view.shape[d], view.strides[d], view.strides[d]});
  }
  if (loops.empty()) loops.push_back({1, 0, 0});
  return loops;
}

Walk::Side side(const std::vector<Loop>& loops, std::int64_t Loop::*step) {
  CP_INVARIANT(loops.size() <= Walk::kMaxDims, loops.size(), " dimensions");
  Walk::Side side;
  side.dims = static_cast<int>(loops.size());
  for (std::size_t d = 0; d + 1 < loops.size(); ++d) {
    const Loop& loop = loops[loops.size() - 1 - d];
    side.sizes[d] = divider(loop.size);
    side.steps[d] = loop.*step;
  }
  side.last_step = loops.front().*step;
  return side;
}

// Appends walks of views that have no common nest, in row-major order. One walk serves if neither view has
// too many dimensions, each by its own; else there is a walk for each run.
void add_unlike(const View& in, const View& out, std::vector<WalkPart>& parts) {
  const std::vector<Loop> in_loops = loops_of(in), out_loops = loops_of(out);
  if (out.numel() <= kMaxCount && std::max(in_loops.size(), out_loops.size()) <= Walk::kMaxDims) {
    Walk walk{static_cast<std::uint32_t>(out.numel()), false, side(out_loops, &Loop::step_b),
              side(in_loops, &Loop::step_a)};
    parts.push_back({walk, 0, 0, false});
    return;
  }
  for_each_run(
      in, out,
      [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step, std::int64_t n) {
        add_walks({{n, from_step, to_step}}, false, 1, from, to, parts);
      });
}

}  // namespace

Divider divider(std::int64_t size) {
  CP_INVARIANT(size >= 1 && size <= kMaxCount, "a dimension of ", size);
  const auto divisor = static_cast<std::uint64_t>(size);
  const int shift = 31 + static_cast<int>(std::bit_width(divisor - 1));
  // Rounded up: 2^shift / size is between 2^31 and 2^32.
  const std::uint64_t magic = ((std::uint64_t{1} << shift) + divisor - 1) / divisor;
  return {static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(magic),
          static_cast<std::uint32_t>(shift)};
}

std::optional<std::vector<Loop>> ordered_loops(const View& in, const View& out) {
  std::optional<std::vector<Loop>> loops = common_loops(in, out);
  if (!loops) return std::nullopt;
  std::stable_sort(loops->begin(), loops->end(),
                   [](const Loop& a, const Loop& b) { return a.step_b > b.step_b; });
  std::vector<Loop> joined;
  for (const Loop& loop : *loops) {
    if (loop.size == 1 && loops->size() > 1) continue;
    Loop* outer = joined.empty() ? nullptr : &joined.back();
    if (outer != nullptr && outer->step_a == loop.step_a * loop.size &&
        outer->step_b == loop.step_b * loop.size) {
      *outer = {outer->size * loop.size, loop.step_a, loop.step_b};
    } else {
      joined.push_back(loop);
    }
  }
  if (joined.empty()) joined.push_back({1, 0, 0});
  return joined;
}

bool pack_loops(std::vector<Loop>& loops, std::int64_t pack) {
  if (pack == 1) return true;
  Loop& inner = loops.back();
  if (inner.step_a != 1 || inner.step_b != 1 || inner.size % pack != 0) return false;
  for (std::size_t i = 0; i + 1 < loops.size(); ++i) {
    if (loops[i].step_a % pack != 0 || loops[i].step_b % pack != 0) return false;
  }
  inner.size /= pack;
  for (std::size_t i = 0; i + 1 < loops.size(); ++i) loops[i].step_a /= pack, loops[i].step_b /= pack;
  if (inner.size == 1 && loops.size() > 1) loops.pop_back();
  return true;
}

void add_walks(std::vector<Loop> loops, bool packed, std::int64_t pack, std::int64_t in_offset,
               std::int64_t out_offset, std::vector<WalkPart>& parts) {
  const std::int64_t count = count_of(loops);
  if (count == 0) return;
  while (loops.size() > 1 && loops.front().size == 1) loops.erase(loops.begin());
  const Loop outer = loops.front();
  const std::int64_t unit = packed ? pack : 1;
  if (loops.size() > Walk::kMaxDims) {
    loops.erase(loops.begin());
    for (std::int64_t i = 0; i < outer.size; ++i) {
      add_walks(loops, packed, pack, in_offset + i * outer.step_a * unit,
                out_offset + i * outer.step_b * unit, parts);
    }
    return;
  }
  if (count > kMaxCount) {
    const std::int64_t half = outer.size / 2;
    loops.front().size = half;
    add_walks(loops, packed, pack, in_offset, out_offset, parts);
    loops.front().size = outer.size - half;
    add_walks(std::move(loops), packed, pack, in_offset + half * outer.step_a * unit,
              out_offset + half * outer.step_b * unit, parts);
    return;
  }
  const Walk walk{static_cast<std::uint32_t>(count), true, side(loops, &Loop::step_b),
                  side(loops, &Loop::step_a)};
  parts.push_back({walk, in_offset, out_offset, packed});
}

std::optional<std::vector<WalkPart>> walks(const View& in, const View& out, std::int64_t pack) {
  std::vector<WalkPart> parts;
  if (out.numel() == 0) return parts;
  auto loops = ordered_loops(in, out);
  if (!loops) {
    if (pack > 1) return std::nullopt;
    add_unlike(in, out, parts);
    return parts;
  }
  // A run that is no whole number of packs has a tail.
  Loop& only = loops->front();
  if (pack > 1 && loops->size() == 1 && only.step_a == 1 && only.step_b == 1 && only.size > pack) {
    const std::int64_t tail = only.size % pack;
    only.size -= tail;
    if (tail > 0) add_walks({{tail, 1, 1}}, false, 1, only.size, only.size, parts);
  }
  if (!pack_loops(*loops, pack)) return std::nullopt;
  add_walks(*std::move(loops), pack > 1, pack, 0, 0, parts);
  return parts;
}

}  // namespace cp::runtime
