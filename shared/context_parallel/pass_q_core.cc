// Queries rotate against K and V that stay; what other ranks computed for a rank's queries comes home by one
// all-to-all at the end. For few queries against many keys.
#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/rotation.h"

namespace cp::detail {
namespace {

// Query blocks that travel round the ring. A block is named by the ring index of its home.
class QueryRing {
 public:
  QueryRing(AttentionWriter& writer, std::vector<Traveller> travellers)
      : writer_(writer),
        context_(writer.context()),
        ring_{writer.ring_team(), writer.comm(), writer.sharding().ring_size(), writer.ring_index(), 1} {
    // A block travels only as far as the last rank that needs it, and under a causal mask one direction is
    // shorter. All ranks compute the same costs, so they agree.
    ring_.direction = cost(-1) < cost(1) ? -1 : 1;
    std::vector<std::int64_t> rows;
    std::vector<int> last;
    for (int block = 0; block < ring_.size; ++block) {
      rows.push_back(context_.num_q_rows(block));
      last.push_back(trip(block, ring_.direction).last);
    }
    slots_ = make_slots(writer, travellers, *std::max_element(rows.begin(), rows.end()), "q");
    rotation_.emplace(writer, ring_, rows, last, std::move(travellers), slots_, "q");
  }
  QueryRing(const QueryRing&) = delete;
  QueryRing& operator=(const QueryRing&) = delete;

  const Ring& ring() const { return ring_; }
  bool meets(int block) const { return context_.meets(block, ring_.self); }
  int blocks_met() const {
    int count = 0;
    for (int block = 0; block < ring_.size; ++block) count += meets(block) ? 1 : 0;
    return count;
  }
  const IndexSet& rows(int block) const { return context_.q_rows(block); }

  Tensor tensor(std::size_t traveller, const Tensor& model, int step) const {
    Tensor result = model.with_rows(context_.num_q_rows(ring_.block(step)));
    if (step > 0) result.buffer = rotation_->buffer(traveller, step), result.offset = 0;
    return result;
  }
  RowStatistic statistic(std::size_t traveller, const RowStatistic& model, int step) const {
    RowStatistic result = model.with_rows(context_.num_q_rows(ring_.block(step)));
    result.buffer = rotation_->buffer(traveller, step);
    return result;
  }

  // Calls visit(step, block) for each block that has pairs with the rank's keys, its own first, while the
  // next one travels.
  template <class Visit>
  void for_each_block(const Visit& visit) {
    for (int step = 0; step < ring_.size; ++step) {
      if (step + 1 < ring_.size) rotation_->bring(step + 1);
      if (meets(ring_.block(step))) visit(step, ring_.block(step));
    }
  }

  // What this rank has computed for the queries of other ranks, and where their results for its own queries
  // arrive. per_row: elements that travel for each query row.
  struct Results {
    std::vector<std::pair<int, std::vector<View>>> computed, arriving;  // by ring index
    std::int64_t per_row = 0;
  };
  void send_home(Results results, const std::string& label) {
    ExchangeWriter exchange(ring_.team.sums());
    for (int home = 0; home < ring_.size; ++home) {
      for (int from = 0; from < ring_.size; ++from) {
        if (from != home && context_.meets(home, from)) {
          exchange.count(from, home, context_.num_q_rows(home) * results.per_row);
        }
      }
    }
    for (auto& [home, views] : results.computed) {
      for (View& view : views) exchange.send(home, std::move(view));
    }
    for (auto& [from, views] : results.arriving) {
      for (View& view : views) exchange.receive(from, std::move(view));
    }
    std::move(exchange).issue(writer_.builder(), ring_.stream, label);
  }

  // The ranks that computed for this rank's queries, in the order in which those came by.
  std::vector<int> helpers() const {
    std::vector<int> result;
    for (int distance = 1; distance < ring_.size; ++distance) {
      const int other = ring_.member(distance, ring_.self);
      if (context_.meets(ring_.self, other)) result.push_back(other);
    }
    return result;
  }

 private:
  Trip trip(int block, int direction) const {
    return trip_of(ring_.size, [&](int distance) {
      const int member = ((block + direction * distance) % ring_.size + ring_.size) % ring_.size;
      return writer_.strategy().send_empty || context_.meets(block, member);
    });
  }
  std::int64_t cost(int direction) const {
    std::int64_t cost = 0;
    for (int block = 0; block < ring_.size; ++block)
      cost += context_.num_q_rows(block) * trip(block, direction).last;
    return cost;
  }

