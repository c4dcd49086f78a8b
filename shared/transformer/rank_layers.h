// RankLayers: how many layers of which parts the stages of pipeline ranks have. A search asks for millions of
// layouts, whose stages are few, so that each is counted once. Internal to least_memory.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "shared/transformer/layer_loops.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"

namespace cp {

// How many layers there are with which parts, and how many of these keep more than their input, at each home.
struct CountedLayers {
  ByParts<std::int64_t> with;
  std::array<ByParts<std::int64_t>, kMostHomes> keeping;
  std::array<bool, kMostHomes> inputs_at{};  // whether there are inputs of layers, or of what is behind them

  std::int64_t count() const { return count_of(with); }
  bool operator==(const CountedLayers&) const = default;
  void add(const CountedLayers& more);
};

class RankLayers {
 public:
  RankLayers(const Transformer& model, Phase phase);  // the model must outlive this

  // All layers of the model, with their homes, if there is more than one; they refer to this and to `homes`.
  StageLayers all(const std::vector<int>& homes) const { return {kinds_, parts_, homes}; }
  const ByParts<std::int64_t>& counts() const { return before_.back(); }  // of all layers

  struct OfRank {
    int rank = 0;
    CountedLayers layers;               // of all its stages
    std::vector<CountedLayers> stages;  // those that differ; where all layers are alike, the largest
  };
  // The pipeline ranks of which one may need most memory. The reference stays valid.
  const std::vector<OfRank>& of(const ParallelLayout& layout, const StageLayers& all);

 private:
  // By pp and virtual_stages, what is computed again, and homes of layers.
  using Key = std::tuple<int, int, Recompute::Kind, int, std::vector<int>>;
  std::vector<OfRank> count(const ParallelLayout& layout, const StageLayers& all) const;

  const Transformer& model_;
  const bool training_;
  const std::vector<int> kinds_;                     // of the layers
  const std::vector<LayerParts> parts_;              // of the kinds
  const std::vector<ByParts<std::int64_t>> before_;  // by layer, and of all: how many layers with which parts
  std::map<Key, std::vector<OfRank>> known_;
};

}  // namespace cp
