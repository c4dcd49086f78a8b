// The rings on which blocks of K and V rotate: which ring index stands where, who needs what, and where K and
// V are at each step. Internal to shared/context_parallel.
//
// A double ring is an outer ring of nodes, and in each of its steps an inner ring runs inside every node. A
// plain ring is a single node. With 8 ranks and inner_ring=4, the nodes are the ring indices 0..3 and 4..7;
// the outer rings are {0, 4}, {1, 5}, {2, 6} and {3, 7}.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "shared/context_parallel/core.h"
#include "shared/context_parallel/rotation.h"

namespace cp::detail {

inline constexpr std::size_t kK = 0, kV = 1;  // indices of what travels round the ring

// Says which ring index stands where, and who needs what. A block is named by the ring index of its home.
class Rings {
 public:
  explicit Rings(AttentionWriter& writer)
      : writer_(writer),
        context_(writer.context()),
        inner_size_(writer.strategy().inner_ring > 1 ? writer.strategy().inner_ring
                                                     : writer.sharding().ring_size()),
        nodes_(writer.sharding().ring_size() / inner_size_),
        node_(writer.ring_index() / inner_size_),
        place_(writer.ring_index() % inner_size_) {
    std::vector<int> inner_members, outer_members;
    for (int place = 0; place < inner_size_; ++place) inner_members.push_back(node_ * inner_size_ + place);
    for (int node = 0; node < nodes_; ++node) outer_members.push_back(node * inner_size_ + place_);
    inner_ = {writer.ring_subteam(nodes_ > 1 ? "inner_ring" : "ring", inner_members), writer.comm(),
              inner_size_, place_, 1};
    if (nodes_ == 1) return;
    outer_ = {writer.ring_subteam("outer_ring", outer_members), writer.builder().stream("outer"), nodes_,
              node_, 1};
  }

  // For the backward pass: chooses the directions that take fewer bytes, and the reverse one if both take the
  // same. (The forward pass always goes from r to r+1.)
  void choose_directions() {
    inner_.direction = inner_cost(1) < inner_cost(-1) ? 1 : -1;
    outer_.direction = outer_cost(1) < outer_cost(-1) ? 1 : -1;
  }

  const Ring& inner() const { return inner_; }
  const Ring& outer() const { return outer_; }
  int nodes() const { return nodes_; }
  int node() const { return node_; }
  int block_at(int node, int place) const { return node * inner_size_ + place; }

  // Whether the rank computes on the block.
  bool meets(int block) const { return context_.meets(writer_.ring_index(), block); }
  // The number of blocks on which the rank computes.
  int blocks_met() const {
    int count = 0;
    for (int block = 0; block < nodes_ * inner_size_; ++block) count += meets(block) ? 1 : 0;
    return count;
  }
  // Whether any rank of the node computes on the block, so that it rotates there.
  bool node_needs(int node, int block) const {
    for (int place = 0; place < inner_size_; ++place) {
      if (context_.meets(block_at(node, place), block)) return true;
    }
    return writer_.strategy().send_empty;
  }

  // The trip round the inner ring of a block that enters the node at the block's place in its own node.
  Trip inner_trip(int node, int block, int direction) const {
    const int place = block % inner_size_;
    return trip_of(inner_size_, [&](int distance) {
      const int member = ((place + direction * distance) % inner_size_ + inner_size_) % inner_size_;
      return writer_.strategy().send_empty || context_.meets(block_at(node, member), block);
    });
  }
  // The trip of a block from node to node.
  Trip outer_trip(int block, int direction) const {
    const int home = block / inner_size_;
    return trip_of(nodes_, [&](int distance) {
      return node_needs(((home + direction * distance) % nodes_ + nodes_) % nodes_, block);
    });
  }

 private:
  // The bytes of all blocks' trips, for one head. (Outer trips are counted in rows: there, every row has
  // equally many bytes.)
  std::int64_t inner_cost(int direction) const {
    const std::int64_t dim = writer_.problem().head_dim, v_dim = writer_.problem().v_head_dim;
    const Gradients& wanted = writer_.gradients();
    const std::int64_t kv_bytes = (dim + v_dim) * size_bytes(writer_.problem().dtype),
                       dkv_bytes = ((wanted.dk ? dim : 0) + (wanted.dv ? v_dim : 0)) *
                                   size_bytes(writer_.gradient_dtype());
    std::int64_t cost = 0;
    for (int node = 0; node < nodes_; ++node) {
      for (int block = 0; block < nodes_ * inner_size_; ++block) {
        const Trip trip = inner_trip(node, block, direction);
        if (trip.last == 0) continue;
        cost +=
            context_.num_kv_rows(block) * (trip.last * kv_bytes + (trip.last - trip.first + 1) * dkv_bytes);
      }
    }
    return cost;
  }
  std::int64_t outer_cost(int direction) const {
    std::int64_t cost = 0;
    for (int block = 0; block < nodes_ * inner_size_; ++block) {
      cost += context_.num_kv_rows(block) * outer_trip(block, direction).last;
    }
    return cost;
  }

