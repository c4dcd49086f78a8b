// Says who sends what to whom in an exchange or a reduce_exchange, by the rules under "What travels" of
// shared/redistribute/redistribution.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/proof/exhaustive/move_costs.h"

namespace cp::sim {

// One piece on its way from one rank to another. Ranks are places in the MeshPair, boxes are numbers in
// Holdings::boxes, and sizes are counted in elements.
struct Delivery {
  std::size_t from = 0, to = 0;
  std::int64_t size = 0;
  bool contiguous_in_old = true, contiguous_in_new = true;
  std::int32_t old_box = -1, new_box = -1;
};

struct Deliveries {
  std::vector<Delivery> all;
  std::vector<std::int64_t> kept;  // by place: the elements that a rank needs and already has
};

// All pieces that travel from the one layout to the other. `group` has the axes of from's mesh in which a
// sender and its receiver may differ; if it is empty, they may differ in all of them.
Deliveries deliveries(const Written& from, const Written& to, const MeshPair& world,
                      const std::vector<int>& group = {});

}  // namespace cp::sim
