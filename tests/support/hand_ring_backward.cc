// The gradients of ring attention. In step i rank r computes with the keys and values of rank r-i. During it,
// the block of step i+1 arrives, and the gradients of step i-1 go on to the next rank, where they meet their
// block again: after n hops they are at home. Two slots each make both transfers independent of the
// computation that they run beside.
#include <algorithm>
#include <string>

#include "shared/base/text.h"
#include "shared/placement/split.h"
#include "shared/plan/builder.h"
#include "tests/support/attention_definition.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

constexpr std::int64_t kBatch = 2, kQueryHeads = 4, kKeyHeads = 2, kHeadDim = 3, kValueDim = 5;
constexpr double kSoftmaxScale = 0.5;

// Packed documents: uneven, one of a single token, one empty.
const std::vector<std::int64_t>& document_ends() {
  static const std::vector<std::int64_t> ends = {0, 5, 6, 29, 29, 40};
  return ends;
}

std::int64_t document_of(std::int64_t position) {
  const auto& ends = document_ends();
  return std::upper_bound(ends.begin(), ends.end(), position) - ends.begin();
}

// Consecutive positions of one document that a rank holds.
struct Piece {
  std::int64_t document = 0, global = 0, local = 0, size = 0;
};

std::vector<std::int64_t> positions_of(int ranks, int index) {
  const IndexSet all = index_range(0, document_ends().back());
  const IndexSet held = split_part(PerSequence{document_ends(), HeadTail{}}, all, ranks, index);
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < size(held); ++i) positions.push_back(to_global(held, i));
  return positions;
}

std::vector<Piece> pieces_of(const std::vector<std::int64_t>& positions) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t document = document_of(positions[i]);
    if (i > 0 && positions[i] == positions[i - 1] + 1 && document == pieces.back().document) {
      ++pieces.back().size;
    } else {
      pieces.push_back({document, positions[i], static_cast<std::int64_t>(i), 1});
    }
  }
  return pieces;
}

// The causal mask within documents, in local coordinates.
std::vector<MaskSlice> mask_slices(const std::vector<Piece>& queries, const std::vector<Piece>& keys) {
  std::vector<MaskSlice> slices;
  for (const Piece& q : queries) {
    for (const Piece& k : keys) {
      if (q.document != k.document || k.global > q.global + q.size - 1) continue;
      const bool all_before = k.global + k.size - 1 <= q.global;
      slices.push_back({q.local, q.size, k.local, k.size,
                        all_before ? MaskSlice::Kind::full : MaskSlice::Kind::causal,
                        all_before ? 0 : q.global - k.global, 0});
    }
  }
  return slices;
}

class RingBackward {
 public:
  RingBackward(int ranks, int self, DType dtype, std::vector<std::vector<std::int64_t>> positions)
      : n_(ranks), self_(self), dtype_(dtype), positions_(std::move(positions)), b_(self, host_target()) {}

  Plan build() {
    declare();
    b_.add(compute_, AttentionDelta{out_, dout_, delta_}, "delta");
    for (int step = 0; step < n_; ++step) {
      if (step + 1 < n_) send_keys_and_values(step);
      if (step > 0) send_gradients(step, dk_slot(step), dv_slot(step));
      compute(step);
    }
    if (n_ > 1) send_gradients(n_, dk_, dv_);
    Hasher inputs;
    inputs.add(std::string_view("ring_backward")).add(n_).add(name(dtype_));
    return std::move(b_).build(inputs.digest());
  }

 private:
  std::int64_t length(int index) const {
    return static_cast<std::int64_t>(positions_[static_cast<std::size_t>(index)].size());
  }
  int block_in_step(int step) const { return (self_ - step + 2 * n_) % n_; }

  View rows(BufferId buffer, int block, std::int64_t heads, std::int64_t dim, std::int64_t offset = 0) const {
    return dense_view(buffer, offset, {kBatch, length(block), heads, dim});
  }
  View statistic(BufferId buffer) const {
    return dense_view(buffer, 0, {kBatch, kQueryHeads, length(self_)});
  }
  // One of the two slots for a block of keys, values or their gradients.
  View slot(BufferId buffer, int step, std::int64_t dim) const {
    return rows(buffer, block_in_step(step), kKeyHeads, dim, step % 2 * slot_numel(dim));
  }
  std::int64_t slot_numel(std::int64_t dim) const {
    std::int64_t longest = 0;
    for (int index = 0; index < n_; ++index) longest = std::max(longest, length(index));
    return kBatch * longest * kKeyHeads * dim;
  }
  View k_slot(int step) const { return step == 0 ? k_ : slot(k_slots_, step, kHeadDim); }
  View v_slot(int step) const { return step == 0 ? v_ : slot(v_slots_, step, kValueDim); }
  View dk_slot(int step) const { return n_ == 1 ? dk_ : slot(dk_slots_, step, kHeadDim); }
  View dv_slot(int step) const { return n_ == 1 ? dv_ : slot(dv_slots_, step, kValueDim); }