  AttentionWriter& writer_;
  const AttentionContext& context_;
  Ring ring_;
  Slots slots_;
  std::optional<Rotation> rotation_;
};

// A partial output and its lse.
struct Partial {
  Tensor out;
  RowStatistic lse;
  std::vector<View> views() const { return {out.flat(), lse.flat()}; }
};
Partial make_partial(AttentionWriter& writer, const ForwardTensors& t, std::int64_t rows, int whose) {
  return {writer.temporary(str("out of ", whose), writer.merge_dtype(), t.out.order, rows, t.out.heads,
                           t.out.dim),
          writer.statistic(BufferKind::temporary, str("lse of ", whose), rows, t.lse.heads)};
}

}  // namespace

void write_pass_q(AttentionWriter& writer, const ForwardTensors& t) {
  if (writer.sharding().ring_size() == 1) return write_gathered(writer, t);
  QueryRing queries(writer, {traveller(t.q)});
  const int self = writer.ring_index();
  const IndexSet& kv_rows = writer.context().kv_rows(self);
  const std::vector<int> helpers = queries.helpers();
  PartialOutputs outputs(writer, t.out, t.lse,
                         static_cast<int>(helpers.size()) + (queries.meets(self) ? 1 : 0));

  QueryRing::Results results{{}, {}, t.out.batch * t.out.heads * (t.out.dim + 1)};
  queries.for_each_block([&](int step, int block) {
    const Masks masks = writer.masks(queries.rows(block), kv_rows);
    const std::string label = str("attention of step ", step);
    // A rank's own queries need no partial result that travels: they go straight into the output's sum.
    if (step == 0) return outputs.add({t.q, t.k, t.v}, masks, label);
    const Partial partial = make_partial(writer, t, size(queries.rows(block)), block);
    writer.attend({queries.tensor(0, t.q, step), t.k, t.v, partial.out, partial.lse}, masks, label);
    results.computed.emplace_back(block, partial.views());
  });
  std::vector<Partial> arrived;
  for (const int helper : helpers) {
    arrived.push_back(make_partial(writer, t, t.out.rows, helper));
    results.arriving.emplace_back(helper, arrived.back().views());
  }
  queries.send_home(std::move(results), "partial outputs");
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    outputs.add(arrived[i].out, arrived[i].lse, str("merge from ", helpers[i]));
  }
  outputs.finish();
}

void write_pass_q(AttentionWriter& writer, const BackwardTensors& t) {
  if (writer.sharding().ring_size() == 1) return write_gathered(writer, t);
  RowDelta delta = writer.delta_of(t.out, t.dout);
  writer.begin(delta);
  // Fused kernels make delta of out.
  QueryRing queries(writer, {traveller(t.q), traveller(t.dout), traveller(t.lse),
                             writer.is_fused() ? traveller(t.out) : traveller(delta.rows)});
  const int self = writer.ring_index();
  const std::vector<int> helpers = queries.helpers();
  PartialGradient dq(writer, "dq", t.dq, PartialGradient::Of::queries,
                     static_cast<int>(helpers.size()) + (queries.meets(self) ? 1 : 0));
  PartialGradient dk(writer, "dk", t.dk, PartialGradient::Of::keys, queries.blocks_met()),
      dv(writer, "dv", t.dv, PartialGradient::Of::keys, queries.blocks_met());
  const bool wants_dq = !t.dq.is_absent();
  const auto partial_dq = [&](int whose, std::int64_t rows) {
    return writer.temporary(str("dq of ", whose), writer.gradient_dtype(), t.dq.order, rows, t.dq.heads,
                            t.dq.dim);
  };

  QueryRing::Results results{{}, {}, t.dq.batch * t.dq.heads * t.dq.dim};
  queries.for_each_block([&](int step, int block) {
    const Gradient block_dq =
        step == 0 || !wants_dq ? dq.next() : Gradient{partial_dq(block, size(queries.rows(block)))};
    RowDelta block_delta = delta;
    // delta is computed once at home and travels as one number a row. Fused kernels take `out` instead, so
    // that it travels in delta's place; what they leave to exact kernels makes delta of it there.
    if (!writer.is_fused()) {
      block_delta.rows = queries.statistic(3, delta.rows, step);
    } else if (step > 0) {
      block_delta = writer.delta_of(queries.tensor(3, t.out, step), queries.tensor(1, t.dout, step));
    }
    writer.attend_backward({queries.tensor(0, t.q, step), t.k, t.v, queries.tensor(1, t.dout, step),
                            queries.statistic(2, t.lse, step), &block_delta, block_dq, dk.next(), dv.next()},
                           writer.masks(queries.rows(block), writer.context().kv_rows(self)),
                           str("attention backward of step ", step));
    if (step > 0 && wants_dq) results.computed.push_back({block, {block_dq.tensor.flat()}});
  });
  std::vector<Tensor> arrived;
  if (wants_dq) {
    for (const int helper : helpers) {
      arrived.push_back(partial_dq(helper, t.dq.rows));
      results.arriving.push_back({helper, {arrived.back().flat()}});
    }
  }
  // All partial results go home in one exchange at the end, instead of travelling on with their queries: a
  // result is sent once, straight to where it is needed.
  queries.send_home(std::move(results), "partial dq");
  for (std::size_t i = 0; i < arrived.size(); ++i) dq.add(arrived[i], str("dq from ", helpers[i]));
  dq.finish("dq");
  dk.finish("dk");
  dv.finish("dv");
}

// ---- what others know of it ----

namespace {

// Nothing is claimed: queries go the way that takes fewer bytes, and no further than somebody needs them.
LeastTraffic queries_may_stay(const Strategy&, int, double, double) { return {}; }

constexpr CoreVariant kPassQVariants[] = {{CoreVariant::Place::alone, {Balance::Kind::head_tail}}};
constexpr Balance::Kind kBalancesOfPassQ[] = {Balance::Kind::head_tail, Balance::Kind::contiguous};

}  // namespace

constinit const CoreFacts kPassQCore = {
    .core = Core::pass_q,
    .name = "pass_q",
    .rotates = Rotates::queries,
    .compared = kPassQVariants,
    .searched = kPassQVariants,
    .balances = kBalancesOfPassQ,
    .instead = CoreInstead{Core::ring, "passes keys and values instead of queries"},
    .forward = write_pass_q,
    .backward = write_pass_q,
    .least_traffic = queries_may_stay,
};

}  // namespace cp::detail
