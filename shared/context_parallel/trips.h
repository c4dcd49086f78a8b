// How far blocks of keys travel: round a ring, or round the rings within a ring. It follows from who has
// pairs with whom, so all ranks find the same. Internal to shared/context_parallel.
#pragma once

#include <cstdint>

#include "shared/context_parallel/attention_context.h"

namespace cp::detail {

// How far from its home a block is needed: the distances of the nearest and of the farthest other member that
// needs it; 0 if none does.
struct Trip {
  int first = 0, last = 0;
};
// needs(distance) says whether the member at this distance from the block's home needs it.
template <class Needs>
Trip trip_of(int size, const Needs& needs) {
  Trip trip;
  for (int distance = 1; distance < size; ++distance) {
    if (!needs(distance)) continue;
    if (trip.first == 0) trip.first = distance;
    trip.last = distance;
  }
  return trip;
}

// A block is named by the ring index of its home. A plain ring is one node, and its inner ring.
class KeyTrips {
 public:
  explicit KeyTrips(const AttentionContext& context)
      : context_(context),
        size_(context.request.strategy.inner_ring > 1 ? context.request.strategy.inner_ring
                                                      : context.sharding.ring_size()),
        nodes_(context.sharding.ring_size() / size_) {}

  int inner_size() const { return size_; }
  int nodes() const { return nodes_; }
  int num_blocks() const { return nodes_ * size_; }
  int block_at(int node, int place) const { return node * size_ + place; }

  // Whether any rank of the node computes on the block, so that it rotates there.
  bool node_needs(int node, int block) const {
    for (int place = 0; place < size_; ++place) {
      if (context_.meets(block_at(node, place), block)) return true;
    }
    return context_.request.strategy.send_empty;
  }

  // The trip round the inner ring of a block that enters the node at the block's place in its own node.
  Trip inner(int node, int block, int direction) const {
    const int place = block % size_;
    return trip_of(size_, [&](int distance) {
      const int member = ((place + direction * distance) % size_ + size_) % size_;
      return context_.request.strategy.send_empty || context_.meets(block_at(node, member), block);
    });
  }
  // The trip of a block from node to node.
  Trip outer(int block, int direction) const {
    const int home = block / size_;
    return trip_of(nodes_, [&](int distance) {
      return node_needs(((home + direction * distance) % nodes_ + nodes_) % nodes_, block);
    });
  }

  // For the backward pass: the directions that take fewer bytes, and the reverse one if both take the same.
  // (The forward pass always goes from r to r+1.)
  int inner_direction() const { return inner_cost(1) < inner_cost(-1) ? 1 : -1; }
  int outer_direction() const { return outer_cost(1) < outer_cost(-1) ? 1 : -1; }

  // Rows that a pass moves in these directions, all ranks of the ring together: of keys, and backward of
  // gradients.
  struct Rows {
    std::int64_t keys = 0, gradients = 0;
  };
  Rows rows(int outer_direction, int inner_direction) const;

 private:
  // The bytes of all blocks' trips, for one head. (Outer trips are counted in rows: there, every row has
  // equally many bytes.)
  std::int64_t inner_cost(int direction) const;
  std::int64_t outer_cost(int direction) const;

  const AttentionContext& context_;
  int size_, nodes_;
};

}  // namespace cp::detail
