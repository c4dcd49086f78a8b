// Walks strided views without computing the place of each element: views are reduced to a few long inner
// runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

// One loop of a nest over two views: how often it runs, and how far each view moves, in elements.
struct Loop {
  std::int64_t size = 0, step_a = 0, step_b = 0;
  bool operator==(const Loop&) const = default;
};

// The shortest nest of loops (outermost first, at least one) that walks both views in row-major order. The
// shapes may differ, but not the numbers of elements. Nothing if no common nest exists, as for strided [2, 3]
// against strided [3, 2].
std::optional<std::vector<Loop>> common_loops(const View& a, const View& b);

// A position in one strided view, which moves on in runs of the innermost dimension.
class Cursor {
 public:
  explicit Cursor(const View& view);
  std::int64_t offset() const { return offset_; }
  std::int64_t step() const { return dims_.back().step_a; }
  std::int64_t left_in_run() const { return dims_.back().size - index_.back(); }
  void advance(std::int64_t elements);  // at most left_in_run()

 private:
  std::vector<Loop> dims_;
  std::vector<std::int64_t> index_;
  std::int64_t offset_ = 0;
};

// Calls run(offset_a, step_a, offset_b, step_b, n) for stretches of n elements that cover both views in
// row-major order. Offsets and steps count elements; offsets begin at the views' first elements.
template <class F>
void for_each_run(const std::vector<Loop>& loops, F&& run) {
  const std::size_t depth = loops.size();
  const Loop inner = loops[depth - 1];
  const Loop middle = depth > 1 ? loops[depth - 2] : Loop{1, 0, 0};
  std::vector<std::int64_t> index(depth, 0);
  std::int64_t a = 0, b = 0;
  while (true) {
    for (std::int64_t m = 0; m < middle.size; ++m) {
      run(a + m * middle.step_a, inner.step_a, b + m * middle.step_b, inner.step_b, inner.size);
    }
    std::size_t d = depth > 2 ? depth - 2 : 0;
    for (; d > 0; --d) {
      const Loop& loop = loops[d - 1];
      a += loop.step_a;
      b += loop.step_b;
      if (++index[d - 1] < loop.size) break;
      a -= loop.step_a * loop.size;
      b -= loop.step_b * loop.size;
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

template <class F>
void for_each_run(const View& a, const View& b, F&& run) {
  if (a.numel() == 0) return;
  if (const auto loops = common_loops(a, b)) {
    for_each_run(*loops, std::forward<F>(run));
    return;
  }
  Cursor in_a(a), in_b(b);
  for (std::int64_t left = a.numel(); left > 0;) {
    const std::int64_t n = std::min(in_a.left_in_run(), in_b.left_in_run());
    run(in_a.offset(), in_a.step(), in_b.offset(), in_b.step(), n);
    in_a.advance(n);
    in_b.advance(n);
    left -= n;
  }
}

}  // namespace cp
