// Ring attention: K and V blocks rotate, and behind them, backward, their partial dK and dV.
//
// A double ring is an outer ring of nodes in whose every step an inner ring runs; a plain one is a single node.
#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/mask_slices.h"
#include "shared/context_parallel/rotation.h"

namespace cp::detail {
namespace {

constexpr std::size_t kK = 0, kV = 1;  // travellers

// Which ring index stands where, and who needs what. Blocks are named by the ring index of their home.
class Rings {
 public:
  explicit Rings(PlanWriter& writer)
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
    inner_ = {writer.ring_subgroup(nodes_ > 1 ? "inner_ring" : "ring", inner_members), writer.comm(),
              inner_size_, place_, 1};
    if (nodes_ == 1) return;
    outer_ = {writer.ring_subgroup("outer_ring", outer_members), writer.builder().stream("outer"), nodes_,
              node_, 1};
  }

  // Backward: the directions that take fewer bytes, the reverse ones among equals.
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
  // How many it computes on.
  int blocks_met() const {
    int count = 0;
    for (int block = 0; block < nodes_ * inner_size_; ++block) count += meets(block) ? 1 : 0;
    return count;
  }
  // Whether any rank of the node does, so that the block rotates there.
  bool node_needs(int node, int block) const {
    for (int place = 0; place < inner_size_; ++place) {
      if (context_.meets(block_at(node, place), block)) return true;
    }
    return writer_.strategy().send_empty;
  }

  // Of the block whose home in this node is at `place`, round the inner ring.
  Trip inner_trip(int node, int block, int direction) const {
    const int place = block % inner_size_;
    return trip_of(inner_size_, [&](int distance) {
      const int member = ((place + direction * distance) % inner_size_ + inner_size_) % inner_size_;
      return writer_.strategy().send_empty || context_.meets(block_at(node, member), block);
    });
  }
  // From node to node.
  Trip outer_trip(int block, int direction) const {
    const int home = block / inner_size_;
    return trip_of(nodes_, [&](int distance) {
      return node_needs(((home + direction * distance) % nodes_ + nodes_) % nodes_, block);
    });
  }

 private:
  // Bytes of all blocks' trips, per head and value.
  std::int64_t inner_cost(int direction) const {
    const std::int64_t kv_bytes = size_bytes(writer_.problem().dtype),
                       dkv_bytes = size_bytes(writer_.gradient_dtype());
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

  PlanWriter& writer_;
  const AttentionContext& context_;
  int inner_size_, nodes_, node_, place_;
  Ring inner_, outer_;
};

// K and V as they rotate.
class KeyRings {
 public:
  KeyRings(PlanWriter& writer, const Rings& rings, const Tensor& k, const Tensor& v)
      : writer_(writer), rings_(rings), k_(k), v_(v) {
    std::int64_t most_rows = 0;
    for (int block = 0; block < writer.sharding().ring_size(); ++block) {
      most_rows = std::max(most_rows, writer.context().num_kv_rows(block));
    }
    const std::vector<Traveller> travellers = {traveller(k), traveller(v)};
    if (rings.inner().size > 1) inner_slots_ = make_slots(writer, travellers, most_rows, "k, v");
    if (rings.nodes() > 1) outer_slots_ = make_slots(writer, travellers, most_rows, "outer k, v");
  }

  // Between the nodes; a block is the node of its home.
  Rotation outer() const {
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int node = 0; node < rings_.nodes(); ++node) {
      const int block = rings_.block_at(node, rings_.inner().self);
      rows.push_back(writer_.context().num_kv_rows(block));
      last.push_back(rings_.outer_trip(block, rings_.outer().direction).last);
    }
    return {writer_, rings_.outer(), rows, last, {traveller(k_), traveller(v_)}, outer_slots_, "outer k, v"};
  }

  // Inside the node, of the blocks of `home_node`, of which this rank's lies in the given buffers.
  Rotation inner(int home_node, BufferId k, BufferId v) const {
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int place = 0; place < rings_.inner().size; ++place) {
      const int block = rings_.block_at(home_node, place);
      rows.push_back(writer_.context().num_kv_rows(block));
      last.push_back(rings_.inner_trip(rings_.node(), block, rings_.inner().direction).last);
    }
    Traveller base_k = traveller(k_), base_v = traveller(v_);
    base_k.buffer = k, base_v.buffer = v;
    return {writer_, rings_.inner(), rows, last, {base_k, base_v}, inner_slots_, "k, v"};
  }

