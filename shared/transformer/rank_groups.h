// RankGroups: where a rank stands in a layout, and with whom it talks. The same groups as those of
// build_mesh(), without building a mesh of all ranks.
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
  // The rank in the same place of another pipeline rank.
  Rank on_pipeline_rank(int pp) const;
  // The tp ranks that hold the same kv head; more than one where kv_heads < tp.
  std::vector<Rank> tp_group_of_kv_head(std::int64_t kv_heads) const;

  // ep neighbours are consecutive among the ranks of dp_shard x cp in the order of the mesh.
  std::vector<Rank> ep_group() const;

  // Where data parallelism keeps parameters: the ranks with this one's tp and pp coordinates, numbered
  // replica by replica, and within one as the mesh has dp_shard and cp.
  int data_index() const { return dp_replicate() * layout_.dp_shard * layout_.cp + flat_index(); }
  std::vector<Rank> at_data_indices(const std::vector<Rank>& indices) const;
  // Over these numbers a mesh, and the axes of HsdpOptions: over `shard` parameters are split, over
  // `replicate` they are kept in full.
  struct DataMesh {
    Mesh mesh;
    std::vector<std::string> shard, replicate;
  };
  DataMesh data_mesh() const;  // of dense layers
  // Of experts. Over the last axis, "ep", ranks have different ones.
  DataMesh expert_mesh() const;

 private:
  enum Axis : std::size_t { kReplicate, kShard, kCp, kTp, kPp, kAxes };
  using Coordinates = std::array<int, kAxes>;

  Rank rank_at(const Coordinates& at) const;
  std::vector<Rank> along(Axis axis) const;
  // Among the ranks of dp_shard x cp.
  int flat_index() const;
  Coordinates at_flat_index(int index) const;
  ParallelLayout layout_;
  std::array<int, kAxes> size_, stride_{};
  bool cp_is_slower_;  // than dp_shard, in the mesh
  Coordinates at_{};
};

}  // namespace cp
