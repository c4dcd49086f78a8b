#include "shared/context_parallel/fused_writer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "shared/base/text.h"

namespace cp::detail {
namespace {

// Whether two of the calls' ranges have a row in common.
bool overlap(const std::vector<AttentionCall>& calls, Range AttentionCall::*which) {
  std::vector<Range> ranges;
  for (const AttentionCall& call : calls) ranges.push_back(call.*which);
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].begin + ranges[i - 1].len) return true;
  }
  return false;
}

}  // namespace

// Which rows of a result hold something.
class FusedWriter::Written {
 public:
  Written(std::int64_t rows, bool all) {
    if (!all && rows > 0) missing_.push_back({0, rows});
  }

  std::vector<Range> missing() const { return missing_; }
  std::vector<Range> missing(Range of) const {
    std::vector<Range> result;
    for (const Range& gap : missing_) {
      const std::int64_t begin = std::max(gap.begin, of.begin),
                         end = std::min(gap.begin + gap.len, of.begin + of.len);
      if (begin < end) result.push_back({begin, end - begin});
    }
    return result;
  }
  bool nothing(Range of) const { return missing(of) == std::vector<Range>{of}; }
  void add(Range rows) {
    std::vector<Range> left;
    for (const Range& gap : missing_) {
      const std::int64_t gap_end = gap.begin + gap.len, end = rows.begin + rows.len;
      if (gap.begin < rows.begin) left.push_back({gap.begin, std::min(gap_end, rows.begin) - gap.begin});
      if (end < gap_end) left.push_back({std::max(gap.begin, end), gap_end - std::max(gap.begin, end)});
    }
    missing_ = std::move(left);
  }

 private:
  std::vector<Range> missing_;  // ascending, disjoint
};

struct FusedWriter::Landing {
  View written;       // by the call
  View result;        // the same memory, or where it is brought to
  bool adds = false;  // to what is there
};

std::vector<AttentionCall> FusedWriter::calls_of(const std::vector<MaskSlice>& slices, bool backward,
                                                 const std::vector<Tensor>& of_q,
                                                 const std::vector<Tensor>& of_kv) const {
  const HeadGroup& heads = writer_.head_groups().front();
  FusedAttention library = *writer_.builder().target().fused_attention;
  FusedShape packed = shape_of(heads, backward);
  packed.documents.resize(2);
  const auto fits = [&](const std::vector<Tensor>& tensors, Range which) {
    return std::none_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
      return refuse_operand(packed, tensor.view(tensor.all_rows(), which), false).has_value();
    });
  };
  library.packed = library.packed && fits(of_q, heads.q) && fits(of_kv, heads.kv);
  return cut_into_calls(slices, library, shape_of(heads, backward));
}

FusedShape FusedWriter::shape_of(const HeadGroup& heads, bool backward, const AttentionCall* call) const {
  const AttentionProblem& problem = writer_.problem();
  FusedShape shape;
  if (call != nullptr) shape = *fused_form(call->slices, call->q.len, call->k.len);
  shape.backward = backward, shape.dtype = problem.dtype, shape.batch = problem.batch;
  shape.q_heads = heads.q.len, shape.kv_heads = heads.kv.len;
  shape.head_dim = problem.head_dim, shape.v_head_dim = problem.v_head_dim;
  return shape;
}

View FusedWriter::workspace(const AttentionCall& call, const FusedShape& shape) {
  if (call.engine == AttentionEngine::exact) return {};
  return writer_.workspace(workspace_bytes(*writer_.builder().target().fused_attention, shape));
}

View FusedWriter::part_of(const std::string& name, DType dtype, const Tensor& result, Range rows,
                          Range heads) {
  return writer_.temporary(name, dtype, Order::bshd, rows.len, heads.len, result.dim).view();
}
View FusedWriter::part_of(const std::string& name, Range rows, Range heads) {
  return writer_.statistic(BufferKind::temporary, name, rows.len, heads.len).view();
}

// ---- forward ----

