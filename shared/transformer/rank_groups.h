// RankGroups: where a rank stands in a layout, and with whom it talks. The same groups as those of build_mesh(), without building
// a mesh of all ranks.
#pragma once

#include <array>
#include <vector>

#include "shared/base/types.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

class RankGroups {
 public:
  // 0 <= self < layout.world().
  RankGroups(const ParallelLayout& layout, Rank self);

  int dp_replicate() const { return at_[kReplicate]; }
  int dp_shard() const { return at_[kShard]; }
  int cp() const { return at_[kCp]; }
  int tp() const { return at_[kTp]; }
  int pp() const { return at_[kPp]; }

  std::vector<Rank> tp_group() const { return along(kTp); }
  std::vector<Rank> cp_group() const { return along(kCp); }
  std::vector<Rank> pp_group() const { return along(kPp); }
  // The rank in the same place of another pipeline rank.
  Rank on_pipeline_rank(int pp) const;
  // The tp ranks that hold the same kv head; more than one where kv_heads < tp.
  std::vector<Rank> tp_group_of_kv_head(std::int64_t kv_heads) const;

  // Parameters of dense layers: the ranks over which they are sharded, and those that hold the same shard.
  std::vector<Rank> shard_group() const;
  std::vector<Rank> replicas() const;
  // Of experts. ep neighbours are consecutive among the ranks of dp_shard x cp in the order of the mesh.
  std::vector<Rank> ep_group() const;
  std::vector<Rank> expert_shard_group() const;
  std::vector<Rank> expert_replicas() const;

 private:
  enum Axis : std::size_t { kReplicate, kShard, kCp, kTp, kPp, kAxes };
  using Coordinates = std::array<int, kAxes>;

  Rank rank_at(const Coordinates& at) const;
  std::vector<Rank> along(Axis axis) const;
  // Among the ranks of dp_shard x cp.
  int flat_index() const;
  Coordinates at_flat_index(int index) const;
  // Those of some flat indices, on one replica or all.
  std::vector<Rank> at_flat_indices(const std::vector<int>& indices, bool all_replicas) const;
  // Flat indices of the ranks with the same experts, ascending, and how many of them share one copy.
  std::vector<int> same_experts() const;

  ParallelLayout layout_;
  std::array<int, kAxes> size_, stride_{};
  bool cp_is_slower_;  // than dp_shard, in the mesh
  Coordinates at_{};
};

}  // namespace cp
