// Random views and values for tests of kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "shared/plan/plan.h"

namespace cp::testing {

constexpr double kRounding = 0x1p-24;  // of one operation in f32

// Half a unit in the last place of a value that is stored.
inline double half_ulp(DType dtype, double value) {
  switch (dtype) {
    case DType::f16:
      return std::max(0x1p-11 * std::abs(value), 0x1p-25);
    case DType::bf16:
      return 0x1p-8 * std::abs(value);
    default:
      return kRounding * std::abs(value);
  }
}

// Equally likely from the first case on, both ends included.
template <class Int>
Int pick(Int least, Int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<Int>(least, static_cast<Int>(most + 1)));
}
template <class T>
T any_of(const std::vector<T>& values) {
  return values[pick<std::size_t>(0, values.size() - 1)];
}
inline bool coin() { return pick(0, 1) == 1; }

inline DType any_dtype() {
  return any_of<DType>({DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64});
}
inline DType any_floating() { return any_of<DType>({DType::f32, DType::f16, DType::bf16}); }

// Sizes around the widths of accesses and tiles; few elements in all.
inline Shape any_shape(std::int64_t most_elements = 6000) {
  Shape shape;
  std::int64_t numel = 1;
  for (int dims = pick(0, 5); dims > 0; --dims) {
    const std::int64_t size =
        any_of<std::int64_t>({0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 32, 33, 64, 65, 1030});
    if (size == 0 && pick(0, 3) > 0) continue;
    if (numel * std::max<std::int64_t>(size, 1) > most_elements) continue;
    numel *= std::max<std::int64_t>(size, 1);
    shape.push_back(size);
  }
  return shape;
}

// The same number of elements in other dimensions.
inline Shape reshaped(const Shape& shape) {
  const std::int64_t count = numel(shape);
  switch (pick(0, 3)) {
    case 0:
      return {count};
    case 1: {
      Shape made = {1};
      std::int64_t rest = count;
      for (const std::int64_t factor : {2, 3, 5, 2, 7}) {
        if (rest > 0 && rest % factor == 0) made.push_back(factor), rest /= factor;
      }
      made.push_back(rest);
      return made;
    }
    default:
      return shape;
  }
}

// Dimensions in any order in memory, with or without gaps; sometimes aligned, as real tensors are.
inline View any_view(BufferId buffer, const Shape& shape, bool written) {
  const std::int64_t unit = any_of<std::int64_t>({1, 1, 8, 8, 2});
  View view{buffer, pick<std::int64_t>(0, 4) * unit, shape, Shape(shape.size()), {}};
  std::vector<std::size_t> order(shape.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (coin() && !order.empty()) std::swap(order[0], order[pick<std::size_t>(0, order.size() - 1)]);
  std::int64_t stride = pick(0, 3) == 0 ? 2 : 1;
  for (const std::size_t dim : order) {
    view.strides[dim] = stride;
    stride *= std::max<std::int64_t>(shape[dim], 1);
    if (pick(0, 3) == 0) stride = (stride / unit + pick<std::int64_t>(1, 2)) * unit;
  }
  if (!written && !shape.empty() && pick(0, 5) == 0) {
    view.strides[pick<std::size_t>(0, shape.size() - 1)] = 0;
  }
  return view;
}

// Elements that a buffer needs to hold the view, and some more.
inline std::int64_t extent_of(const View& view) {
  std::int64_t last = view.offset;
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    last += std::max<std::int64_t>(view.shape[dim] - 1, 0) * view.strides[dim];
  }
  return last + 3;
}

}  // namespace cp::testing
