// The order in which a pass visits the layers of a stage, as bodies of Repeats, and where each layer's data
// is stored.
//
// A plan does not list every layer: equal layers are the iterations of a Repeat. For example, 8 layers with
// recompute=every:4 are a Repeat of 2 iterations with a body of 4 layers, of which one is recomputed. Layers
// of several kinds are a body as long as their pattern: 26 layers, of which every sixth has another kind, are
// a Repeat of 4 iterations with a body of 6, and one of 2 with a body of 1. What makes layers differ is also
// where their rows are at home, and where these go behind them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/fully_shard/stack.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

// What some layers have and others do not, and so keep for the backward pass. Behind `both` there is a value
// for each mixer, having(mixer), of which attention's has a name.
enum class Having : std::uint8_t { anything, mixer, mlp, dense, experts, both, attention };
constexpr Having having(Mixer mixer) {
  return static_cast<Having>(static_cast<std::size_t>(Having::attention) + static_cast<std::size_t>(mixer));
}
inline constexpr auto kHaving = [] {
  std::array<Having, static_cast<std::size_t>(having(Mixer::none))> all;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Having>(i);
  return all;
}();
bool have(LayerParts parts, Having what);
std::int64_t count_of(const ByParts<std::int64_t>& layers, Having what);

// One layer of a body. Each index advances with the iterations of the Repeat (see StackIndex).
struct LayerPlace {
  StackIndex layer;     // which layer of the stage
  StackIndex input;     // which among the layers at its home
  StackIndex output;    // which among those at next_home the layer is that is handed its rows
  StackIndex of_kind;   // which among the layers of its kind
  StackIndex of_parts;  // which among the layers with its parts
  StackIndex of_mlp;    // which among the layers with its MLP
  StackIndex turn;      // how many layers with its parts this pass has visited before
  StackIndex mlp_turn;  // how many layers with its MLP
  // Which among the layers at its home that have something, and keep more than their input.
  std::array<StackIndex, kHaving.size()> kept;
  int kind = 0;       // of the model's kinds
  int home = 0;       // where its rows are (homes_of_layers())
  int next_home = 0;  // where those of the layer behind it are; of the last layer, where it hands them on
  LayerParts parts;
  bool recomputed = false;  // keeps only its input

  StackIndex kept_with(Having what) const { return kept[static_cast<std::size_t>(what)]; }
};

struct LayerLoop {
  std::int64_t count = 1;
  std::vector<LayerPlace> body;
};

// The layers of a stage: the kind of each, the parts of each of the model's kinds, and where the layers, and
// what is behind them, have their rows (homes_of_stage()); no homes: all at one.
struct StageLayers {
  std::span<const int> kinds;
  std::span<const LayerParts> parts_of_kinds;
  std::span<const int> homes = {};
  // So many layers with the same parts, one behind the other, are gathered and reduced at once, and so many
  // layers' experts (ShardedUnit::bucket). Bodies have whole buckets.
  std::int64_t bucket = 1;

  LayerParts parts(std::int64_t layer) const { return parts_of_kinds[idx(kinds[idx(layer)])]; }
  // Of a layer, or behind the last one.
  int home(std::int64_t layer) const { return homes.empty() ? 0 : homes[idx(layer)]; }
};
std::vector<LayerLoop> forward_loops(const StageLayers& layers, const Recompute& recompute);
// From the last layer to the first.
std::vector<LayerLoop> backward_loops(const StageLayers& layers, const Recompute& recompute);
// Whether a layer of a stage keeps its input alone, and is computed again before its backward pass.
bool is_recomputed(std::int64_t layer, const Recompute& recompute);
// The number of layers that keep more than their input.
std::int64_t layers_that_keep(std::int64_t layers, const Recompute& recompute);
// The same of the layers with the same parts, at each home.
std::array<ByParts<std::int64_t>, kMostHomes> layers_that_keep(const StageLayers& layers,
                                                               const Recompute& recompute);

}  // namespace cp
