#include "shared/transformer/layer_loops.h"

#include <algorithm>

namespace cp {
namespace {

// Of every k layers the last one is computed again; what remains behind them keeps everything.
struct Pattern {
  std::int64_t count = 0;
  std::vector<bool> recomputed;  // by layer of the body
};

std::vector<Pattern> patterns(std::int64_t layers, const Recompute& recompute) {
  if (recompute.kind != Recompute::Kind::every) {
    return {{layers, {recompute.kind == Recompute::Kind::full}}};
  }
  std::vector<bool> body(static_cast<std::size_t>(recompute.every), false);
  body.back() = true;
  std::vector<Pattern> all{{layers / recompute.every, body}, {layers % recompute.every, {false}}};
  std::erase_if(all, [](const Pattern& pattern) { return pattern.count == 0; });
  return all;
}

// The same seen from the last iteration.
StackIndex reversed(StackIndex index, std::int64_t count) {
  return {index.first + (count - 1) * index.step, -index.step};
}

}  // namespace

std::vector<LayerLoop> forward_loops(std::int64_t layers, const Recompute& recompute) {
  std::vector<LayerLoop> loops;
  std::int64_t layer = 0, kept = 0;
  for (const Pattern& pattern : patterns(layers, recompute)) {
    const auto size = static_cast<std::int64_t>(pattern.recomputed.size());
    const std::int64_t keeps = std::count(pattern.recomputed.begin(), pattern.recomputed.end(), false);
    const bool repeats = pattern.count > 1;
    LayerLoop loop{pattern.count, {}};
    std::int64_t kept_here = kept;
    for (std::int64_t i = 0; i < size; ++i) {
      const StackIndex index{layer + i, repeats ? size : 0};
      const bool recomputed = pattern.recomputed[static_cast<std::size_t>(i)];
      loop.body.push_back({index, {kept_here, repeats ? keeps : 0}, index, recomputed});
      if (!recomputed) ++kept_here;
    }
    layer += pattern.count * size, kept += pattern.count * keeps;
    loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<LayerLoop> backward_loops(std::int64_t layers, const Recompute& recompute) {
  std::vector<LayerLoop> loops = forward_loops(layers, recompute);
  std::reverse(loops.begin(), loops.end());
  for (LayerLoop& loop : loops) {
    std::reverse(loop.body.begin(), loop.body.end());
    for (LayerPlace& place : loop.body) {
      place.layer = reversed(place.layer, loop.count);
      place.kept = reversed(place.kept, loop.count);
      place.turn = {layers - 1 - place.layer.first, -place.layer.step};
    }
  }
  return loops;
}

std::int64_t layers_that_keep(std::int64_t layers, const Recompute& recompute) {
  switch (recompute.kind) {
    case Recompute::Kind::full:
      return 0;
    case Recompute::Kind::every:
      return layers - layers / recompute.every;
    default:
      return layers;
  }
}

}  // namespace cp
