#include "shared/context_parallel/fused_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/text.h"

namespace cp::detail {

std::vector<AttentionCall> FusedWriter::calls_of(const EntryMask& mask, bool backward,
                                                 const std::vector<Tensor>& of_q,
                                                 const std::vector<Tensor>& of_kv) const {
  const HeadGroup& heads = writer_.head_groups().front();
  FusedAttention library = *writer_.builder().target().fused_attention;
  FusedShape packed = shape_of(heads, mask.batches, backward);
  packed.documents.resize(2);
  const auto fits = [&](const std::vector<Tensor>& tensors, Range which) {
    return std::none_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
      return refuse_operand(packed, tensor.view(tensor.all_rows(), which, mask.batches), false).has_value();
    });
  };
  library.packed = library.packed && fits(of_q, heads.q) && fits(of_kv, heads.kv);
  return cut_into_calls(mask.slices, library, shape_of(heads, mask.batches, backward));
}

FusedShape FusedWriter::shape_of(const HeadGroup& heads, Range batches, bool backward,
                                 const AttentionCall* call) const {
  const AttentionProblem& problem = writer_.problem();
  FusedShape shape;
  if (call != nullptr) shape = *fused_form(call->slices, call->q.len, call->k.len);
  shape.backward = backward, shape.dtype = problem.dtype, shape.batch = batches.len;
  shape.q_heads = heads.q.len, shape.kv_heads = heads.kv.len;
  shape.head_dim = problem.head_dim, shape.v_head_dim = problem.v_head_dim;
  return shape;
}

View FusedWriter::workspace(const AttentionCall& call, const FusedShape& shape) {
  if (call.engine == AttentionEngine::exact) return {};
  return writer_.workspace(workspace_bytes(*writer_.builder().target().fused_attention, shape));
}

// ---- forward ----

void FusedWriter::attend(const ForwardOperands& operands, const Masks& masks, const std::string& label) {
  PartialSum sum(writer_, "out", operands.out, &operands.lse, PartialSum::Of::queries, 1);
  attend(operands, masks, label, sum);
  sum.finish(label);
}

void FusedWriter::attend(const ForwardOperands& operands, const Masks& masks, const std::string& label,
                         PartialSum& sum) {
  for (const EntryMask& mask : masks) {
    if (mask.slices.empty()) continue;
    const std::vector<AttentionCall> calls = calls_of(mask, false, {operands.q}, {operands.k, operands.v});
    for (const HeadGroup& heads : writer_.head_groups()) {
      for (const AttentionCall& call : calls) attend_heads(operands, call, heads, mask.batches, sum, label);
    }
  }
}

void FusedWriter::attend_heads(const ForwardOperands& o, const AttentionCall& call, const HeadGroup& heads,
                               Range batches, PartialSum& sum, const std::string& label) {
  const bool fused = call.engine == AttentionEngine::fused;
  const FusedShape shape = shape_of(heads, batches, false, fused ? &call : nullptr);
  const PartialSum::Place part = sum.place(fused ? &shape : nullptr, call.q, {heads.q, batches}, label);
  writer_.builder().add(writer_.compute(),
                        AttentionForward{.q = o.q.view(call.q, heads.q, batches),
                                         .k = o.k.view(call.k, heads.kv, batches),
                                         .v = o.v.view(call.k, heads.kv, batches),
                                         .out = part.values,
                                         .lse = part.lse,
                                         .softmax_scale = writer_.problem().scale(),
                                         .slices = call.slices,
                                         .engine = call.engine,
                                         .workspace = workspace(call, shape)},
                        label);
}

// ---- backward ----

void FusedWriter::attend_backward(const BackwardOperands& o, const Masks& masks, const std::string& label) {
  std::optional<PartialSum> dq, dk, dv;  // where the caller has none
  const auto sum_of = [&](const char* name, const Gradient& gradient, PartialSum::Of of,
                          std::optional<PartialSum>& own) -> PartialSum* {
    if (gradient.sum != nullptr || !gradient.is_wanted()) return gradient.sum;
    return &own.emplace(writer_, name, gradient.tensor, nullptr, of, 1, gradient.accumulate);
  };
  const Sums sums{sum_of("dq", o.dq, PartialSum::Of::queries, dq),
                  sum_of("dk", o.dk, PartialSum::Of::keys, dk), sum_of("dv", o.dv, PartialSum::Of::keys, dv)};
  for (const EntryMask& mask : masks) {
    if (mask.slices.empty()) continue;
    const std::vector<AttentionCall> calls = calls_of(mask, true, {o.q, o.dout, o.delta->out}, {o.k, o.v});
    for (const HeadGroup& heads : writer_.head_groups()) {
      for (const AttentionCall& call : calls) backward_heads(o, call, heads, mask.batches, sums, label);
    }
  }
  for (std::optional<PartialSum>* own : {&dq, &dk, &dv}) {
    if (*own) (*own)->finish(label);
  }
}

void FusedWriter::backward_heads(const BackwardOperands& o, const AttentionCall& call, const HeadGroup& heads,
                                 Range batches, const Sums& sums, const std::string& label) {
  const bool fused = call.engine == AttentionEngine::fused;
  if (!fused) writer_.make(*o.delta);
  const FusedShape shape = shape_of(heads, batches, true, fused ? &call : nullptr);
  const FusedShape* const of_call = fused ? &shape : nullptr;
  const auto place = [&](PartialSum* sum, std::size_t which, Range rows, Range of_heads, std::int64_t dim) {
    if (sum != nullptr) return sum->place(of_call, rows, {of_heads, batches}, label).values;
    return fused ? writer_.discarded(which, batches.len, rows.len, of_heads.len, dim) : View{};
  };
  const View dq = place(sums.dq, 0, call.q, heads.q, o.q.dim),
             dk = place(sums.dk, 1, call.k, heads.kv, o.k.dim),
             dv = place(sums.dv, 2, call.k, heads.kv, o.v.dim);
  View lse = o.lse.view(call.q, heads.q, batches);
  if (fused && refuse_lse(shape, lse)) {
    const View dense = writer_.statistic_part("lse part", batches.len, call.q.len, heads.q.len).view();
    writer_.convert(lse, dense, label);
    lse = dense;
  }
  writer_.builder().add(
      writer_.compute(),
      AttentionBackward{.q = o.q.view(call.q, heads.q, batches),
                        .k = o.k.view(call.k, heads.kv, batches),
                        .v = o.v.view(call.k, heads.kv, batches),
                        .dout = o.dout.view(call.q, heads.q, batches),
                        .lse = lse,
                        .delta = fused ? View{} : o.delta->rows.view(call.q, heads.q, batches),
                        .dq = dq,
                        .dk = dk,
                        .dv = dv,
                        .softmax_scale = writer_.problem().scale(),
                        .slices = call.slices,
                        .out = fused ? o.delta->out.view(call.q, heads.q, batches) : View{},
                        .engine = call.engine,
                        .workspace = workspace(call, shape)},
      label);
}

}  // namespace cp::detail
