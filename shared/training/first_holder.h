// Which rank writes an element that several ranks hold: the first of them.
//
// Replicas hold the same shards, and all that share a unit its small tensors where these are not sharded. tp
// ranks hold the same norms, and the same kv heads where these are fewer than tp. The first and the last
// pipeline stage may both have the embedding's table.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "shared/transformer/tensor_places.h"

namespace cp {

class FirstHolder {
 public:
  FirstHolder(const StepRequest& request, Rank self);

  // Whether the rank is the first that holds the block, of the elements that it owns of it.
  bool is_first(const UnitTensors& unit, const TensorBlock& block) const;

 private:
  using Place = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static Place place_of(const TensorBlock& block);

  Rank self_;
  int pp_ = 0;
  std::set<Place> of_lower_tp_;  // what tp ranks before this one hold
};

}  // namespace cp
