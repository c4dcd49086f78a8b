// LayerLoops: the order in which a pass visits the layers of a stage, as bodies of Repeats, and where each
// layer's things lie.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/fully_shard/stack.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

// A layer of a body, in the iterations of its Repeat.
struct LayerPlace {
  StackIndex layer;         // of the stage
  StackIndex kept;          // among the layers that keep what the backward pass needs
  StackIndex turn;          // how many layers this pass has visited before
  bool recomputed = false;  // keeps nothing but its input

  StackIndex next_layer() const { return {layer.first + 1, layer.step}; }
};

struct LayerLoop {
  std::int64_t count = 1;
  std::vector<LayerPlace> body;
};

std::vector<LayerLoop> forward_loops(std::int64_t layers, const Recompute& recompute);
// From the last layer to the first.
std::vector<LayerLoop> backward_loops(std::int64_t layers, const Recompute& recompute);
// Layers that keep more than their input.
std::int64_t layers_that_keep(std::int64_t layers, const Recompute& recompute);

}  // namespace cp
