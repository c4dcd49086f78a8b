// Random layouts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/text.h"
#include "shared/placement/layout.h"
#include "tests/placement/index_set_generator.h"
#include "tests/placement/split_generator.h"
#include "tests/support/any_case.h"

namespace cp {

using sim::indices_by_elements;

// 1 to 3 axes of sizes 1 to 4 over ranks in random order.
inline Mesh random_mesh() {
  return pick_case("mesh", [] {
    std::vector<MeshAxis> axes;
    int size = 1;
    for (int i = 0, n = *rc::gen::inRange(1, 4); i < n; ++i) {
      axes.push_back({str("axis", i), *rc::gen::inRange(1, 5)});
      size *= axes.back().size;
    }
    std::vector<Rank> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), *rc::gen::inRange(0, 3));
    for (std::size_t i = ranks.size(); i > 1; --i)
      std::swap(ranks[i - 1], ranks[*rc::gen::inRange<std::size_t>(0, i)]);
    return Mesh(std::move(axes), std::move(ranks));
  });
}

// A split for `parts` of a dimension of which earlier axes left one of `lists`; narrows the lists to its
// parts.
inline Split random_nested_split(std::vector<Indices>& lists, std::int64_t dim_size, int parts) {
  std::set<std::size_t> lengths;
  for (const Indices& list : lists) lengths.insert(list.size());
  Split split = random_split(lists.front(), dim_size, parts);
  // No sizes fit all lists; those of documents fit one.
  const bool is_one =
      lists.size() == 1 || (lengths.size() == 1 && !std::holds_alternative<PerSequence>(split));
  if (!is_one && fits_one_length(split)) split = Balanced{};
  std::vector<Indices> narrowed;
  for (const Indices& list : lists) {
    for (int i = 0; i < parts; ++i) narrowed.push_back(split_elements(split, list, parts, i));
  }
  lists = std::move(narrowed);
  return split;
}

// Any placements, splits and orders of axes that are legal.
inline Layout random_layout() {
  return pick_case("layout", [] {
    Mesh mesh = random_mesh();
    Shape shape;
    for (int i = 0, n = *rc::gen::inRange(1, 4); i < n; ++i)
      shape.push_back(*rc::gen::inRange<std::int64_t>(0, 22));
    const std::size_t num_axes = mesh.axes().size();
    std::vector<Placement> placements(num_axes, Replicate{});
    std::vector<std::vector<int>> order(shape.size());
    const ReduceOp op = *rc::gen::element(ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product);
    for (std::size_t axis = 0; axis < num_axes; ++axis) {
      const int kind = *rc::gen::inRange(0, 6);
      if (kind == 0) continue;
      if (kind == 1) {
        placements[axis] = Partial{op};
        continue;
      }
      const auto dim = *rc::gen::inRange<std::size_t>(0, shape.size());
      placements[axis] = Shard{static_cast<int>(dim), Chunked{}};
      const auto at =
          *rc::gen::inRange<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(order[dim].size()) + 1);
      order[dim].insert(order[dim].begin() + at, static_cast<int>(axis));
    }
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<Indices> lists(1, Indices(static_cast<std::size_t>(shape[dim])));
      std::iota(lists.front().begin(), lists.front().end(), 0);
      for (const int axis : order[dim]) {
        std::get<Shard>(placements[static_cast<std::size_t>(axis)]).split =
            random_nested_split(lists, shape[dim], mesh.axis_size(axis));
      }
    }
    return make_layout(std::move(mesh), std::move(placements), std::move(shape), DType::f32,
                       std::move(order));
  });
}

}  // namespace cp
