// What a move costs each rank and how much temporary memory it needs, counted element by element, literally
// by the rules in shared/redistribute/{redistribution,cost_model}.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shared/mesh/mesh.h"
#include "shared/redistribute/cost_model.h"
#include "sim/proof/exhaustive/holdings.h"
#include "sim/proof/exhaustive/moves.h"

namespace cp::sim {

// A layout and its tables.
struct Written {
  explicit Written(Layout written) : layout(std::move(written)), holdings(layout) {}
  Layout layout;
  Holdings holdings;
};

// By rank of the MeshPair.
struct MoveCost {
  std::vector<double> time_us;
  std::vector<std::int64_t> time_ps;        // the same, each rounded, so that sums and comparisons are exact
  std::vector<std::int64_t> payload_bytes;  // received
  std::vector<std::int64_t> wire_bytes;     // received, with padding
  // The largest temporaries of any rank, by [old shard is a temporary][new shard is a temporary].
  std::array<std::array<std::int64_t, 2>, 2> temporary_bytes = {};
};

// The ranks of two meshes, which may be the same.
class MeshPair {
 public:
  MeshPair(const Mesh& source, const Mesh& target);

  const std::vector<Rank>& ranks() const { return ranks_; }  // the source's, then those of the target alone
  std::size_t size() const { return ranks_.size(); }
  // Where the mesh's ranks, by position, are in ranks().
  const std::vector<std::size_t>& places(const Mesh& mesh) const;

 private:
  Mesh source_, target_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> source_places_, target_places_;
};

// `form` must lead from one to the other (moves_between, straight_move).
MoveCost cost_of(const MoveForm& form, const Written& from, const Written& to, const MeshPair& world,
                 const CostModel& cost);

}  // namespace cp::sim
