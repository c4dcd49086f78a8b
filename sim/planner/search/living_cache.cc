#include "sim/planner/search/living_cache.h"

namespace cp::sim {

std::shared_ptr<const LivingBuffers> LivingCache::get(const StageLayers& layers, const Recompute& recompute) {
  Key key{recompute.kind, recompute.every, {layers.homes.begin(), layers.homes.end()}};
  const std::lock_guard lock(mutex_);
  for (const auto& [of, living] : known_) {
    if (of == key) return living;
  }
  return known_
      .emplace_back(std::move(key), std::make_shared<LivingBuffers>(living_buffers(layers, recompute)))
      .second;
}

}  // namespace cp::sim
