// Counts what a move costs each rank and how much temporary memory it needs: element by element, literally by
// the rules in shared/redistribute/redistribution.h and cost_model.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shared/mesh/mesh.h"
#include "shared/redistribute/cost_model.h"
#include "sim/proof/exhaustive/holdings.h"
#include "sim/proof/exhaustive/moves.h"

namespace cp::sim {

// A layout together with its tables.
struct Written {
  explicit Written(Layout written) : layout(std::move(written)), holdings(layout) {}
  Layout layout;
  Holdings holdings;
};

// What a move costs. The lists are by rank, in the order of MeshPair::ranks().
struct MoveCost {
  std::vector<double> time_us;
  std::vector<std::int64_t> time_ps;  // the same in ps, each rounded, so that sums and comparisons are exact
  std::vector<std::int64_t> payload_bytes;  // that the rank receives
  std::vector<std::int64_t> wire_bytes;     // that it receives, with padding
  // The largest temporaries of any rank, in bytes, by [old shard is a temporary][new shard is a temporary].
  std::array<std::array<std::int64_t, 2>, 2> temporary_bytes = {};
};

// The ranks of two meshes, which may be the same mesh. The place of a rank is its index in ranks().
class MeshPair {
 public:
  MeshPair(const Mesh& source, const Mesh& target);

  const std::vector<Rank>& ranks() const { return ranks_; }  // the source's, then those of the target only
  std::size_t size() const { return ranks_.size(); }
  // The places of the mesh's ranks, by their position in the mesh, which must be one of the two.
  const std::vector<std::size_t>& places(const Mesh& mesh) const;

 private:
  Mesh source_, target_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> source_places_, target_places_;
};

// What the move costs. `form` must lead from the one layout to the other: moves_between() or straight_move()
// has returned it. Throws InvalidInput for a kind of move that the search does not know.
MoveCost cost_of(const MoveForm& form, const Written& from, const Written& to, const MeshPair& world,
                 const CostModel& cost);

}  // namespace cp::sim
