// Which buffers live while a layer goes back, in the micro-batch of a model that is one stage: slots of whole
// parameters and of gradients (shared/fully_shard/unshard_writer.h), and stacks of what is kept for the
// backward pass (activations.h).
//
// Layers with the same parts share slots, as all experts do, and layers that have something share its stack.
// The temporaries of a Repeat's body live where they are used; what several segments of a plan use lives from
// the first of these to the last one (shared/plan/lives.h). For example, in 61 layers of which the first
// three are dense, the stacks of experts are gone when those three go back; but the slots of 52 layers whose
// pattern of recurrences and MLPs changes several times live all at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shared/transformer/layer_loops.h"

namespace cp {

// Units whose pieces have slots, as bits: that of a layer without its experts by its parts, and that of all
// experts.
using UnitSet = std::uint32_t;
UnitSet unit_of(LayerParts parts);
inline constexpr UnitSet kExpertUnit = UnitSet{1} << kLayerParts.size();
// Stacks of what the layers that have something keep of it, at a home.
using StackSet = std::uint32_t;
StackSet stack_of(Having what, int home);

struct LivingBuffers {
  // While one segment of the plan goes back: what lives in the whole of it.
  struct Moment {
    UnitSet gathered = 0, reduced = 0;  // whose parameters are whole, and whose gradients are made
    StackSet kept = 0;
    bool operator==(const Moment&) const = default;
  };
  // Of the segments that have layers with these parts, each different one once.
  ByParts<std::vector<Moment>> at;
};
LivingBuffers living_buffers(const StageLayers& layers, const Recompute& recompute);

// living_buffers(), or somebody who keeps what has been asked for.
using LivingBuffersOf = std::function<std::shared_ptr<const LivingBuffers>(const StageLayers& layers,
                                                                           const Recompute& recompute)>;

}  // namespace cp
