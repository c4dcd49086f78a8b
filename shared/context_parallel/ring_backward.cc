// Ring attention, backward: K and V blocks rotate, and behind them their partial dK and dV.
#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/rings.h"

namespace cp::detail {
namespace {

// dK and dV (those that are wanted) of the blocks of one home node, on their way round the inner ring. The
// gradients of a block travel one step behind the block itself: each rank adds its part and passes them on,
// and behind the last rank that has a part they go straight home. Only the ranks from trip.first to trip.last
// take part.
class GradientRing {
 public:
  // `k` and `v` are this rank's tensors; gradients have their order, heads and dims. Latent rows are k alone.
  GradientRing(AttentionWriter& writer, const Rings& rings, const Tensor& k, const Tensor& v)
      : writer_(writer), rings_(rings), places_(2) {
    if (writer.gradients().dk) wanted_.push_back(kK);
    if (writer.gradients().dv && !v.is_absent()) wanted_.push_back(kV);
    std::int64_t most_rows = 0;
    for (int block = 0; block < writer.sharding().ring_size(); ++block) {
      most_rows = std::max(most_rows, writer.context().num_kv_rows(block));
    }
    for (const std::size_t i : wanted_) {
      const Tensor& model = i == kK ? k : v;
      // Two slots: while one is being sent, the next block's gradients arrive in the other. `part` is what
      // this rank computes while a block's gradients may still be arriving; where it is added beside the next
      // step's attention, that one writes another. `home` is where the rank's own come back.
      const auto place = [&](const char* name) {
        return writer.temporary(name, writer.gradient_dtype(), model.order, most_rows, model.heads,
                                model.dim);
      };
      Place& of = places_[i];
      for (Tensor& slot : of.slots) slot = place("dkv slot");
      of.parts.push_back(place("dkv part"));
      of.home = place("dkv home");
      if (writer.merges_beside()) of.parts.push_back(place("dkv part"));
    }
  }

  // Of kK and kV.
  const std::vector<std::size_t>& wanted() const { return wanted_; }
  bool wants(std::size_t i) const { return places_[i].home.buffer >= 0; }

  void enter(int home_node) {
    home_node_ = home_node;
    trips_.clear();
    for (int place = 0; place < rings_.inner().size; ++place) {
      trips_.push_back(rings_.inner_trip(rings_.node(), rings_.block_at(home_node, place)));
    }
  }

  const Trip& trip(int place) const { return trips_[static_cast<std::size_t>(place)]; }
  int block(int step) const { return rings_.block_at(home_node_, rings_.inner().block(step)); }

  // Whether this rank is the first that writes gradients of the block of this step: it writes them into the
  // slot, with nothing to add to.
  bool begins(int step) const { return trip(rings_.inner().block(step)).first == step; }
  Tensor slot(std::size_t i, int step) const {
    return places_[i].slots[step % 2].with_rows(rows(block(step)));
  }
  Tensor part(std::size_t i, int step) const {
    const std::vector<Tensor>& parts = places_[i].parts;
    return parts[static_cast<std::size_t>(step) % parts.size()].with_rows(rows(block(step)));
  }