  // The block in a buffer.
  Tensor k_in(BufferId buffer, int block) const { return in(k_, buffer, block); }
  Tensor v_in(BufferId buffer, int block) const { return in(v_, buffer, block); }

 private:
  Tensor in(const Tensor& model, BufferId buffer, int block) const {
    Tensor tensor = model.with_rows(writer_.context().num_kv_rows(block));
    tensor.buffer = buffer;
    return tensor;
  }

  PlanWriter& writer_;
  const Rings& rings_;
  Tensor k_, v_;
  Slots inner_slots_, outer_slots_;
};

// Calls visit(home node, outer step, rotation) for each outer step, whose blocks the next one's follow meanwhile.
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

// ---- backward ----

// dK and dV of the blocks of one home node, on their way round the inner ring.
class GradientRing {
 public:
  // `k`, `v`: this rank's tensors, which say what gradients look like.
  GradientRing(PlanWriter& writer, const Rings& rings, const Tensor& k, const Tensor& v)
      : writer_(writer), rings_(rings) {
    std::int64_t most_rows = 0;
    for (int block = 0; block < writer.sharding().ring_size(); ++block) {
      most_rows = std::max(most_rows, writer.context().num_kv_rows(block));
    }
    for (const Tensor* model : {&k, &v}) {
      const auto place = [&](const char* name) {
        return writer.temporary(name, writer.gradient_dtype(), model->order, most_rows, model->heads,
                                model->dim);
      };
      places_.push_back({{place("dkv slot"), place("dkv slot")}, place("dkv part"), place("dkv home")});
    }
  }

  void enter(int home_node) {
    home_node_ = home_node;
    trips_.clear();
    for (int place = 0; place < rings_.inner().size; ++place) {
      trips_.push_back(
          rings_.inner_trip(rings_.node(), rings_.block_at(home_node, place), rings_.inner().direction));
    }
  }

  const Trip& trip(int place) const { return trips_[static_cast<std::size_t>(place)]; }
  int block(int step) const { return rings_.block_at(home_node_, rings_.inner().block(step)); }

  // What the block's gradients of a step are written to: where they begin their way, or beside what arrived.
  bool begins(int step) const { return trip(rings_.inner().block(step)).first == step; }
  Tensor slot(std::size_t i, int step) const {
    return places_[i].slots[step % 2].with_rows(rows(block(step)));
  }
  Tensor part(std::size_t i, int step) const { return places_[i].part.with_rows(rows(block(step))); }

  // Sends on, or home, what step-1 left. Returns whether something came home, to home(0) and home(1).
  bool pass_on(int step) {
    const Ring& ring = rings_.inner();
    ExchangeWriter exchange(ring.group);
    for (int place = 0; place < ring.size; ++place) {
      const Trip& t = trip(place);
      if (t.last == 0 || step - 1 < t.first || step - 1 > t.last) continue;
      const int from = ring.member(step - 1, place),
                to = step - 1 < t.last ? ring.member(step, place) : place;
      for (const Place& p : places_) {
        const std::int64_t numel = p.part.with_rows(rows(rings_.block_at(home_node_, place))).numel();
        exchange.count(from, to, numel);
      }
    }
    const int leaving = ring.block(step - 1), arriving = step < ring.size ? ring.block(step) : -1;
    const auto moves = [&](int place) {
      return trip(place).last > 0 && step - 1 >= trip(place).first && step - 1 <= trip(place).last;
    };
    const bool comes_home = trip(ring.self).last == step - 1 && step > 1;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (moves(leaving)) {
        const bool goes_on = step - 1 < trip(leaving).last;
        exchange.send(goes_on ? ring.member(1, ring.self) : leaving, slot(i, step - 1).flat());
      }
      if (arriving >= 0 && moves(arriving) && step - 1 < trip(arriving).last) {
        exchange.receive(ring.member(-1, ring.self), slot(i, step).flat());
      }
      if (comes_home) exchange.receive(ring.member(step - 1, ring.self), home(i).flat());
    }
    std::move(exchange).issue(writer_.builder(), ring.stream, str("dk, dv of step ", step - 1));
    return comes_home;
  }
  Tensor home(std::size_t i) const { return places_[i].home.with_rows(rows(block(0))); }

 private:
  struct Place {
    Tensor slots[2];
    Tensor part, home;
  };
  std::int64_t rows(int block) const { return writer_.context().num_kv_rows(block); }

  PlanWriter& writer_;
  const Rings& rings_;
  int home_node_ = 0;
  std::vector<Trip> trips_;    // by place of the block's home in this node
  std::vector<Place> places_;  // of dk, dv
};

