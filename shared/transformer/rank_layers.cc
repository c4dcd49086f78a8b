#include "shared/transformer/rank_layers.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

namespace cp {
namespace {

// Entry n: how many of the first n layers have which parts.
std::vector<ByParts<std::int64_t>> counted_before(std::span<const int> kinds,
                                                  std::span<const LayerParts> parts_of_kinds) {
  std::vector<ByParts<std::int64_t>> before(1);
  before.reserve(kinds.size() + 1);
  for (const int kind : kinds) {
    before.push_back(before.back());
    ++before.back()[parts_of_kinds[idx(kind)]];
  }
  return before;
}

// Counts the layers of stages, by differences of what was counted of the whole model where it can.
class LayersOf {
 public:
  // `layers` has all layers of the model, and their homes if there is more than one.
  LayersOf(const StageLayers& layers, std::span<const ByParts<std::int64_t>> before,
           const Recompute& recompute)
      : layers_(layers), before_(before), recompute_(recompute) {}

  // Whether all layers have the same parts, and one home.
  bool alike() const {
    return layers_.homes.empty() && before_.back()[layers_.parts(0)] == std::ssize(layers_.kinds);
  }

  // Layers first .. first + count - 1, which are a stage of their own.
  CountedLayers operator()(std::int64_t first, std::int64_t count) const {
    CountedLayers layers;
    for (const LayerParts parts : kLayerParts)
      layers.with[parts] = before_[idx(first + count)][parts] - before_[idx(first)][parts];
    if (!layers_.homes.empty()) {
      const StageLayers stage{layers_.kinds.subspan(idx(first), idx(count)), layers_.parts_of_kinds,
                              layers_.homes.subspan(idx(first), idx(count + 1))};
      layers.keeping = layers_that_keep(stage, recompute_);
      for (std::int64_t layer = 0; layer <= count; ++layer) layers.inputs_at[idx(stage.home(layer))] = true;
      return layers;
    }
    layers.inputs_at.front() = true;
    ByParts<std::int64_t>& keeping = layers.keeping.front();
    if (recompute_.kind != Recompute::Kind::full) keeping = layers.with;
    if (recompute_.kind != Recompute::Kind::every) return layers;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      if (is_recomputed(layer, recompute_)) --keeping[layers_.parts(first + layer)];
    }
    return layers;
  }

 private:
  const StageLayers layers_;
  const std::span<const ByParts<std::int64_t>> before_;
  const Recompute& recompute_;
};

}  // namespace

void CountedLayers::add(const CountedLayers& more) {
  for (const LayerParts parts : kLayerParts) {
    with[parts] += more.with[parts];
    for (std::size_t home = 0; home < keeping.size(); ++home)
      keeping[home][parts] += more.keeping[home][parts];
  }
  for (std::size_t home = 0; home < inputs_at.size(); ++home) inputs_at[home] |= more.inputs_at[home];
}

RankLayers::RankLayers(const Transformer& model, Phase phase)
    : model_(model),
      training_(phase == Phase::training),
      kinds_(model.order.empty() ? std::vector<int>(idx(model.layers), 0) : model.order),
      parts_(parts_of_kinds(model)),
      before_(counted_before(kinds_, parts_)) {}

const std::vector<RankLayers::OfRank>& RankLayers::of(const ParallelLayout& layout, const StageLayers& all) {
  Key key{layout.pp,
          layout.virtual_stages,
          layout.recompute.kind,
          layout.recompute.every,
          {all.homes.begin(), all.homes.end()}};
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_.try_emplace(std::move(key), count(layout, all)).first->second;
}

// The first rank, whose activations wait longest; the second, which may have more layers; the last, which
// has the head. Where layers have different MLPs, any of them: of those between the ends that have the same
// stages, the first, whose activations wait longest.
std::vector<RankLayers::OfRank> RankLayers::count(const ParallelLayout& layout,
                                                  const StageLayers& all) const {
  const LayersOf layers_of(all, before_, layout.recompute);
  const std::vector<std::int64_t> stages = stage_layers(model_, layout);
  std::vector<std::int64_t> begins(stages.size());  // the first layer of each
  std::exclusive_scan(stages.begin(), stages.end(), begins.begin(), std::int64_t{0});
  const bool alike = layers_of.alike();
  std::vector<OfRank> counted;
  for (int rank = 0; rank < layout.pp; ++rank) {
    const bool between = rank > 0 && rank < layout.pp - 1;
    if (alike && between && rank > 1) continue;
    OfRank of_rank{rank, {}, {}};
    for (int chunk = 0; chunk < layout.virtual_stages; ++chunk) {
      const std::size_t stage = idx(chunk) * idx(layout.pp) + idx(rank);
      const CountedLayers of_stage = layers_of(begins[stage], stages[stage]);
      of_rank.layers.add(of_stage);
      std::vector<CountedLayers>& known = of_rank.stages;
      if (alike && !known.empty()) {
        if (of_stage.count() > known.front().count()) known.front() = of_stage;
      } else if (std::find(known.begin(), known.end(), of_stage) == known.end()) {
        known.push_back(of_stage);
      }
    }
    const auto is_like = [&](const OfRank& before) {
      return before.rank > 0 && before.layers == of_rank.layers && before.stages == of_rank.stages;
    };
    if (between && training_ && std::any_of(counted.begin(), counted.end(), is_like)) continue;
    counted.push_back(std::move(of_rank));
  }
  return counted;
}

}  // namespace cp
