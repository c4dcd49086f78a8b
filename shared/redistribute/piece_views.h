// PieceViews says where the elements that two shards share are in the memory of each shard, and in staging
// between them.
//
// Internal to shared/redistribute. The memory of a shard is dense and row-major over its box, in the local
// order of the index sets. Sender and receiver agree on one order of the shared elements: row-major over the
// dimensions, and along each dimension in the order of intersect(old, new).
#pragma once

#include <cstdint>
#include <vector>

#include "shared/placement/index_set.h"
#include "shared/plan/builder.h"

namespace cp::detail {

using Box = std::vector<IndexSet>;

class PieceViews {
 public:
  PieceViews(const Box& from, const Box& to);

  std::int64_t numel() const { return numel_; }

  // A regular block of the piece: views of the same elements in the old shard, in the new one, and in the
  // dense piece.
  struct Block {
    View from, to, dense;
  };
  // All blocks, which together are the piece. `dense_offset` is where the dense piece begins in its buffer.
  std::vector<Block> blocks(BufferId from, BufferId to, BufferId dense, std::int64_t dense_offset) const;

  // Where the piece begins in the memory of each shard; only has a meaning if it is contiguous there.
  std::int64_t from_start() const;
  std::int64_t to_start() const;

 private:
  std::vector<std::vector<Overlap>> overlaps_;  // by dim
  Shape from_strides_, to_strides_, dense_strides_;
  std::int64_t numel_ = 1;
};

}  // namespace cp::detail
