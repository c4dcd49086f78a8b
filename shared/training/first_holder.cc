#include "shared/training/first_holder.h"

#include <algorithm>
#include <vector>

#include "shared/transformer/rank_groups.h"

namespace cp {

FirstHolder::FirstHolder(const StepRequest& request, Rank self) : self_(self) {
  const ParallelLayout& layout = request.layout;
  const RankGroups groups(layout, self);
  pp_ = groups.pp();
  for (const Rank peer : groups.tp_group()) {
    if (peer >= self) break;
    for (int stage = pp_; stage < layout.pp * layout.virtual_stages; stage += layout.pp) {
      for (const UnitTensors& unit : tensors_of_stage(request, stage, peer)) {
        for (const std::vector<TensorBlock>& piece : unit.pieces) {
          for (const TensorBlock& block : piece) of_lower_tp_.insert(place_of(block));
        }
      }
    }
  }
}

FirstHolder::Place FirstHolder::place_of(const TensorBlock& block) {
  return {block.tensor, block.first_row, block.first_column, block.rows, block.columns};
}

bool FirstHolder::is_first(const UnitTensors& unit, const TensorBlock& block) const {
  const std::vector<Rank>& replicas = unit.unit.replicas;
  if (!replicas.empty() && *std::min_element(replicas.begin(), replicas.end()) < self_) return false;
  // What is not sharded is on all that share the unit.
  if (block.begin < unit.unit.replicated && unit.index > 0) return false;
  if (pp_ > 0 && block.tensor == kEmbeddingTensor) return false;
  return !of_lower_tp_.contains(place_of(block));
}

}  // namespace cp