class RingBackward {
 public:
  RingBackward(PlanWriter& writer, const BackwardTensors& tensors)
      : writer_(writer),
        t_(tensors),
        rings_(directed(writer)),
        keys_(writer, rings_, t_.k, t_.v),
        gradients_(writer, rings_, t_.k, t_.v),
        delta_(writer.delta_of(t_.out, t_.dout)),
        dq_(writer, "dq", t_.dq, PartialGradient::Of::queries, rings_.blocks_met()) {
    // The rank's own part, and those of the others, which come together on their way.
    dkv_.emplace_back(writer, "dk", t_.dk, PartialGradient::Of::keys, 1 + rings_.nodes());
    dkv_.emplace_back(writer, "dv", t_.dv, PartialGradient::Of::keys, 1 + rings_.nodes());
  }

  void write() {
    writer_.begin(delta_);
    for_each_node(rings_, keys_, t_.k, t_.v, [&](int home_node, int outer_step, Rotation keys) {
      if (outer_step == 0) return inner_ring(home_node, keys, {});
      const std::vector<Tensor> sums = foreign_sums(home_node, outer_step);
      inner_ring(home_node, keys, sums);
      return_to_node(outer_step, sums);
    });
    dq_.finish("dq");
    dkv_[kK].finish("dk");
    dkv_[kV].finish("dv");
  }

 private:
  static Rings directed(PlanWriter& writer) {
    Rings rings(writer);
    rings.choose_directions();
    return rings;
  }

  // Where the node's part of a foreign block's gradients comes together.
  std::vector<Tensor> foreign_sums(int home_node, int outer_step) {
    const std::int64_t rows = writer_.context().num_kv_rows(rings_.block_at(home_node, rings_.inner().self));
    std::vector<Tensor> sums;
    for (const Tensor* model : {&t_.k, &t_.v}) {
      sums.push_back(writer_.temporary(str("dkv of outer step ", outer_step), writer_.gradient_dtype(),
                                       model->order, rows, model->heads, model->dim));
    }
    return sums;
  }

  // `sums`: of a foreign block; none for the rank's own.
  void inner_ring(int home_node, Rotation& keys, const std::vector<Tensor>& sums) {
    const int size = rings_.inner().size;
    gradients_.enter(home_node);
    for (int step = 0; step <= size; ++step) {
      if (step + 1 < size) keys.bring(step + 1);
      if (step > 0 && gradients_.pass_on(step)) {
        for (const std::size_t i : {kK, kV}) bring_home(i, sums);
      }
      if (step < size) compute(step, keys, sums);
    }
  }

  void bring_home(std::size_t i, const std::vector<Tensor>& sums) {
    const std::string label = "own dk, dv";
    if (!sums.empty()) return writer_.accumulate(gradients_.home(i), sums[i], label);
    dkv_[i].add(gradients_.home(i), label);
    if (rings_.nodes() > 1) dkv_[i].settle(label);  // foreign blocks' come to the same place
  }

  // Where a step's dK or dV goes: the block's sum at home; else what travels, from where it begins on, or, for exact kernels, beside it:
  // it may still be arriving. Parts of fused kernels are beside anyway.
  Gradient gradient(std::size_t i, int step, const std::vector<Tensor>& sums) {
    if (step == 0) return sums.empty() ? dkv_[i].next() : Gradient{sums[i]};
    if (gradients_.begins(step)) return {gradients_.slot(i, step)};
    if (writer_.is_fused()) return {gradients_.slot(i, step), true};
    return {gradients_.part(i, step)};
  }