  AttentionWriter& writer_;
  const AttentionContext& context_;
  int inner_size_, nodes_, node_, place_;
  Ring inner_, outer_;
};

// Where K and V are as they rotate.
class KeyRings {
 public:
  KeyRings(AttentionWriter& writer, const Rings& rings, const Tensor& k, const Tensor& v)
      : writer_(writer), rings_(rings), k_(k), v_(v) {
    std::int64_t most_rows = 0;
    for (int block = 0; block < writer.sharding().ring_size(); ++block) {
      most_rows = std::max(most_rows, writer.context().num_kv_rows(block));
    }
    const std::vector<Traveller> travellers = {traveller(k), traveller(v)};
    own_ = travellers;
    place_for_sending(writer, own_, k.rows, most_rows, "k, v");
    if (rings.inner().size > 1) inner_slots_ = make_slots(writer, travellers, most_rows, "k, v");
    if (rings.nodes() > 1) outer_slots_ = make_slots(writer, travellers, most_rows, "outer k, v");
  }

  // The rotation between the nodes. In it a block is named by the node of its home.
  Rotation outer() const {
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int node = 0; node < rings_.nodes(); ++node) {
      const int block = rings_.block_at(node, rings_.inner().self);
      rows.push_back(writer_.context().num_kv_rows(block));
      last.push_back(rings_.outer_trip(block, rings_.outer().direction).last);
    }
    return {writer_, rings_.outer(), rows, last, own_, outer_slots_, "outer k, v"};
  }

  // The rotation inside this node of the blocks of `home_node`. This rank's own one of them is in the given
  // buffers.
  Rotation inner(int home_node, BufferId k, BufferId v) const {
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int place = 0; place < rings_.inner().size; ++place) {
      const int block = rings_.block_at(home_node, place);
      rows.push_back(writer_.context().num_kv_rows(block));
      last.push_back(rings_.inner_trip(rings_.node(), block, rings_.inner().direction).last);
    }
    std::vector<Traveller> from = own_;
    for (const auto& [at, buffer] : {std::pair(kK, k), std::pair(kV, v)}) {
      if (buffer != from[at].buffer) from[at].buffer = buffer, from[at].offset = 0, from[at].sent_from = -1;
    }
    return {writer_, rings_.inner(), rows, last, from, inner_slots_, "k, v"};
  }

  // The tensor of a block that is in the given buffer.
  Tensor k_in(BufferId buffer, int block) const { return in(k_, buffer, block); }
  Tensor v_in(BufferId buffer, int block) const { return in(v_, buffer, block); }

 private:
  Tensor in(const Tensor& model, BufferId buffer, int block) const {
    Tensor tensor = model.with_rows(writer_.context().num_kv_rows(block));
    if (buffer != model.buffer) tensor.buffer = buffer, tensor.offset = 0;
    return tensor;
  }

  AttentionWriter& writer_;
  const Rings& rings_;
  Tensor k_, v_;
  std::vector<Traveller> own_;  // kK and kV of this rank's block
  Slots inner_slots_, outer_slots_;
};

// Calls visit(home node, outer step, rotation) for each outer step. While a step runs, the next step's blocks
// are already travelling.
template <class Visit>
void for_each_node(const Rings& rings, const KeyRings& keys, const Tensor& k, const Tensor& v,
                   const Visit& visit) {
  if (rings.nodes() == 1) return visit(0, 0, keys.inner(0, k.buffer, v.buffer));
  Rotation outer = keys.outer();
  for (int step = 0; step < rings.nodes(); ++step) {
    if (step + 1 < rings.nodes()) outer.bring(step + 1);
    const int home_node = rings.outer().block(step);
    visit(home_node, step, keys.inner(home_node, outer.buffer(kK, step), outer.buffer(kV, step)));
  }
}

}  // namespace cp::detail
