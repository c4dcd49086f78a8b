#include "shared/transformer/layer_loops.h"

#include <algorithm>

#include "shared/base/index.h"

namespace cp {
namespace {

// What makes the steps of two layers differ.
struct Traits {
  int kind = 0;
  bool recomputed = false;
  bool operator==(const Traits&) const = default;
};
struct Pattern {
  std::int64_t count = 0;
  std::vector<Traits> body;
};

// The least number b so that all entries equal those b places before them: that of "abababa" is 2.
template <class T>
std::int64_t least_period(std::span<const T> all) {
  const auto size = static_cast<std::int64_t>(all.size());
  std::int64_t period = 1;
  while (period < size && !std::equal(all.begin() + period, all.end(), all.begin())) ++period;
  return period;
}

// How many of the first layers are a whole number of repetitions of their kinds, of at least two where there
// are any: as many as can be.
std::int64_t repeating_layers(std::span<const int> kinds) {
  const auto size = static_cast<std::int64_t>(kinds.size());
  std::int64_t most = 1;
  for (std::int64_t period = 1; most < size && 2 * period <= size; ++period) {
    std::int64_t end = period;
    while (end < size && kinds[idx(end)] == kinds[idx(end - period)]) ++end;
    if (end >= 2 * period) most = std::max(most, end / period * period);
  }
  return most;
}

// Of every k layers the last one is computed again; what remains behind them keeps everything.
bool is_recomputed(std::int64_t layer, const Recompute& recompute) {
  if (recompute.kind == Recompute::Kind::every) return layer % recompute.every == recompute.every - 1;
  return recompute.kind == Recompute::Kind::full;
}

std::vector<Pattern> patterns(std::span<const int> kinds, const Recompute& recompute) {
  std::vector<Traits> layers;
  for (const int kind : kinds)
    layers.push_back({kind, is_recomputed(static_cast<std::int64_t>(layers.size()), recompute)});
  std::vector<Pattern> all;
  std::span<const Traits> rest = layers;
  while (!rest.empty()) {
    // Of those whose kinds repeat, what repeats as a whole; then what remains of them, and so on.
    const std::int64_t alike = repeating_layers(kinds.subspan(layers.size() - rest.size()));
    std::span<const Traits> segment = rest.first(idx(alike));
    while (!segment.empty()) {
      const std::int64_t period = least_period(segment),
                         count = static_cast<std::int64_t>(segment.size()) / period;
      all.push_back({count, {segment.begin(), segment.begin() + period}});
      segment = segment.subspan(idx(count * period));
    }
    rest = rest.subspan(idx(alike));
  }
  return all;
}

// The same seen from the last iteration.
StackIndex reversed(StackIndex index, std::int64_t count) {
  return {index.first + (count - 1) * index.step, -index.step};
}

}  // namespace

std::vector<LayerLoop> forward_loops(std::span<const int> kinds, const Recompute& recompute) {
  std::vector<LayerLoop> loops;
  std::int64_t layer = 0, kept = 0;
  std::vector<std::int64_t> before(kinds.empty() ? 0
                                                 : idx(1 + *std::max_element(kinds.begin(), kinds.end())));
  for (const Pattern& pattern : patterns(kinds, recompute)) {
    const auto size = static_cast<std::int64_t>(pattern.body.size());
    const std::int64_t keeps = std::count_if(pattern.body.begin(), pattern.body.end(),
                                             [](const Traits& traits) { return !traits.recomputed; });
    const bool repeats = pattern.count > 1;
    LayerLoop loop{pattern.count, {}};
    const auto of_kind = [&](int kind, std::int64_t end) {
      return std::count_if(pattern.body.begin(), pattern.body.begin() + end,
                           [&](const Traits& traits) { return traits.kind == kind; });
    };
    std::int64_t kept_here = kept;
    for (std::int64_t i = 0; i < size; ++i) {
      const StackIndex index{layer + i, repeats ? size : 0};
      const auto [kind, recomputed] = pattern.body[idx(i)];
      const StackIndex among_its_kind{before[idx(kind)] + of_kind(kind, i),
                                      repeats ? of_kind(kind, size) : 0};
      loop.body.push_back({index, {kept_here, repeats ? keeps : 0}, among_its_kind, index, recomputed, kind});
      if (!recomputed) ++kept_here;
    }
    layer += pattern.count * size, kept += pattern.count * keeps;
    for (const Traits& traits : pattern.body) before[idx(traits.kind)] += pattern.count;
    loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<LayerLoop> backward_loops(std::span<const int> kinds, const Recompute& recompute) {
  std::vector<LayerLoop> loops = forward_loops(kinds, recompute);
  const auto layers = static_cast<std::int64_t>(kinds.size());
  std::reverse(loops.begin(), loops.end());
  for (LayerLoop& loop : loops) {
    std::reverse(loop.body.begin(), loop.body.end());
    for (LayerPlace& place : loop.body) {
      place.layer = reversed(place.layer, loop.count);
      place.kept = reversed(place.kept, loop.count);
      place.of_kind = reversed(place.of_kind, loop.count);
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
