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
#include "shared/context_parallel/trips.h"

namespace cp::detail {

inline constexpr std::size_t kK = 0, kV = 1;  // indices of what travels round the ring

// Says which ring index stands where, and who needs what. A block is named by the ring index of its home.
class Rings {
 public:
  explicit Rings(AttentionWriter& writer)
      : writer_(writer),
        context_(writer.context()),
        trips_(writer.context()),
        node_(writer.ring_index() / trips_.inner_size()),
        place_(writer.ring_index() % trips_.inner_size()) {
    std::vector<int> inner_members, outer_members;
    for (int place = 0; place < trips_.inner_size(); ++place) inner_members.push_back(block_at(node_, place));
    for (int node = 0; node < nodes(); ++node) outer_members.push_back(block_at(node, place_));
    inner_ = {writer.ring_subteam(nodes() > 1 ? "inner_ring" : "ring", inner_members), writer.comm(),
              trips_.inner_size(), place_, 1};
    if (nodes() == 1) return;
    outer_ = {writer.ring_subteam("outer_ring", outer_members), writer.builder().stream("outer"), nodes(),
              node_, 1};
  }

  // For the backward pass. (The forward pass always goes from r to r+1.)
  void choose_directions() {
    inner_.direction = trips_.inner_direction();
    outer_.direction = trips_.outer_direction();
  }

  const Ring& inner() const { return inner_; }
  const Ring& outer() const { return outer_; }
  int nodes() const { return trips_.nodes(); }
  int node() const { return node_; }
  int block_at(int node, int place) const { return trips_.block_at(node, place); }

  // Whether the rank computes on the block.
  bool meets(int block) const { return context_.meets(writer_.ring_index(), block); }
  // The number of blocks on which the rank computes.
  int blocks_met() const {
    int count = 0;
    for (int block = 0; block < trips_.num_blocks(); ++block) count += meets(block) ? 1 : 0;
    return count;
  }
  bool node_needs(int node, int block) const { return trips_.node_needs(node, block); }
  Trip inner_trip(int node, int block) const { return trips_.inner(node, block, inner_.direction); }
  Trip outer_trip(int block) const { return trips_.outer(block, outer_.direction); }

 private:
  AttentionWriter& writer_;
  const AttentionContext& context_;
  const KeyTrips trips_;
  int node_, place_;
  Ring inner_, outer_;
};

// Where K and V are as they rotate; or k alone, where it stands for latent rows and v is absent.
class KeyRings {
 public:
  KeyRings(AttentionWriter& writer, const Rings& rings, const Tensor& k, const Tensor& v)
      : writer_(writer), rings_(rings), k_(k), v_(v) {
    std::int64_t most_rows = 0;
    for (int block = 0; block < writer.sharding().ring_size(); ++block) {
      most_rows = std::max(most_rows, writer.context().num_kv_rows(block));
    }
    std::vector<Traveller> travellers = {traveller(k)};
    if (!v.is_absent()) travellers.push_back(traveller(v));
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
      last.push_back(rings_.outer_trip(block).last);
    }
    return {writer_, rings_.outer(), rows, last, own_, outer_slots_, "outer k, v"};
  }

  // The buffers with K and V of a step, those that travel.
  std::vector<BufferId> buffers(const Rotation& rotation, int step) const {
    std::vector<BufferId> at;
    for (std::size_t i = 0; i < own_.size(); ++i) at.push_back(rotation.buffer(i, step));
    return at;
  }

  // The rotation inside this node of the blocks of `home_node`. This rank's own one of them is in the given
  // buffers.
  Rotation inner(int home_node, const std::vector<BufferId>& own) const {
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int place = 0; place < rings_.inner().size; ++place) {
      const int block = rings_.block_at(home_node, place);
      rows.push_back(writer_.context().num_kv_rows(block));
      last.push_back(rings_.inner_trip(rings_.node(), block).last);
    }
    std::vector<Traveller> from = own_;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i] != from[i].buffer) from[i].buffer = own[i], from[i].offset = 0, from[i].sent_from = -1;
    }
    return {writer_, rings_.inner(), rows, last, from, inner_slots_, "k, v"};
  }

  // K and V of the step's block.
  struct Block {
    Tensor k, v;
  };
  Block at(const Rotation& rotation, int step, int block) const {
    return {in(k_, rotation.buffer(kK, step), block),
            v_.is_absent() ? Tensor{} : in(v_, rotation.buffer(kV, step), block)};
  }

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
void for_each_node(const Rings& rings, const KeyRings& keys, const Visit& visit) {
  if (rings.nodes() == 1) return visit(0, 0, keys.inner(0, {}));
  Rotation outer = keys.outer();
  for (int step = 0; step < rings.nodes(); ++step) {
    if (step + 1 < rings.nodes()) outer.bring(step + 1);
    const int home_node = rings.outer().block(step);
    visit(home_node, step, keys.inner(home_node, keys.buffers(outer, step)));
  }
}

}  // namespace cp::detail
