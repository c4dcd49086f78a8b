#include "sim/proof/exhaustive/move_costs.h"

#include <algorithm>

#include "shared/base/error.h"
#include "sim/proof/exhaustive/cost_rules.h"

namespace cp::sim {

MeshPair::MeshPair(const Mesh& source, const Mesh& target)
    : source_(source), target_(target), ranks_(source.ranks()) {
  for (const Rank rank : target.ranks()) {
    if (!source.contains(rank)) ranks_.push_back(rank);
  }
  const auto places_of = [&](const Mesh& mesh) {
    std::vector<std::size_t> places;
    for (const Rank rank : mesh.ranks()) {
      places.push_back(
          static_cast<std::size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin()));
    }
    return places;
  };
  source_places_ = places_of(source);
  target_places_ = places_of(target);
}

const std::vector<std::size_t>& MeshPair::places(const Mesh& mesh) const {
  return mesh == source_ ? source_places_ : target_places_;
}

MoveCost cost_of(const MoveForm& form, const Written& from, const Written& to, const MeshPair& world,
                 const CostModel& cost) {
  const Setting setting{from, to, world, cost};
  switch (form.kind) {
    case MoveKind::slice:
      return cost_of_slice(setting);
    case MoveKind::to_partial:
      return cost_of_to_partial(setting);
    case MoveKind::all_reduce:
      return cost_of_all_reduce(setting, form);
    case MoveKind::all_gather:
    case MoveKind::all_to_all:
    case MoveKind::reduce_scatter:
      return cost_of_equal_counts(setting, form);
    case MoveKind::exchange:
      return cost_of_exchange(setting);
    case MoveKind::reduce_exchange:
      return cost_of_reduce_exchange(setting, form);
  }
  throw InvalidInput(str("the exhaustive search does not know the move ", name(form.kind)));
}

}  // namespace cp::sim
