// Keeps what lives when in a model's layers (shared/transformer/living_buffers.h): a search asks for the
// least memory of millions of layouts, whose layers go back in a few ways.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "shared/transformer/living_buffers.h"
#include "sim/base/memo.h"

namespace cp::sim {

class LivingCache {
 public:
  // The kinds of the layers are the same in all questions. Several threads may ask.
  std::shared_ptr<const LivingBuffers> get(const StageLayers& layers, const Recompute& recompute);

 private:
  // What patterns of layers depend on: what is computed again, and homes.
  using Key = std::tuple<Recompute::Kind, int, std::vector<int>>;

  Memo<Key, std::shared_ptr<const LivingBuffers>> known_;
};

}  // namespace cp::sim
