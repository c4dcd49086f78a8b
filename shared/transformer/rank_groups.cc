#include "shared/transformer/rank_groups.h"

#include <algorithm>
#include <numeric>

#include "shared/base/error.h"
#include "shared/transformer/layout_axes.h"

namespace cp {

RankGroups::RankGroups(const ParallelLayout& layout, Rank self)
    : layout_(layout),
      size_{layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp, layout.pp},
      cp_is_slower_(layout.order == AxisOrder::tp_dp_cp_pp) {
  if (self < 0 || self >= layout.world()) {
    throw InvalidInput(str("rank ", self, " is not in a layout of ", layout.world(), " ranks; use 0 to ",
                           layout.world() - 1));
  }
  int stride = 1;
  for (const LayoutAxis of : axes_of(layout.order)) {
    const auto axis = static_cast<std::size_t>(of);  // Axis has the same values
    stride_[axis] = stride;
    at_[axis] = self / stride % size_[axis];
    stride *= size_[axis];
  }
}

Rank RankGroups::rank_at(const Coordinates& at) const {
  Rank rank = 0;
  for (std::size_t axis = 0; axis < kAxes; ++axis) rank += at[axis] * stride_[axis];
  return rank;
}

std::vector<Rank> RankGroups::along(Axis axis) const {
  std::vector<Rank> ranks;
  Coordinates at = at_;
  for (at[axis] = 0; at[axis] < size_[axis]; ++at[axis]) ranks.push_back(rank_at(at));
  return ranks;
}

std::vector<Rank> RankGroups::row_group() const {
  if (layout_.row_ranks() == 1) return cp_group();
  std::vector<Rank> ranks;
  Coordinates at = at_;
  for (at[kCp] = 0; at[kCp] < layout_.cp; ++at[kCp]) {
    for (at[kTp] = 0; at[kTp] < layout_.tp; ++at[kTp]) ranks.push_back(rank_at(at));
  }
  return ranks;
}

Rank RankGroups::on_pipeline_rank(int pp) const {
  Coordinates at = at_;
  at[kPp] = pp;
  return rank_at(at);
}

std::vector<Rank> RankGroups::tp_group_of_kv_head(std::int64_t kv_heads) const {
  const int sharing =
      std::max(1, layout_.tp / static_cast<int>(std::min<std::int64_t>(kv_heads, layout_.tp)));
  const int first = tp() / sharing * sharing;
  const std::vector<Rank> all = tp_group();
  return {all.begin() + first, all.begin() + first + sharing};
}

// ---- dp_shard x cp ----

int RankGroups::flat_index() const {
  return cp_is_slower_ ? cp() * layout_.dp_shard + dp_shard() : dp_shard() * layout_.cp + cp();
}

RankGroups::Coordinates RankGroups::at_flat_index(int index) const {
  const int inner = cp_is_slower_ ? layout_.dp_shard : layout_.cp;
  Coordinates at = at_;
  at[kShard] = cp_is_slower_ ? index % inner : index / inner;
  at[kCp] = cp_is_slower_ ? index / inner : index % inner;
  return at;
}

std::vector<Rank> RankGroups::ep_group() const {
  std::vector<Rank> neighbours;
  const int first = data_index() / layout_.ep * layout_.ep;
  for (int i = 0; i < layout_.ep; ++i) neighbours.push_back(first + i);
  return at_data_indices(neighbours);
}

// ---- where parameters lie ----

std::vector<Rank> RankGroups::at_data_indices(const std::vector<Rank>& indices) const {
  const int of_replica = layout_.dp_shard * layout_.cp;
  std::vector<Rank> ranks;
  for (const Rank index : indices) {
    Coordinates at = at_flat_index(index % of_replica);
    at[kReplicate] = index / of_replica;
    ranks.push_back(rank_at(at));
  }
  return ranks;
}

std::vector<Rank> RankGroups::replica_group() const {
  std::vector<Rank> indices(static_cast<std::size_t>(layout_.dp_shard * layout_.cp));
  std::iota(indices.begin(), indices.end(), dp_replicate() * layout_.dp_shard * layout_.cp);
  return at_data_indices(indices);
}

std::vector<Rank> RankGroups::replicas() const {
  std::vector<Rank> indices(static_cast<std::size_t>(layout_.dp_replicate * layout_.dp_shard * layout_.cp));
  std::iota(indices.begin(), indices.end(), 0);
  return at_data_indices(indices);
}

RankGroups::DataMesh RankGroups::data_mesh() const {
  const MeshAxis replicate{"dp_replicate", layout_.dp_replicate};
  if (layout_.sharding == ShardingGroup::dp_shard_cp) {
    return {
        Mesh({replicate, {"dp_shard_cp", layout_.dp_shard * layout_.cp}}), {"dp_shard_cp"}, {"dp_replicate"}};
  }
  const MeshAxis shard{"dp_shard", layout_.dp_shard}, cp{"cp", layout_.cp};
  return {cp_is_slower_ ? Mesh({replicate, cp, shard}) : Mesh({replicate, shard, cp}),
          {"dp_shard"},
          {"dp_replicate", "cp"}};
}

RankGroups::DataMesh RankGroups::expert_mesh() const {
  const int shards = std::max(1, layout_.sharding_size() / layout_.ep);
  const int copies = layout_.dp_shard * layout_.cp / layout_.ep / shards;
  return {Mesh({{"dp_replicate", layout_.dp_replicate},
                {"copies", copies},
                {"efsdp", shards},
                {"ep", layout_.ep}}),
          {"efsdp"},
          {"dp_replicate", "copies"}};
}

}  // namespace cp
