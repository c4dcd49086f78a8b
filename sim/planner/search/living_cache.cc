#include "sim/planner/search/living_cache.h"

namespace cp::sim {

std::shared_ptr<const LivingBuffers> LivingCache::get(const StageLayers& layers, const Recompute& recompute) {
  const Key key{recompute.kind, recompute.every, {layers.homes.begin(), layers.homes.end()}};
  return known_.of(key, [&] { return std::make_shared<LivingBuffers>(living_buffers(layers, recompute)); });
}

}  // namespace cp::sim
