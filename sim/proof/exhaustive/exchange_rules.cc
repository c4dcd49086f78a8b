#include "sim/proof/exhaustive/exchange_rules.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cp::sim {

namespace {

// What an old box and a new one share.
struct OldPart {
  std::int64_t size = 0;
  std::int32_t last_in_old = -1, last_in_new = -1;
  bool contiguous_in_old = true, contiguous_in_new = true;
};

// The pieces that make up one new box, by old box.
std::map<std::int32_t, OldPart> pieces_of(const std::vector<std::int32_t>& new_box, const Holdings& from) {
  std::map<std::int32_t, OldPart> pieces;
  for (std::size_t place = 0; place < new_box.size(); ++place) {
    const std::size_t element = static_cast<std::size_t>(new_box[place]);
    OldPart& piece = pieces[from.box_of_element[element]];
    const std::int32_t in_old = from.place_of_element[element], in_new = static_cast<std::int32_t>(place);
    if (piece.size > 0) {
      piece.contiguous_in_old &= in_old == piece.last_in_old + 1;
      piece.contiguous_in_new &= in_new == piece.last_in_new + 1;
    }
    piece.last_in_old = in_old;
    piece.last_in_new = in_new;
    ++piece.size;
  }
  return pieces;
}

// Chooses the sender of a piece for one receiver.
class Chooser {
 public:
  Chooser(const Mesh& holders, Rank receiver, std::size_t position)
      : holders_(holders), rank_(receiver), position_(position) {}

  // `equals`: the positions of the ranks that hold the piece, ascending.
  std::size_t choose(const std::vector<std::size_t>& equals) const {
    std::vector<std::size_t> nearest;
    std::vector<bool> best;
    for (const std::size_t holder : equals) {
      const std::vector<bool> agreement = agreement_with(holders_.ranks()[holder]);
      if (nearest.empty() || agreement > best) {
        best = agreement;
        nearest.clear();
      }
      if (agreement == best) nearest.push_back(holder);
    }
    return nearest[position_ % nearest.size()];
  }

 private:
  // Axis by axis from the first: whether holder and receiver have the same coordinate.
  std::vector<bool> agreement_with(Rank holder) const {
    std::vector<bool> agreement;
    if (!holders_.contains(rank_)) return agreement;
    for (int axis = 0; axis < holders_.num_axes(); ++axis) {
      agreement.push_back(holders_.coordinate(holder, axis) == holders_.coordinate(rank_, axis));
    }
    return agreement;
  }

  const Mesh& holders_;
  Rank rank_;
  std::size_t position_;
};

// Whether the two ranks of the mesh differ along none of the axes.
bool agree_along(const Mesh& mesh, const std::vector<int>& axes, Rank a, Rank b) {
  return std::all_of(axes.begin(), axes.end(),
                     [&](int axis) { return mesh.coordinate(a, axis) == mesh.coordinate(b, axis); });
}

}  // namespace

Deliveries deliveries(const Written& from, const Written& to, const MeshPair& world,
                      const std::vector<int>& group) {
  const Mesh& old_mesh = from.layout.mesh;
  const Mesh& new_mesh = to.layout.mesh;
  std::vector<int> fixed = to.holdings.partial_axes;  // contributions along these stay apart
  if (!group.empty()) {
    for (int axis = 0; axis < old_mesh.num_axes(); ++axis) {
      if (std::find(group.begin(), group.end(), axis) == group.end()) fixed.push_back(axis);
    }
  }
  std::vector<std::map<std::int32_t, OldPart>> pieces;  // by new box
  for (const std::vector<std::int32_t>& box : to.holdings.boxes)
    pieces.push_back(pieces_of(box, from.holdings));

  Deliveries result;
  result.kept.assign(world.size(), 0);
  for (std::size_t receiver = 0; receiver < new_mesh.ranks().size(); ++receiver) {
    const Rank self = new_mesh.ranks()[receiver];
    const std::size_t place = world.places(new_mesh)[receiver];
    const Chooser chooser(old_mesh, self, place);
    const std::int32_t new_box = to.holdings.box_of_rank[receiver];
    for (const auto& [old_box, piece] : pieces[static_cast<std::size_t>(new_box)]) {
      // Each contribution arrives once; those that hold it, by its number.
      std::map<std::int32_t, std::vector<std::size_t>> holders;
      for (std::size_t holder = 0; holder < old_mesh.ranks().size(); ++holder) {
        if (from.holdings.box_of_rank[holder] != old_box) continue;
        if (!fixed.empty() && !agree_along(old_mesh, fixed, old_mesh.ranks()[holder], self)) continue;
        holders[from.holdings.contribution_of_rank[holder]].push_back(holder);
      }
      for (const auto& [contribution, equals] : holders) {
        const bool has_it = std::any_of(equals.begin(), equals.end(),
                                        [&](std::size_t holder) { return old_mesh.ranks()[holder] == self; });
        if (has_it) {
          result.kept[place] += piece.size;
          continue;
        }
        const std::size_t sender = world.places(old_mesh)[chooser.choose(equals)];
        result.all.push_back(
            {sender, place, piece.size, piece.contiguous_in_old, piece.contiguous_in_new, old_box, new_box});
      }
    }
  }
  return result;
}

}  // namespace cp::sim
