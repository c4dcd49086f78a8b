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
  const int groups = (layout.tp > 1) + (layout.cp > 1) + (training && layout.sharding_size() > 1) +
                     (layout.dp_replicate > 1 && training) + (layout.ep > 1) + (layout.pp > 1 ? 2 : 0) +
                     (layout.window_balance || layout.scan_balance ? 1 : 0);
  return rules.communicator_bytes * groups;
}

}  // namespace cp