  void declare() {
    compute_ = b_.stream("compute");
    comm_ = b_.stream("comm");
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < n_; ++rank) ranks.push_back(rank);
    group_ = b_.group("cp", ranks);
    const std::int64_t tokens = kBatch * length(self_);
    const std::int64_t q_numel = tokens * kQueryHeads * kHeadDim,
                       out_numel = tokens * kQueryHeads * kValueDim;
    const std::int64_t k_numel = tokens * kKeyHeads * kHeadDim, v_numel = tokens * kKeyHeads * kValueDim;
    q_ = rows(b_.input("q", dtype_, q_numel), self_, kQueryHeads, kHeadDim);
    k_ = rows(b_.input("k", dtype_, k_numel), self_, kKeyHeads, kHeadDim);
    v_ = rows(b_.input("v", dtype_, v_numel), self_, kKeyHeads, kValueDim);
    dout_ = rows(b_.input("dout", dtype_, out_numel), self_, kQueryHeads, kValueDim);
    out_ = rows(b_.input("out", DType::f32, out_numel), self_, kQueryHeads, kValueDim);
    lse_ = statistic(b_.input("lse", DType::f32, tokens * kQueryHeads));
    delta_ = statistic(b_.temporary("delta", DType::f32, tokens * kQueryHeads));
    dq_ = rows(b_.output("dq", DType::f32, q_numel), self_, kQueryHeads, kHeadDim);
    dk_ = rows(b_.output("dk", DType::f32, k_numel), self_, kKeyHeads, kHeadDim);
    dv_ = rows(b_.output("dv", DType::f32, v_numel), self_, kKeyHeads, kValueDim);
    if (n_ == 1) return;
    k_slots_ = b_.temporary("k_slots", dtype_, 2 * slot_numel(kHeadDim));
    v_slots_ = b_.temporary("v_slots", dtype_, 2 * slot_numel(kValueDim));
    dk_slots_ = b_.temporary("dk_slots", DType::f32, 2 * slot_numel(kHeadDim));
    dv_slots_ = b_.temporary("dv_slots", DType::f32, 2 * slot_numel(kValueDim));
    dk_part_ = b_.temporary("dk_part", DType::f32, slot_numel(kHeadDim));
    dv_part_ = b_.temporary("dv_part", DType::f32, slot_numel(kValueDim));
  }

  // Every rank sends the block that it computed or computes with in step `block_step` to the next one.
  void shift(int block_step, std::vector<View> sends, std::vector<View> recvs, std::string label) {
    Exchange exchange{.group = group_, .sends = {}, .recvs = {}, .counts = {}};
    for (View& view : sends) {
      if (view.numel() > 0) exchange.sends.push_back({(self_ + 1) % n_, std::move(view)});
    }
    for (View& view : recvs) {
      if (view.numel() > 0) exchange.recvs.push_back({(self_ + n_ - 1) % n_, std::move(view)});
    }
    std::vector<Count> counts;
    for (int from = 0; from < n_; ++from) {
      const int block = (from - block_step + 2 * n_) % n_;
      counts.push_back({from, (from + 1) % n_, kBatch * length(block) * kKeyHeads * (kHeadDim + kValueDim)});
    }
    exchange.counts = counts_digest(std::move(counts));
    b_.add(comm_, std::move(exchange), std::move(label));
  }
  void send_keys_and_values(int step) {
    shift(step, {k_slot(step), v_slot(step)}, {k_slot(step + 1), v_slot(step + 1)},
          str("k, v of step ", step + 1));
  }
  void send_gradients(int step, View dk, View dv) {
    shift(step - 1, {dk_slot(step - 1), dv_slot(step - 1)}, {std::move(dk), std::move(dv)},
          str("dk, dv of step ", step - 1));
  }

  void compute(int step) {
    const int block = block_in_step(step);
    AttentionBackward attention{
        .q = q_,
        .k = k_slot(step),
        .v = v_slot(step),
        .dout = dout_,
        .lse = lse_,
        .delta = delta_,
        .dq = dq_,
        .dk = dk_slot(step),
        .dv = dv_slot(step),
        .softmax_scale = kSoftmaxScale,
        .slices = mask_slices(pieces_of(positions_[static_cast<std::size_t>(self_)]),
                              pieces_of(positions_[static_cast<std::size_t>(block)]))};
    if (step == 0) {
      b_.add(compute_, std::move(attention), "attention of step 0");
      return;
    }
    if (attention.slices.empty()) return;
    // dq stays at home. dk and dv go into parts: the gradients of this block are still under way.
    attention.accumulate_dq = true;
    attention.dk = rows(dk_part_, block, kKeyHeads, kHeadDim);
    attention.dv = rows(dv_part_, block, kKeyHeads, kValueDim);
    const View dk_part = attention.dk, dv_part = attention.dv;
    b_.add(compute_, std::move(attention), str("attention of step ", step));
    b_.add(compute_, Accumulate{ReduceOp::sum, dk_part, dk_slot(step)}, "dk");
    b_.add(compute_, Accumulate{ReduceOp::sum, dv_part, dv_slot(step)}, "dv");
  }

  int n_, self_;
  DType dtype_;
  std::vector<std::vector<std::int64_t>> positions_;  // global positions, by index in the ring
  PlanBuilder b_;
  StreamId compute_ = -1, comm_ = -1;
  GroupId group_ = -1;
  View q_, k_, v_, dout_, out_, lse_, delta_, dq_, dk_, dv_;
  BufferId k_slots_ = -1, v_slots_ = -1, dk_slots_ = -1, dv_slots_ = -1, dk_part_ = -1, dv_part_ = -1;
};

