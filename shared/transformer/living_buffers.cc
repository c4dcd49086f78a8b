#include "shared/transformer/living_buffers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "shared/base/index.h"

namespace cp {
namespace {

// Layers that stand in one segment of a plan: those of a Repeat's body, or one layer alone.
struct Stretch {
  bool repeats = false;
  std::vector<LayerPlace> layers;
};

std::vector<Stretch> stretches_of(const StageLayers& layers, const Recompute& recompute) {
  std::vector<Stretch> stretches;
  for (const LayerLoop& loop : forward_loops(layers, recompute)) {
    const bool repeats = loop.count > 1;
    if (repeats) stretches.push_back({true, {}});
    for (const LayerPlace& place : loop.body) {
      if (!repeats) stretches.push_back({false, {}});
      stretches.back().layers.push_back(place);
    }
  }
  return stretches;
}

UnitSet units_of(const LayerPlace& place) {
  return unit_of(place.parts) | (place.parts.mlp == Mlp::experts ? kExpertUnit : UnitSet{0});
}

StackSet stacks_of(const LayerPlace& place) {
  StackSet stacks = 0;
  if (place.recomputed) return stacks;
  for (const Having what : kHaving) stacks |= have(place.parts, what) ? stack_of(what, place.home) : 0;
  return stacks;
}

// Where the bits of a set are used for the first time in the forward pass, and for the last time.
struct Uses {
  std::array<std::optional<std::size_t>, 32> first, last;

  void add(std::uint32_t set, std::size_t stretch) {
    for (std::size_t bit = 0; bit < first.size(); ++bit) {
      if ((set >> bit & 1) == 0) continue;
      if (!first[bit]) first[bit] = stretch;
      last[bit] = stretch;
    }
  }
};

}  // namespace

UnitSet unit_of(LayerParts parts) {
  return UnitSet{1} << (std::find(kLayerParts.begin(), kLayerParts.end(), parts) - kLayerParts.begin());
}

StackSet stack_of(Having what, int home) {
  return StackSet{1} << (static_cast<std::size_t>(what) + kHaving.size() * idx(home));
}

LivingBuffers living_buffers(const StageLayers& layers, const Recompute& recompute) {
  const std::vector<Stretch> stretches = stretches_of(layers, recompute);
  Uses units, stacks;
  for (std::size_t stretch = 0; stretch < stretches.size(); ++stretch) {
    for (const LayerPlace& place : stretches[stretch].layers)
      units.add(units_of(place), stretch), stacks.add(stacks_of(place), stretch);
  }
  LivingBuffers living;
  for (std::size_t stretch = 0; stretch < stretches.size(); ++stretch) {
    // The backward pass begins with the last stretch. What ends, or begins, in a layer that is alone does so
    // on its way.
    const bool repeats = stretches[stretch].repeats;
    LivingBuffers::Moment moment;
    for (std::size_t bit = 0; bit < units.first.size(); ++bit) {
      const std::uint32_t set = std::uint32_t{1} << bit;
      if (const auto first = units.first[bit], last = units.last[bit]; first && *first <= stretch) {
        // The forward pass has gathered to the same slots.
        moment.gathered |= set;
        const bool has_begun = stretch < *last || (stretch == *last && repeats);
        if (*first < *last && has_begun) moment.reduced |= set;
      }
      if (const auto first = stacks.first[bit]; first && (*first < stretch || (*first == stretch && repeats)))
        moment.kept |= set;
    }
    for (const LayerPlace& place : stretches[stretch].layers) {
      std::vector<LivingBuffers::Moment>& moments = living.at[place.parts];
      if (std::find(moments.begin(), moments.end(), moment) == moments.end()) moments.push_back(moment);
    }
  }
  return living;
}

}  // namespace cp
