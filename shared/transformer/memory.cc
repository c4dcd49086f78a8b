#include "shared/transformer/memory.h"

namespace cp {

std::array<std::pair<std::string_view, std::int64_t>, 14> terms(const Memory& memory) {
  return {{{"parameters", memory.parameters},
           {"master copies", memory.master},
           {"gradients", memory.gradients},
           {"optimizer", memory.optimizer},
           {"gathered", memory.gathered},
           {"unsharded", memory.unsharded},
           {"activations", memory.activations},
           {"working", memory.working},
           {"logits", memory.logits},
           {"attention", memory.attention},
           {"kv cache", memory.kv_cache},
           {"communicators", memory.communicators},
           {"context", memory.context},
           {"slack", memory.slack}}};
}

std::int64_t communicator_bytes(const Workload& workload, const ParallelLayout& layout,
                                const MemoryRules& rules) {
  const bool training = workload.phase == Phase::training;
  // Of a pipeline: with the rank before and with the one behind, which may be the same for all of its stages;
  // in training for rows and for gradients.
  const int neighbours = layout.pp == 1 ? 0 : layout.pp == 2 && layout.virtual_stages == 1 ? 1 : 2;
  const int groups = (layout.tp > 1) + (layout.cp > 1) + (training && layout.sharding_size() > 1) +
                     (layout.dp_replicate > 1 && training) + (layout.ep > 1) +
                     neighbours * (training ? 2 : 1) + (layout.window_balance || layout.scan_balance ? 1 : 0);
  return rules.communicator_bytes * groups;
}

}  // namespace cp
