// RankGroups says where a rank stands in a layout and with whom it communicates. The groups are those of
// build_mesh(), but found without building a mesh of all ranks: a plan of one rank among thousands needs only
// its own groups.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
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
  // The ranks among which the rows between tensor-parallel regions lie: the cp ranks, and of each of them its
  // tp ranks one behind the other where these split rows. row_index() is this rank's place.
  std::vector<Rank> row_group() const;
  int row_index() const { return layout_.row_ranks() > 1 ? cp() * layout_.tp + tp() : cp(); }
  // The rank that has this rank's coordinates on all other axes, on pipeline rank `pp`.
  Rank on_pipeline_rank(int pp) const;
  // The tp ranks that hold the same kv head as this one; more than one if kv_heads < tp.
  std::vector<Rank> tp_group_of_kv_head(std::int64_t kv_heads) const;

  // The ep ranks among which the experts are split: consecutive ones among the ranks of dp_shard x cp, in the
  // order of the mesh.
  std::vector<Rank> ep_group() const;

  // Data parallelism spreads a parameter over the ranks that share this rank's tp and pp coordinates. They
  // are numbered replica by replica, and within a replica in the order in which the mesh has dp_shard and cp.
  // data_index() is this rank's number, and at_data_indices() translates numbers to ranks.
  int data_index() const { return dp_replicate() * layout_.dp_shard * layout_.cp + flat_index(); }
  std::vector<Rank> at_data_indices(const std::vector<Rank>& indices) const;
  // A mesh over these numbers, and which of its axes HsdpOptions gets: over the axes `shard` a parameter is
  // split, over the axes `replicate` it is kept in full.
  struct DataMesh {
    Mesh mesh;
    std::vector<std::string> shard, replicate;
  };
  DataMesh data_mesh() const;  // for the parameters of dense layers
  // For the parameters of experts. The last axis, "ep", is in neither list: along it ranks hold different
  // experts.
  DataMesh expert_mesh() const;
  // The ranks of dp_shard x cp of this rank's replica. They have all parameters of its tp and pp coordinates:
  // dense ones, and the experts of the others in the ep group.
  std::vector<Rank> replica_group() const;
  // The same of all replicas: who has other rows of the batch.
  std::vector<Rank> replicas() const;

 private:
  enum Axis : std::size_t { kReplicate, kShard, kCp, kTp, kPp, kAxes };
  using Coordinates = std::array<int, kAxes>;

  Rank rank_at(const Coordinates& at) const;
  std::vector<Rank> along(Axis axis) const;
  // The index among the ranks of dp_shard x cp.
  int flat_index() const;
  Coordinates at_flat_index(int index) const;
  ParallelLayout layout_;
  std::array<int, kAxes> size_, stride_{};
  bool cp_is_slower_;  // cp varies more slowly than dp_shard in the mesh
  Coordinates at_{};
};

}  // namespace cp
