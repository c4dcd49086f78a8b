#include "shared/context_parallel/attention_writer.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/fused_writer.h"
#include "shared/context_parallel/latent_keys.h"
#include "shared/context_parallel/partial_sum.h"

namespace cp::detail {
namespace {

int index_of(const std::vector<Rank>& ranks, Rank self) {
  const auto at = std::find(ranks.begin(), ranks.end(), self);
  if (at == ranks.end()) {
    throw InvalidInput(str("rank ", self, " is not one of the ", ranks.size(), " cp ranks, ", ranks.front(),
                           " to ", ranks.back(), "; ask for the plan of one of them"));
  }
  return static_cast<int>(at - ranks.begin());
}

}  // namespace

AttentionWriter::AttentionWriter(const AttentionContext& context, AttentionPass pass, Rank self,
                                 const Target& target)
    : context_(context),
      index_(index_of(context.request.ranks, self)),
      builder_(self, target),
      compute_(builder_.stream("compute")),
      comm_(builder_.stream("comm")),
      merging_(merges_beside() ? builder_.stream(std::string(kMergeStream)) : compute_),
      part_pool_(builder_, merges_beside()),
      is_fused_(uses_fused_attention(context.request.problem, pass, target)) {
  // A kernel needs whole multiples of query heads for each kv head. If Ulysses cuts between the query heads
  // of one kv head, this rank's heads fall into up to three groups, with a call for each: the rest of the
  // first kv head, all whole ones, the beginning of the last one.
  const TensorPart q = sharding().compute_q(index_);
  const std::int64_t per_kv = problem().heads_per_kv(), first_kv = q.head_begin / per_kv;
  for (std::int64_t head = q.head_begin; head < q.head_end;) {
    const std::int64_t kv = head / per_kv;
    std::int64_t end = std::min(q.head_end, (kv + 1) * per_kv);
    if (end - head == per_kv) end = q.head_end / per_kv * per_kv;
    const std::int64_t kv_len = std::max<std::int64_t>(1, (end - head) / per_kv);
    head_groups_.push_back({{head - q.head_begin, end - head}, {kv - first_kv, kv_len}});
    head = end;
  }
  all_head_groups_ = head_groups_;
  first_head_ = q.head_begin;
  const TensorPart kv = sharding().compute_kv(index_);
  kv_heads_ = {kv.head_begin, kv.num_heads()};
  // The caller's buffers of all plans of the request, whether this rank has any work or not.
  if (problem().has_latent()) latent_keys_ = std::make_unique<LatentKeys>(*this, pass);
  if (problem().drops()) seed();
  if (problem().sinks) {
    sinks();
    if (pass == AttentionPass::backward) {
      dsinks_ = builder_.output("dsinks", DType::f32, problem().q_heads);
      // Other ranks' heads, and heads without rows, add nothing.
      if (q.num_rows() == 0 || q.num_heads() < problem().q_heads)
        fill(flat_view(dsinks_, 0, problem().q_heads), 0, "no dsinks");
    }
  }
}

AttentionWriter::~AttentionWriter() = default;

bool AttentionWriter::core_moves_latent() const {
  const bool stays = facts(strategy().core).rotates == Rotates::queries && sharding().ring_size() > 1;
  return latent_travels() && !stays;
}

void AttentionWriter::choose_heads(const HeadPiece& piece) {
  head_groups_.clear();
  kv_heads_ = {sharding().compute_kv(index_).head_begin + piece.kv_begin, piece.kv_end - piece.kv_begin};
  first_head_ = sharding().compute_q(index_).head_begin + piece.q_begin;
  for (const HeadGroup& group : all_head_groups_) {
    const std::int64_t begin = std::max(group.kv.begin, piece.kv_begin),
                       end = std::min(group.kv.begin + group.kv.len, piece.kv_end);
    if (begin >= end) continue;
    const std::int64_t per_kv = group.q.len / group.kv.len;
    head_groups_.push_back(
        {{group.q.begin + (begin - group.kv.begin) * per_kv - piece.q_begin, (end - begin) * per_kv},
         {begin - piece.kv_begin, end - begin}});
  }
}

// ---- communicators ----

Team AttentionWriter::ring_subteam(std::string name, const std::vector<int>& ring_indices) {
  std::vector<Rank> ranks;
  for (const int r : ring_indices) {
    const int index = sharding().index_at(r, sharding().ulysses_index(index_));
    ranks.push_back(context_.request.ranks[static_cast<std::size_t>(index)]);
  }
  return {builder_, std::move(name), std::move(ranks), by_copy_engine()};
}

Team AttentionWriter::ring_team() {
  std::vector<int> all;
  for (int r = 0; r < sharding().ring_size(); ++r) all.push_back(r);
  return ring_subteam("ring", all);
}

Team AttentionWriter::ulysses_team() {
  std::vector<Rank> ranks;
  for (int u = 0; u < sharding().ulysses_degree(); ++u) {
    ranks.push_back(context_.request.ranks[static_cast<std::size_t>(sharding().index_at(ring_index(), u))]);
  }
  return {builder_, "ulysses", std::move(ranks), by_copy_engine()};
}

// ---- memory ----

Tensor AttentionWriter::temporary(std::string name, DType dtype, Order order, std::int64_t rows,
                                  std::int64_t heads, std::int64_t dim) {
  Tensor tensor{-1, dtype, problem().batch, rows, heads, dim, order};
  tensor.buffer = builder_.temporary(std::move(name), dtype, tensor.numel());
  return tensor;
}

BufferId AttentionWriter::reached(std::string name, DType dtype, std::int64_t numel) {
  return by_copy_engine() ? builder_.symmetric(std::move(name), dtype, numel)
                          : builder_.temporary(std::move(name), dtype, numel);
}

Tensor AttentionWriter::reached(std::string name, DType dtype, Order order, std::int64_t rows,
                                std::int64_t heads, std::int64_t dim) {
  Tensor tensor{-1, dtype, problem().batch, rows, heads, dim, order};
  tensor.buffer = reached(std::move(name), dtype, tensor.numel());
  return tensor;
}

Tensor AttentionWriter::temporary_like(std::string name, DType dtype, const Tensor& model) {
  return temporary(std::move(name), dtype, model.order, model.rows, model.heads, model.dim);
}

Tensor AttentionWriter::input(std::string name, Order order, std::int64_t rows, std::int64_t heads,
                              std::int64_t dim) {
  Tensor tensor{-1, problem().dtype, problem().batch, rows, heads, dim, order};
  tensor.buffer = builder_.input(std::move(name), tensor.dtype, tensor.numel());
  return tensor;
}

Tensor AttentionWriter::output(std::string name, Order order, std::int64_t rows, std::int64_t heads,
                               std::int64_t dim) {
  Tensor tensor{-1, problem().dtype, problem().batch, rows, heads, dim, order};
  tensor.buffer = builder_.output(std::move(name), tensor.dtype, tensor.numel());
  return tensor;
}

RowStatistic AttentionWriter::statistic(BufferKind kind, std::string name, std::int64_t rows,
                                        std::int64_t heads) {
  RowStatistic result{-1, problem().batch, heads, rows};
  result.buffer = kind == BufferKind::input ? builder_.input(std::move(name), DType::f32, result.numel())
                  : kind == BufferKind::output
                      ? builder_.output(std::move(name), DType::f32, result.numel())
                      : builder_.temporary(std::move(name), DType::f32, result.numel());
  return result;
}

RowStatistic AttentionWriter::statistic_part(std::string name, std::int64_t batch, std::int64_t rows,
                                             std::int64_t heads) {
  RowStatistic result{-1, batch, heads, rows};
  result.buffer = builder_.temporary(std::move(name), DType::f32, result.numel());
  return result;
}

Tensor AttentionWriter::accumulator(std::string name, DType dtype, const Tensor& target) {
  return target.dtype == dtype ? target : temporary_like(std::move(name), dtype, target);
}

View AttentionWriter::workspace(std::int64_t bytes) {
  // One workspace for all calls, as large as the largest needs: they run one after the other on one stream.
  const std::int64_t numel = ceil_div(bytes, size_bytes(DType::f32));
  if (workspace_ < 0) workspace_ = builder_.temporary("attention workspace", DType::f32, numel);
  builder_.grow(workspace_, numel);
  return flat_view(workspace_, 0, numel);
}

View AttentionWriter::discarded(std::size_t which, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                                std::int64_t dim) {
  Tensor tensor{discarded_[which], problem().dtype, batch, rows, heads, dim, Order::bshd};
  if (tensor.buffer < 0)
    discarded_[which] = tensor.buffer = builder_.temporary("unwanted", tensor.dtype, tensor.numel());
  builder_.grow(tensor.buffer, tensor.numel());
  return tensor.view();
}

// ---- steps ----

void AttentionWriter::convert(const View& in, const View& out, std::string label, Of of) {
  if (out.numel() == 0) return;
  if (builder_.dtype(in.buffer) == builder_.dtype(out.buffer)) {
    builder_.add(stream_of(of), Copy{in, out}, std::move(label));
  } else {
    builder_.add(stream_of(of), Cast{in, out}, std::move(label));
  }
}

void AttentionWriter::finish(const Tensor& accumulator, const Tensor& target, std::string label) {
  if (accumulator.buffer != target.buffer)
    convert(accumulator.view(), target.view(), std::move(label), Of::merge);
}

void AttentionWriter::fill(const Tensor& tensor, double value, std::string label, Of of) {
  fill(tensor.is_dense() ? tensor.flat() : tensor.view(), value, std::move(label), of);
}

void AttentionWriter::fill(const View& view, double value, std::string label, Of of) {
  if (view.numel() > 0) builder_.add(stream_of(of), Fill{view, value}, std::move(label));
}

void AttentionWriter::accumulate(const View& in, const View& out, std::string label) {
  if (out.numel() > 0) builder_.add(merging_, Accumulate{ReduceOp::sum, in, out}, std::move(label));
}

void AttentionWriter::accumulate(const Tensor& in, const Tensor& out, std::string label) {
  accumulate(in.view(), out.view(), std::move(label));
}

// ---- attention ----

void AttentionWriter::attend(const ForwardOperands& operands, const Masks& masks, const std::string& label) {
  const auto& [q, k, v, out, lse] = operands;
  if (out.rows == 0) return;
  if (!has_pairs(masks)) {
    fill(out, 0, label);
    fill(lse.is_dense() ? lse.flat() : lse.view(), kLseOfNothing, label);
    return;
  }
  const ForwardOperands all = expanded(operands, label);
  if (is_fused_) return FusedWriter(*this).attend(all, masks, label);
  for (const EntryMask& mask : masks) attend_entries(all, masks, mask, label);
}

ForwardOperands AttentionWriter::expanded(const ForwardOperands& operands, const std::string& label) {
  if (!operands.v.is_absent()) return operands;
  ForwardOperands all = operands;
  const LatentKeys::Pair keys = latent_keys_->expand(operands.k, kv_heads_, label);
  all.k = keys.k, all.v = keys.v;
  return all;
}

void AttentionWriter::attend_entries(const ForwardOperands& operands, const Masks& masks,
                                     const EntryMask& mask, const std::string& label) {
  const auto& [q, k, v, out, lse] = operands;
  const Range& batches = mask.batches;
  if (mask.slices.empty()) {
    fill(out.view(out.all_rows(), out.all_heads(), batches), 0, label);
    fill(lse.view({0, lse.rows}, {0, lse.heads}, batches), kLseOfNothing, label);
    return;
  }
  for (const HeadGroup& heads : head_groups_) {
    builder_.add(compute_,
                 AttentionForward{.q = q.view(q.all_rows(), heads.q, batches),
                                  .k = k.view(k.all_rows(), heads.kv, batches),
                                  .v = v.view(v.all_rows(), heads.kv, batches),
                                  .out = out.view(out.all_rows(), heads.q, batches),
                                  .lse = lse.view({0, lse.rows}, heads.q, batches),
                                  .softmax_scale = problem().scale(),
                                  .slices = mask.slices,
                                  .softcap = problem().softcap,
                                  .dropout = dropout_of(masks, mask, heads),
                                  .seed = problem().drops() ? seed() : View{}},
                 label);
  }
}

AttentionDropout AttentionWriter::dropout_of(const Masks& masks, const EntryMask& mask,
                                             const HeadGroup& heads) const {
  if (!problem().drops()) return {};
  const Dropout& dropout = problem().dropout;
  return {.probability = dropout.probability,
          .layer = dropout.layer,
          .first_batch = mask.batches.begin,
          .first_head = dropout.first_head + first_head_ + heads.q.begin,
          .heads = dropout.all_heads > 0 ? dropout.all_heads : problem().q_heads,
          .queries = masks.q_rows,
          .keys = masks.k_rows};
}

View AttentionWriter::seed() {
  const std::int64_t numel = problem().dropout.placed ? kPlacedSeed : 1;
  if (seed_ < 0) seed_ = builder_.input("seed", DType::i64, numel);
  return flat_view(seed_, 0, numel);
}

BufferId AttentionWriter::sinks() {
  if (sinks_ < 0) sinks_ = builder_.input("sinks", DType::f32, problem().q_heads);
  return sinks_;
}

AttentionWriter::SinkPart AttentionWriter::sink_part(std::int64_t batch, std::int64_t rows, Range heads,
                                                     std::int64_t dim) {
  if (no_values_ < 0) {
    no_values_ = builder_.temporary("values of sinks", problem().dtype, dim);
    fill(flat_view(no_values_, 0, dim), 0, "values of sinks", Of::merge);
  }
  return {{no_values_, 0, {batch, rows, heads.len, dim}, {0, 0, 0, 1}, {}},
          {sinks(), first_head_ + heads.begin, {batch, heads.len, rows}, {0, 1, 0}, {}}};
}

void AttentionWriter::sink_gradient(const Tensor& out, const Tensor& dout, const RowStatistic& lse) {
  if (out.rows == 0 || out.heads == 0) return;
  builder_.add(compute_,
               AttentionSinkGradient{flat_view(sinks(), first_head_, out.heads), lse.view(), out.view(),
                                     dout.view(), flat_view(dsinks_, first_head_, out.heads)},
               "dsinks");
}

void AttentionWriter::attend_more(const ForwardOperands& operands, const Masks& masks,
                                  const std::string& label) {
  const Tensor& out = operands.out;
  ForwardOperands part = out.rows > 0 ? expanded(operands, label) : operands;
  // As a temporary of `out` would be: dense.
  part.out = {-1, out.dtype, out.batch, out.rows, out.heads, out.dim, out.order};
  part.lse = {-1, operands.lse.batch, operands.lse.heads, operands.lse.rows};
  const PartPool::Place out_place = part_pool_.take("out part", out.dtype, {0, part.out.numel()}),
                        lse_place = part_pool_.take("lse part", DType::f32, {0, part.lse.numel()});
  part.out.buffer = out_place.buffer, part.lse.buffer = lse_place.buffer;
  if (out.rows == 0) return;
  for (const EntryMask& mask : masks) {
    if (mask.slices.empty()) continue;
    attend_entries(part, masks, mask, label);
    merge(part.out, part.lse, out, operands.lse, mask.batches, str("merge ", label));
  }
  part_pool_.give_back(out_place), part_pool_.give_back(lse_place);
}

void AttentionWriter::attend_more(const ForwardOperands& operands, const Masks& masks,
                                  const std::string& label, PartialSum& sum) {
  if (operands.out.rows > 0) FusedWriter(*this).attend(expanded(operands, label), masks, label, sum);
}

void AttentionWriter::attend_backward(const BackwardOperands& operands, const Masks& masks,
                                      const std::string& label) {
  const BackwardOperands& o = operands;
  // Gradients that this call overwrites. If no pair is allowed, they must become zero; those that are added
  // to are right already.
  std::vector<Tensor> written;  // not added to
  for (const Gradient* gradient : {&o.dq, &o.dk, &o.dv}) {
    if (gradient->is_wanted() && !gradient->accumulate && gradient->sum == nullptr)
      written.push_back(gradient->tensor);
  }
  if (!has_pairs(masks)) {
    for (const Tensor& tensor : written) fill(tensor, 0, label);
    return;
  }
  if (operands.v.is_absent()) return latent_keys_->attend_backward(operands, masks, kv_heads_, label);
  if (is_fused_) return FusedWriter(*this).attend_backward(operands, masks, label);
  for (const EntryMask& mask : masks) {
    const auto& [batches, slices] = mask;
    if (slices.empty()) {
      for (const Tensor& tensor : written)
        fill(tensor.view(tensor.all_rows(), tensor.all_heads(), batches), 0, label);
      continue;
    }
    for (const HeadGroup& heads : head_groups_) {
      const auto view_of = [&entries = batches](const Tensor& t, Range of_heads) {
        return t.is_absent() ? View{} : t.view(t.all_rows(), of_heads, entries);
      };
      const auto of_q = [&](const Tensor& t) { return view_of(t, heads.q); };
      const auto of_kv = [&](const Tensor& t) { return view_of(t, heads.kv); };
      builder_.add(compute_,
                   AttentionBackward{.q = of_q(o.q),
                                     .k = of_kv(o.k),
                                     .v = of_kv(o.v),
                                     .dout = of_q(o.dout),
                                     .lse = o.lse.view({0, o.lse.rows}, heads.q, batches),
                                     .delta = o.delta->rows.view({0, o.lse.rows}, heads.q, batches),
                                     .dq = of_q(o.dq.tensor),
                                     .dk = of_kv(o.dk.tensor),
                                     .dv = of_kv(o.dv.tensor),
                                     .softmax_scale = problem().scale(),
                                     .slices = slices,
                                     .accumulate_dq = o.dq.accumulate,
                                     .accumulate_dkv = o.dk.accumulate || o.dv.accumulate,
                                     .softcap = problem().softcap,
                                     .dropout = dropout_of(masks, mask, heads),
                                     .seed = problem().drops() ? seed() : View{}},
                   label);
    }
  }
}

RowDelta AttentionWriter::delta_of(const Tensor& out, const Tensor& dout) {
  RowDelta delta{out, dout, {-1, out.batch, out.heads, out.rows}, false};
  if (!is_fused_) delta.rows = statistic(BufferKind::temporary, "delta", out.rows, out.heads);
  return delta;
}

void AttentionWriter::begin(RowDelta& delta) {
  if (!is_fused_) make(delta);
}

void AttentionWriter::make(RowDelta& delta) {
  if (std::exchange(delta.made, true)) return;
  const auto& [out, dout, rows, made] = delta;
  if (rows.buffer < 0) delta.rows = statistic(BufferKind::temporary, "delta", out.rows, out.heads);
  if (out.rows > 0) builder_.add(compute_, AttentionDelta{out.view(), dout.view(), rows.view()}, "delta");
}

void AttentionWriter::merge(const Tensor& in, const RowStatistic& in_lse, const Tensor& out,
                            const RowStatistic& lse, Range batches, std::string label) {
  if (out.rows == 0) return;
  const auto view_of = [&](const Tensor& t) { return t.view(t.all_rows(), t.all_heads(), batches); };
  const auto lse_of = [&](const RowStatistic& t) { return t.view({0, t.rows}, {0, t.heads}, batches); };
  builder_.add(merging_, AttentionMerge{view_of(in), lse_of(in_lse), view_of(out), lse_of(lse)},
               std::move(label));
}

Plan AttentionWriter::build(std::string_view pass) && {
  Hasher inputs;
  inputs.add(pass).add(context_.request.keep_for_backward).add_all(context_.request.ranks);
  inputs.add(to_string(gradients())).add(name(context_.request.options.lse));
  hash(inputs, problem());
  Strategy as_chosen = strategy();
  if (problem().has_latent()) as_chosen.keys = context_.keys();
  hash(inputs, as_chosen);
  // Ranks compare this digest. Exact kernels do the same on every target, so that ranks with different ones
  // may work together; what is fused depends on the target.
  if (is_fused_) hash(inputs, builder_.target());
  return std::move(builder_).build(inputs.digest());
}

}  // namespace cp::detail