  // Sends what step-1 left to the next rank, or home if no later rank has a part. Returns whether this rank's
  // own gradients came home, to home(kK) and home(kV).
  bool pass_on(int step) {
    const Ring& ring = rings_.inner();
    ExchangeWriter exchange(ring.team.sums());
    // All members list the same counts, also for transfers that are not theirs: the digest of the whole
    // exchange is what they compare.
    for (int place = 0; place < ring.size; ++place) {
      const Trip& t = trip(place);
      if (t.last == 0 || step - 1 < t.first || step - 1 > t.last) continue;
      const int from = ring.member(step - 1, place),
                to = step - 1 < t.last ? ring.member(step, place) : place;
      for (const std::size_t i : wanted_) {
        const Tensor block = places_[i].home.with_rows(rows(rings_.block_at(home_node_, place)));
        exchange.count(from, to, block.numel());
      }
    }
    const int leaving = ring.block(step - 1), arriving = step < ring.size ? ring.block(step) : -1;
    const auto moves = [&](int place) {
      return trip(place).last > 0 && step - 1 >= trip(place).first && step - 1 <= trip(place).last;
    };
    // Of this rank's own block: the last rank that had a part has just computed it. (At step 1 only the home
    // itself has.)
    const bool comes_home = trip(ring.self).last == step - 1 && step > 1;
    for (const std::size_t i : wanted_) {
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
    std::vector<Tensor> parts;
    Tensor home;
  };
  std::int64_t rows(int block) const { return writer_.context().num_kv_rows(block); }

  AttentionWriter& writer_;
  const Rings& rings_;
  int home_node_ = 0;
  std::vector<Trip> trips_;  // by place of the block's home in this node
  std::vector<std::size_t> wanted_;
  std::vector<Place> places_;  // of dk, dv
};

class RingBackward {
 public:
  RingBackward(AttentionWriter& writer, const BackwardTensors& tensors)
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
    for_each_node(rings_, keys_, [&](int home_node, int outer_step, Rotation keys) {
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
  static Rings directed(AttentionWriter& writer) {
    Rings rings(writer);
    rings.choose_directions();
    return rings;
  }

  // Where the node's part of a foreign block's gradients comes together.
  std::vector<Tensor> foreign_sums(int home_node, int outer_step) {
    const std::int64_t rows = writer_.context().num_kv_rows(rings_.block_at(home_node, rings_.inner().self));
    std::vector<Tensor> sums(2);
    for (const std::size_t i : gradients_.wanted()) {
      const Tensor& model = i == kK ? t_.k : t_.v;
      sums[i] = writer_.temporary(str("dkv of outer step ", outer_step), writer_.gradient_dtype(),
                                  model.order, rows, model.heads, model.dim);
    }
    return sums;
  }

  // `sums`: of a foreign block; none for the rank's own.
  void inner_ring(int home_node, Rotation& keys, const std::vector<Tensor>& sums) {
    const int size = rings_.inner().size;
    gradients_.enter(home_node);
    // The order lets transfers run beside the computation: the next block is asked for first, then gradients
    // of the step before are sent, then this step computes. One turn more than steps, to send what the last
    // one left.
    for (int step = 0; step <= size; ++step) {
      if (step + 1 < size) keys.bring(step + 1);
      if (step > 0 && gradients_.pass_on(step)) {
        for (const std::size_t i : gradients_.wanted()) bring_home(i, sums);
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

  // Where a step's dK or dV goes: the block's sum at home; else what travels, from where it begins on, or,
  // for exact kernels, beside it: it may still be arriving. Parts of fused kernels are beside anyway.
  Gradient gradient(std::size_t i, int step, const std::vector<Tensor>& sums) {
    if (!gradients_.wants(i)) return {};
    if (step == 0) return sums.empty() ? dkv_[i].next() : Gradient{sums[i]};
    if (gradients_.begins(step)) return {gradients_.slot(i, step)};
    if (writer_.key_parts_are_fused()) return {gradients_.slot(i, step), true};
    return {gradients_.part(i, step)};
  }

  void compute(int step, const Rotation& keys, const std::vector<Tensor>& sums) {
    // A rank without a pair in the block has still to write zeros if it is where the gradients begin: whoever
    // comes next adds to them.
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
      for (const std::size_t i : gradients_.wanted()) {
        const bool own = step == 0 && sums.empty();
        if (!own || !writer_.key_parts_are_fused()) writer_.fill(gradient(i, step, sums).tensor, 0, label);
      }
      return;
    }
    const auto [k, v] = keys_.at(keys, step, block);
    writer_.attend_backward(
        {t_.q, k, v, t_.dout, t_.lse, &delta_, dq_.next(), gradient(kK, step, sums),
         gradient(kV, step, sums)},
        writer_.masks(writer_.context().q_rows(writer_.ring_index()), writer_.context().kv_rows(block)),
        label);
    // What arrived meanwhile is in the slot; an exact kernel's part is added to it only now, so that the
    // kernel did not have to wait for the arrival. Fused parts were added by PartialSum.
    if (step == 0 || gradients_.begins(step) || writer_.key_parts_are_fused()) return;
    for (const std::size_t i : gradients_.wanted()) {
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
    ExchangeWriter exchange(ring.team.sums());
    for (int node = 0; node < ring.size; ++node) {
      const int home = ring.member(-outer_step, node);
      if (!returns(node)) continue;
      const std::int64_t rows = writer_.context().num_kv_rows(rings_.block_at(home, place));
      for (const std::size_t i : gradients_.wanted())
        exchange.count(node, home, sums[i].with_rows(rows).numel());
    }
    const int from = ring.member(outer_step, ring.self);
    std::vector<std::pair<std::size_t, Tensor>> arrived;
    for (const std::size_t i : gradients_.wanted()) {
      if (returns(ring.self)) exchange.send(ring.block(outer_step), sums[i].flat());
      if (!returns(from)) continue;
      const Tensor& own = i == kK ? t_.dk : t_.dv;
      arrived.emplace_back(i, writer_.temporary_like("dkv from another node", writer_.gradient_dtype(), own));
      exchange.receive(from, arrived.back().second.flat());
    }
    std::move(exchange).issue(writer_.builder(), ring.stream, str("dk, dv of outer step ", outer_step));
    for (const auto& [i, part] : arrived) dkv_[i].add(part, "own dk, dv");
  }

  AttentionWriter& writer_;
  const BackwardTensors& t_;
  Rings rings_;
  KeyRings keys_;
  GradientRing gradients_;
  RowDelta delta_;
  PartialGradient dq_;
  std::vector<PartialGradient> dkv_;  // this rank's own block's
};

}  // namespace

void write_ring(AttentionWriter& writer, const BackwardTensors& t) {
  if (writer.sharding().ring_size() == 1 || writer.strategy().rotation == Strategy::Rotation::all_gather) {
    return write_gathered(writer, t);
  }
  RingBackward(writer, t).write();
}

}  // namespace cp::detail