  void compute(int step, const Rotation& keys, const std::vector<Tensor>& sums) {
    const int block = gradients_.block(step);
    const bool meets = rings_.meets(block);
    if (step == 0) {
      // A foreign block that nobody in the node needs has no sum.
      if (!rings_.node_needs(rings_.node(), block) && block != writer_.ring_index()) return;
    } else if (!meets && !gradients_.begins(step)) {
      return;
    }
    const std::string label = str("attention backward of step ", step);
    if (!meets) {
      for (const std::size_t i : {kK, kV}) {
        const bool own = step == 0 && sums.empty();
        if (!own || !writer_.is_fused()) writer_.fill(gradient(i, step, sums).tensor, 0, label);
      }
      return;
    }
    writer_.attend_backward(
        {t_.q, keys_.k_in(keys.buffer(kK, step), block), keys_.v_in(keys.buffer(kV, step), block), t_.dout,
         t_.lse, &delta_, dq_.next(), gradient(kK, step, sums), gradient(kV, step, sums)},
        mask_slices(writer_.problem(), writer_.context().q_rows(writer_.ring_index()),
                    writer_.context().kv_rows(block)),
        label);
    if (step == 0 || gradients_.begins(step) || writer_.is_fused()) return;
    for (const std::size_t i : {kK, kV}) {
      writer_.accumulate(gradients_.part(i, step), gradients_.slot(i, step), str("dk, dv of step ", step));
    }
  }

  // The node's part goes straight to the node of the block's home.
  void return_to_node(int outer_step, const std::vector<Tensor>& sums) {
    const Ring& ring = rings_.outer();
    const int place = rings_.inner().self;
    const auto returns = [&](int node) {
      return rings_.node_needs(node, rings_.block_at(ring.member(-outer_step, node), place));
    };
    ExchangeWriter exchange(ring.group);
    for (int node = 0; node < ring.size; ++node) {
      const int home = ring.member(-outer_step, node);
      if (!returns(node)) continue;
      const std::int64_t rows = writer_.context().num_kv_rows(rings_.block_at(home, place));
      for (const Tensor& sum : sums) exchange.count(node, home, sum.with_rows(rows).numel());
    }
    const int from = ring.member(outer_step, ring.self);
    std::vector<Tensor> arrived;
    for (const std::size_t i : {kK, kV}) {
      if (returns(ring.self)) exchange.send(ring.block(outer_step), sums[i].flat());
      if (!returns(from)) continue;
      const Tensor& own = i == kK ? t_.dk : t_.dv;
      arrived.push_back(writer_.temporary_like("dkv from another node", writer_.gradient_dtype(), own));
      exchange.receive(from, arrived.back().flat());
    }
    std::move(exchange).issue(writer_.builder(), ring.stream, str("dk, dv of outer step ", outer_step));
    for (std::size_t i = 0; i < arrived.size(); ++i) dkv_[i].add(arrived[i], "own dk, dv");
  }

  PlanWriter& writer_;
  const BackwardTensors& t_;
  Rings rings_;
  KeyRings keys_;
  GradientRing gradients_;
  RowDelta delta_;
  PartialGradient dq_;
  std::vector<PartialGradient> dkv_;  // this rank's own block's
};

}  // namespace

void write_ring(PlanWriter& writer, const ForwardTensors& t) {
  if (writer.sharding().ring_size() == 1 || writer.strategy().rotation == Strategy::Rotation::all_gather) {
    return write_gathered(writer, t);
  }
  const Rings rings(writer);
  const KeyRings keys(writer, rings, t.k, t.v);
  PartialOutputs outputs(writer, t.out, t.lse, rings.blocks_met());
  const IndexSet& q_rows = writer.context().q_rows(writer.ring_index());
  for_each_node(rings, keys, t.k, t.v, [&](int home_node, int, Rotation rotation) {
    for (int step = 0; step < rings.inner().size; ++step) {
      if (step + 1 < rings.inner().size) rotation.bring(step + 1);
      const int block = rings.block_at(home_node, rings.inner().block(step));
      if (!rings.meets(block)) continue;
      outputs.add(
          {t.q, keys.k_in(rotation.buffer(kK, step), block), keys.v_in(rotation.buffer(kV, step), block)},
          mask_slices(writer.problem(), q_rows, writer.context().kv_rows(block)),
          str("attention of step ", step));
    }
  });
  outputs.finish();
}

void write_ring(PlanWriter& writer, const BackwardTensors& t) {
  if (writer.sharding().ring_size() == 1 || writer.strategy().rotation == Strategy::Rotation::all_gather) {
    return write_gathered(writer, t);
  }
  RingBackward(writer, t).write();
}

}  // namespace cp::detail
