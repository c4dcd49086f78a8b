// The memory of all ranks in the shadow: a tag for each granule of each buffer.
//
// A granule is the greatest number of neighbouring elements that all steps treat alike, so that one tag
// stands for all of them: as a rule a row of head_dim elements. It is found for buffers together that
// exchange data, so that what moves, moves in whole granules.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/proof/ledger/tags.h"

namespace cp::sim {

class ShadowMemory {
 public:
  // The plans have passed check(). All memory is unwritten. `row_of(plan, buffer)`: how many elements of a
  // buffer make a row, which is whole granules; 0 where it does not matter.
  ShadowMemory(std::span<const Plan> plans, const std::function<std::int64_t(std::size_t, BufferId)>& row_of);

  // Elements that a tag stands for. `plan` is a position among the plans.
  std::int64_t granule(std::size_t plan, BufferId buffer) const { return place(plan, buffer).granule; }

  // The tags of a view in the given iteration, in row-major order, one for each granule.
  void read(std::size_t plan, const View& view, std::int64_t iteration, std::vector<Tag>& tags) const;
  void write(std::size_t plan, const View& view, std::int64_t iteration, std::span<const Tag> tags);
  void fill(std::size_t plan, const View& view, std::int64_t iteration, const Tag& tag);

  // All tags of a buffer.
  std::span<Tag> tags(std::size_t plan, BufferId buffer) { return place(plan, buffer).tags; }
  std::span<const Tag> tags(std::size_t plan, BufferId buffer) const { return place(plan, buffer).tags; }

 private:
  struct Place {
    std::int64_t granule = 1;
    std::vector<Tag> tags;
  };
  const Place& place(std::size_t plan, BufferId buffer) const {
    return places_[first_[plan] + static_cast<std::size_t>(buffer)];
  }
  Place& place(std::size_t plan, BufferId buffer) {
    return places_[first_[plan] + static_cast<std::size_t>(buffer)];
  }

  std::vector<std::size_t> first_;  // by plan: its first buffer in places_
  std::vector<Place> places_;
};

}  // namespace cp::sim
