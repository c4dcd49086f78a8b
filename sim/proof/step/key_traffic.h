// What context parallelism moves in each layer: the keys, values and queries that attention takes from other
// ranks. It is read from the plans: every element that a collective over cp ranks brings is followed through
// copies, casts and products to the attention steps, and counts once one of their slices sees it. What
// arrives and is never looked at does not count, nor does what a closed form says should arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/transformer/step_plan.h"

namespace cp::sim {

// One kind of collective in the attention of a layer, forward, in one micro-batch.
struct KeyMove {
  std::string operation;                 // "exchange", "all_gather", "all_to_all"
  std::string group;                     // "ring", "ulysses", ...: its name in the plans, of the axis cp
  std::vector<std::vector<Rank>> ranks;  // of each group of that name
  // Received by all ranks together, in bytes: of keys and values (or latent rows, of which they are made),
  // and of queries.
  std::int64_t kv_bytes = 0, q_bytes = 0;
  bool operator==(const KeyMove&) const = default;
};
struct LayerTraffic {
  std::int64_t layer = 0;  // of the model, prediction layers behind the others
  std::vector<KeyMove> moves;
};

// The layers with attention, ascending. plans(part, stage) are those of all ranks that hold the stage. Throws
// InvalidInput if the phase is not training.
std::vector<LayerTraffic> key_traffic(
    const StepRequest& request, const std::function<std::vector<Plan>(StepPart part, int stage)>& plans);

}  // namespace cp::sim