void FusedWriter::attend(const ForwardOperands& operands, const std::vector<MaskSlice>& slices,
                         const std::string& label, bool merge) {
  const auto& [q, k, v, out, lse] = operands;
  const std::vector<AttentionCall> calls = calls_of(slices, false, {q}, {k, v});
  if (out.dtype != DType::f32 && overlap(calls, &AttentionCall::q)) {
    ForwardOperands sum = operands;
    sum.out = writer_.temporary_like("out of calls", DType::f32, out);
    if (merge) sum.lse = writer_.statistic(BufferKind::temporary, "lse of calls", lse.rows, lse.heads);
    attend(sum, slices, label, false);
    if (merge) return writer_.merge(sum.out, sum.lse, out, lse, str("merge ", label));
    return writer_.convert(sum.out.view(), out.view(), label);
  }
  for (const HeadGroup& heads : writer_.head_groups()) {
    Written written(out.rows, merge);
    for (const AttentionCall& call : calls) attend_heads(operands, call, heads, written, label);
    for (const Range& rows : written.missing()) {
      writer_.fill(out.view(rows, heads.q), 0, label);
      writer_.fill(lse.view(rows, heads.q), -std::numeric_limits<double>::infinity(), label);
    }
  }
}

void FusedWriter::attend_heads(const ForwardOperands& o, const AttentionCall& call, const HeadGroup& heads,
                               Written& written, const std::string& label) {
  const bool fused = call.engine == AttentionEngine::fused, first = written.nothing(call.q);
  if (!first) {
    for (const Range& rows : written.missing(call.q)) {
      writer_.fill(o.out.view(rows, heads.q), 0, label);
      writer_.fill(o.lse.view(rows, heads.q), -std::numeric_limits<double>::infinity(), label);
    }
  }
  written.add(call.q);
  const FusedShape shape = shape_of(heads, false, fused ? &call : nullptr);
  const View out = o.out.view(call.q, heads.q), lse = o.lse.view(call.q, heads.q);
  const bool out_beside =
      !first || (fused && (o.out.dtype != o.q.dtype || refuse_operand(shape, out, false).has_value()));
  const bool lse_beside = !first || (fused && refuse_lse(shape, lse).has_value());
  const DType dtype = fused ? o.q.dtype : o.out.dtype;
  const View part = out_beside ? part_of("out part", dtype, o.out, call.q, heads.q) : out;
  const View part_lse = lse_beside ? part_of("lse part", call.q, heads.q) : lse;
  writer_.builder().add(writer_.compute(),
                        AttentionForward{.q = o.q.view(call.q, heads.q),
                                         .k = o.k.view(call.k, heads.kv),
                                         .v = o.v.view(call.k, heads.kv),
                                         .out = part,
                                         .lse = part_lse,
                                         .softmax_scale = writer_.problem().scale(),
                                         .slices = call.slices,
                                         .engine = call.engine,
                                         .workspace = workspace(call, shape)},
                        label);
  if (!first) {
    writer_.builder().add(writer_.compute(), AttentionMerge{part, part_lse, out, lse}, str("merge ", label));
    return;
  }
  if (out_beside) writer_.convert(part, out, label);
  if (lse_beside) writer_.convert(part_lse, lse, label);
}

// ---- backward ----

void FusedWriter::attend_backward(const BackwardOperands& operands, const std::vector<MaskSlice>& slices,
                                  const std::string& label) {
  const std::vector<AttentionCall> calls =
      calls_of(slices, true, {operands.q, operands.dout, operands.delta->out}, {operands.k, operands.v});
  BackwardOperands o = operands;
  const auto sum_of = [&](Tensor& result, bool& accumulate, Range AttentionCall::*rows, const char* name) {
    if (result.dtype == DType::f32 || !overlap(calls, rows)) return;
    result = writer_.temporary_like(name, DType::f32, result);
    accumulate = false;
  };
  sum_of(o.dq, o.accumulate_dq, &AttentionCall::q, "dq of calls");
  bool accumulate_dk = o.accumulate_dkv;
  sum_of(o.dk, accumulate_dk, &AttentionCall::k, "dk of calls");
  sum_of(o.dv, o.accumulate_dkv, &AttentionCall::k, "dv of calls");
  for (const HeadGroup& heads : writer_.head_groups()) {
    Written queries(o.dq.rows, o.accumulate_dq), keys(o.dk.rows, o.accumulate_dkv);
    for (const AttentionCall& call : calls) backward_heads(o, call, heads, queries, keys, label);
    for (const Range& rows : queries.missing()) writer_.fill(o.dq.view(rows, heads.q), 0, label);
    for (const Range& rows : keys.missing()) {
      writer_.fill(o.dk.view(rows, heads.kv), 0, label);
      writer_.fill(o.dv.view(rows, heads.kv), 0, label);
    }
  }
  const auto finish = [&](const Tensor& sum, const Tensor& result, bool accumulate) {
    if (sum.buffer == result.buffer) return;
    if (!accumulate) return writer_.convert(sum.view(), result.view(), label);
    // Rounded before it is added: the result's dtype is the narrower one.
    const Tensor narrow = writer_.temporary_like("rounded", result.dtype, sum);
    writer_.convert(sum.view(), narrow.view(), label);
    writer_.accumulate(narrow, result, label);
  };
  finish(o.dq, operands.dq, operands.accumulate_dq);
  finish(o.dk, operands.dk, operands.accumulate_dkv);
  finish(o.dv, operands.dv, operands.accumulate_dkv);
}