// The rows of the positions along dimension 1 of [batch, seq, width].
std::vector<double> take_rows(const std::vector<double>& values, std::int64_t width,
                              const std::vector<std::int64_t>& positions) {
  const std::int64_t seq_len = document_ends().back();
  std::vector<double> taken;
  for (std::int64_t batch = 0; batch < kBatch; ++batch) {
    for (const std::int64_t position : positions) {
      const auto begin = values.begin() + (batch * seq_len + position) * width;
      taken.insert(taken.end(), begin, begin + width);
    }
  }
  return taken;
}
// The columns of the positions of [batch, heads, seq].
std::vector<double> take_columns(const std::vector<double>& values,
                                 const std::vector<std::int64_t>& positions) {
  std::vector<double> taken;
  for (std::int64_t row = 0; row < kBatch * kQueryHeads; ++row) {
    for (const std::int64_t position : positions) {
      taken.push_back(values[static_cast<std::size_t>(row * document_ends().back() + position)]);
    }
  }
  return taken;
}

}  // namespace

PlanCase ring_backward(int ranks, DType dtype) {
  const std::int64_t seq_len = document_ends().back();
  const AttentionShape shape{kBatch, seq_len, seq_len, kQueryHeads, kKeyHeads, kHeadDim, kValueDim};
  const AttentionInputs whole{
      shape,
      kSoftmaxScale,
      [](std::int64_t q, std::int64_t k) { return k <= q && document_of(q) == document_of(k); },
      small_fractions(shape.q_numel(), 1),
      small_fractions(shape.k_numel(), 2),
      small_fractions(shape.v_numel(), 3)};
  const std::vector<double> dout = small_fractions(shape.out_numel(), 4);
  const AttentionOutputs forward = reference_forward(whole);
  const AttentionGradients grads = reference_backward(whole, dout);

  // f32 sums of up to 40 terms, of values below 3: 40 * 2^-24 * 3 = 7e-6; the greatest difference seen is
  // 9e-7.
  PlanCase result{str("ring_backward_", name(dtype), "_", ranks, "_ranks"), {}, {}, {}, 1e-5};
  std::vector<std::vector<std::int64_t>> positions;
  for (int index = 0; index < ranks; ++index) positions.push_back(positions_of(ranks, index));
  for (int self = 0; self < ranks; ++self) {
    result.plans.push_back(RingBackward(ranks, self, dtype, positions).build());
    const auto& mine = positions[static_cast<std::size_t>(self)];
    result.inputs.push_back({{"q", take_rows(whole.q, kQueryHeads * kHeadDim, mine)},
                             {"k", take_rows(whole.k, kKeyHeads * kHeadDim, mine)},
                             {"v", take_rows(whole.v, kKeyHeads * kValueDim, mine)},
                             {"dout", take_rows(dout, kQueryHeads * kValueDim, mine)},
                             {"out", take_rows(forward.out, kQueryHeads * kValueDim, mine)},
                             {"lse", take_columns(forward.lse, mine)}});
    result.expected.push_back({{"dq", take_rows(grads.dq, kQueryHeads * kHeadDim, mine)},
                               {"dk", take_rows(grads.dk, kKeyHeads * kHeadDim, mine)},
                               {"dv", take_rows(grads.dv, kKeyHeads * kValueDim, mine)}});
  }
  return result;
}

}  // namespace cp::testing
