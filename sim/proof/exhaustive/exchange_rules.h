// Who sends what to whom in an exchange or a reduce_exchange: the rules under "What travels" of
// shared/redistribute/redistribution.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/proof/exhaustive/move_costs.h"

namespace cp::sim {

// One piece on its way. Ranks are places in the MeshPair; sizes in elements.
struct Delivery {
  std::size_t from = 0, to = 0;
  std::int64_t size = 0;
  bool contiguous_in_old = true, contiguous_in_new = true;
  std::int32_t old_box = -1, new_box = -1;
};

struct Deliveries {
  std::vector<Delivery> all;
  std::vector<std::int64_t> kept;  // by place: what a rank needs and has
};

// `group`: the axes of from's mesh that receivers and senders may differ in; nothing: all of them.
Deliveries deliveries(const Written& from, const Written& to, const MeshPair& world,
                      const std::vector<int>& group = {});

}  // namespace cp::sim
