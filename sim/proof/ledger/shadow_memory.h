// The memory of all ranks in the shadow run: a tag for each granule of each buffer.
//
// A granule is the greatest number of neighbouring elements that all steps treat alike, so that one tag
// stands for all of them. As a rule it is a row of head_dim elements. It is found for buffers together that
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
  // All memory is unwritten at first. The plans must have passed check(). row_of(plan, buffer) says how many
  // elements of a buffer make a row, which is whole granules; 0 if it does not matter. Plans and buffers are
  // given by their positions.
  ShadowMemory(std::span<const Plan> plans, const std::function<std::int64_t(std::size_t, BufferId)>& row_of);

  // The number of elements that a tag of this buffer stands for. `plan` is a position among the plans.
  std::int64_t granule(std::size_t plan, BufferId buffer) const { return place(plan, buffer).granule; }

  // Reads, or writes, the tags of a view in the given iteration, in row-major order, one for each granule.
  // fill() gives all of them one tag.
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
