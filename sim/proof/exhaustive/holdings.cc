#include "sim/proof/exhaustive/holdings.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shared/base/error.h"

namespace cp::sim {

namespace {

// The elements that the rank holds, in the row-major order of its shard.
std::vector<std::int32_t> elements_of(const Layout& layout, Rank rank) {
  std::vector<std::int32_t> elements = {0};
  for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) {
    const IndexSet set = indices(layout, static_cast<int>(dim), rank);
    std::vector<std::int32_t> longer;
    for (const std::int32_t outer : elements) {
      for (const Run& run : set) {
        for (std::int64_t block = 0; block < run.count; ++block) {
          for (std::int64_t i = 0; i < run.run; ++i) {
            const std::int64_t index = run.begin + block * run.stride + i;
            longer.push_back(static_cast<std::int32_t>(outer * layout.shape[dim] + index));
          }
        }
      }
    }
    elements = std::move(longer);
  }
  return elements;
}

}  // namespace

Holdings::Holdings(const Layout& layout) {
  const std::int64_t num_elements = numel(layout.shape);
  if (num_elements > kMaxElements) {
    throw InvalidInput(str("a tensor of ", num_elements,
                           " elements is too large to be searched exhaustively; use at most ", kMaxElements));
  }
  box_of_element.assign(static_cast<std::size_t>(num_elements), -1);
  place_of_element.assign(static_cast<std::size_t>(num_elements), -1);

  for (const int axis : cp::partial_axes(layout)) {
    if (layout.mesh.axis_size(axis) > 1) partial_axes.push_back(axis);
  }
  for (const int axis : partial_axes) num_contributions *= layout.mesh.axis_size(axis);

  std::map<std::vector<std::int32_t>, std::int32_t> known;
  for (const Rank rank : layout.mesh.ranks()) {
    const auto [entry, is_new] =
        known.try_emplace(elements_of(layout, rank), static_cast<std::int32_t>(boxes.size()));
    const std::int32_t box = entry->second;
    box_of_rank.push_back(box);
    if (is_new) {
      boxes.push_back(entry->first);
      for (std::size_t place = 0; place < entry->first.size(); ++place) {
        const std::size_t element = static_cast<std::size_t>(entry->first[place]);
        CP_INVARIANT(box_of_element[element] < 0, "two shards of ", to_string(layout), " hold element ",
                     element);
        box_of_element[element] = box;
        place_of_element[element] = static_cast<std::int32_t>(place);
      }
    }
    std::int32_t contribution = 0;
    for (const int axis : partial_axes) {
      contribution = contribution * layout.mesh.axis_size(axis) + layout.mesh.coordinate(rank, axis);
    }
    contribution_of_rank.push_back(contribution);
  }
  CP_INVARIANT(std::find(box_of_element.begin(), box_of_element.end(), -1) == box_of_element.end(),
               "nobody holds some element of ", to_string(layout));
}

std::int64_t Holdings::max_size() const {
  std::size_t size = 0;
  for (const std::vector<std::int32_t>& box : boxes) size = std::max(size, box.size());
  return static_cast<std::int64_t>(size);
}

}  // namespace cp::sim
