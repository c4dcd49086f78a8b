#include "shared/context_parallel/part_pool.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp::detail {
namespace {

bool meet_in(Range a, Range b) { return a.begin < b.begin + b.len && b.begin < a.begin + a.len; }

}  // namespace

bool PartPool::is_ready(const Layer& layer, Range elements, std::int64_t parts) const {
  return std::none_of(layer.areas.begin(), layer.areas.end(), [&](const Area& area) {
    return meet_in(area.elements, elements) && (area.taken || area.given_back == parts);
  });
}

PartPool::Place PartPool::take(const std::string& name, DType dtype, Range elements) {
  if (!in_layers_) return {builder_.temporary(name, dtype, elements.len), 0};
  Layers& layers = layers_[{name, dtype}];
  auto layer = std::find_if(layers.all.begin(), layers.all.end(),
                            [&](const Layer& one) { return is_ready(one, elements, layers.parts); });
  const std::int64_t end = elements.begin + elements.len;
  if (layer == layers.all.end()) layer = layers.all.insert(layer, {builder_.temporary(name, dtype, end), {}});
  builder_.grow(layer->buffer, end);
  // What lay here before is over with the merge that the new part waits for.
  std::erase_if(layer->areas, [&](const Area& area) { return meet_in(area.elements, elements); });
  layer->areas.push_back({elements, ++parts_});
  ++layers.parts;
  return {layer->buffer, elements.begin, parts_};
}

void PartPool::give_back(const Place& place) {
  if (!in_layers_) return;
  for (auto& [name, layers] : layers_) {
    for (Layer& layer : layers.all) {
      if (layer.buffer != place.buffer) continue;
      const auto area = std::find_if(layer.areas.begin(), layer.areas.end(),
                                     [&](const Area& one) { return one.number == place.number; });
      CP_INVARIANT(area != layer.areas.end() && area->taken, "the part ", place.number, " of ", name.first,
                   " has no place any more");
      area->taken = false, area->given_back = layers.parts;
      return;
    }
  }
}

}  // namespace cp::detail