FusedWriter::Landing FusedWriter::land(const AttentionCall& call, const FusedShape& shape,
                                       const Tensor& result, Range rows, Range heads, const Written& written,
                                       const std::string& name, bool arrives) {
  const bool fused = call.engine == AttentionEngine::fused, first = written.nothing(rows);
  if (!first) {
    for (const Range& gap : written.missing(rows)) writer_.fill(result.view(gap, heads), 0, "none yet");
  }
  const View there = result.view(rows, heads);
  if (!fused) {
    const bool beside = !first && arrives;
    return {beside ? part_of(name, result.dtype, result, rows, heads) : there, there, !first};
  }
  const bool beside = !first || result.dtype != shape.dtype || refuse_operand(shape, there, true).has_value();
  return {beside ? part_of(name, shape.dtype, result, rows, heads) : there, there, !first};
}

void FusedWriter::bring_in(const Landing& landing, const std::string& label) {
  if (landing.written == landing.result) return;
  if (landing.adds) {
    writer_.accumulate(landing.written, landing.result, label);
  } else {
    writer_.convert(landing.written, landing.result, label);
  }
}

void FusedWriter::backward_heads(const BackwardOperands& o, const AttentionCall& call, const HeadGroup& heads,
                                 Written& queries, Written& keys, const std::string& label) {
  const bool fused = call.engine == AttentionEngine::fused;
  if (!fused) writer_.make(*o.delta);
  const FusedShape shape = shape_of(heads, true, fused ? &call : nullptr);
  const Landing dq = land(call, shape, o.dq, call.q, heads.q, queries, "dq part"),
                dk = land(call, shape, o.dk, call.k, heads.kv, keys, "dk part", o.dkv_arrive),
                dv = land(call, shape, o.dv, call.k, heads.kv, keys, "dv part", o.dkv_arrive);
  queries.add(call.q), keys.add(call.k);
  View lse = o.lse.view(call.q, heads.q);
  if (fused && refuse_lse(shape, lse).has_value()) {
    const View dense = part_of("lse part", call.q, heads.q);
    writer_.convert(lse, dense, label);
    lse = dense;
  }
  writer_.builder().add(writer_.compute(),
                        AttentionBackward{.q = o.q.view(call.q, heads.q),
                                          .k = o.k.view(call.k, heads.kv),
                                          .v = o.v.view(call.k, heads.kv),
                                          .dout = o.dout.view(call.q, heads.q),
                                          .lse = lse,
                                          .delta = fused ? View{} : o.delta->rows.view(call.q, heads.q),
                                          .dq = dq.written,
                                          .dk = dk.written,
                                          .dv = dv.written,
                                          .softmax_scale = writer_.problem().scale(),
                                          .slices = call.slices,
                                          .accumulate_dq = dq.adds && dq.written == dq.result,
                                          .accumulate_dkv = dk.adds && dk.written == dk.result,
                                          .out = fused ? o.delta->out.view(call.q, heads.q) : View{},
                                          .engine = call.engine,
                                          .workspace = workspace(call, shape)},
                        label);
  for (const Landing* landing : {&dq, &dk, &dv}) bring_in(*landing, label);
}

}  // namespace cp::detail
