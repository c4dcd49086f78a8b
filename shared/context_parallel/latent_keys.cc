#include "shared/context_parallel/latent_keys.h"

#include "shared/base/error.h"
#include "shared/plan/fused_attention.h"

namespace cp::detail {
namespace {

View transposed(View matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]), std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

// Columns of all latent rows.
View columns(const Tensor& rows, std::int64_t begin, std::int64_t count) {
  return {rows.buffer, rows.offset + begin, {rows.batch * rows.rows, count}, {rows.dim, 1}, {}};
}
// The same for each of some heads, which share them.
View columns_of_heads(const Tensor& rows, std::int64_t begin, std::int64_t count, std::int64_t heads) {
  return {rows.buffer, rows.offset + begin, {rows.batch * rows.rows, heads, count}, {rows.dim, 0, 1}, {}};
}
// Elements of all heads of dense rows [row, head, dim].
View part_of_heads(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  const std::int64_t row = tensor.dim_in_memory > 0 ? tensor.dim_in_memory : tensor.dim;
  return {tensor.buffer,
          tensor.offset + begin,
          {tensor.batch * tensor.rows, tensor.heads, count},
          {tensor.heads * row, row, 1},
          {}};
}

}  // namespace

LatentKeys::LatentKeys(AttentionWriter& writer, AttentionPass pass)
    : writer_(writer),
      problem_(writer.problem()),
      rank_(problem_.latent.rank),
      rope_(problem_.latent.rope_dim),
      nope_(problem_.nope_dim()),
      up_(problem_.up_rows()) {
  if (problem_.latent.absorbed) return;
  const std::int64_t numel = problem_.kv_heads * up_ * rank_;
  kv_up_ = writer.builder().input("kv_up", problem_.dtype, numel);
  if (pass == AttentionPass::forward || !writer.gradients().dk) return;
  dkv_up_ = writer.builder().output("dkv_up", DType::f32, numel);
  writer.fill(flat_view(dkv_up_, 0, numel), 0, "no dkv_up yet");
}

Range LatentKeys::all_heads() const { return {0, problem_.kv_heads}; }

Tensor LatentKeys::like(const Tensor& rows, BufferId buffer, Range heads, std::int64_t dim) const {
  // One head in any order lies as in these two.
  const Order order = rows.order == Order::rows_outermost ? Order::rows_outermost : Order::bshd;
  return {buffer, problem_.dtype, rows.batch, rows.rows, heads.len, dim, order};
}

Tensor LatentKeys::values_in(const Tensor& rows, BufferId up, Range heads) const {
  Tensor v = like(rows, up, heads, problem_.v_head_dim);
  v.offset = nope_, v.dim_in_memory = up_;
  return v;
}

BufferId LatentKeys::of_block(const char* name, const Tensor& tensor) {
  PlanBuilder& builder = writer_.builder();
  const auto [at, is_new] = of_blocks_.try_emplace(name, -1);
  if (is_new) {
    at->second = builder.temporary(name, tensor.dtype, tensor.numel());
  } else {
    builder.grow(at->second, tensor.numel());
  }
  return at->second;
}

View LatentKeys::weight(BufferId buffer, Range heads) const {
  return {buffer, heads.begin * up_ * rank_, {heads.len * up_, rank_}, {rank_, 1}, {}};
}

LatentKeys::Pair LatentKeys::expand(const Tensor& rows, Range heads, const std::string& label) {
  const Pair pair = expand_in_place(rows, heads, label);
  if (!writer_.is_fused()) return pair;
  // Fused kernels do not read from every place.
  FusedShape shape;
  shape.dtype = problem_.dtype;
  return refuse_operand(shape, pair.v.view(), false) ? with_dense_values(pair, label) : pair;
}

LatentKeys::Pair LatentKeys::expand_densely(const Tensor& rows, Range heads, const std::string& label) {
  return with_dense_values(expand_in_place(rows, heads, label), label);
}

LatentKeys::Pair LatentKeys::as_they_are(const Tensor& rows, std::int64_t rank) {
  Tensor v = rows;
  v.dim = rank, v.dim_in_memory = rows.dim_in_memory > 0 ? rows.dim_in_memory : rows.dim;
  return {rows, v};
}

LatentKeys::Pair LatentKeys::expand_in_place(const Tensor& rows, Range heads, const std::string& label) {
  if (problem_.latent.absorbed) return as_they_are(rows, rank_);
  PlanBuilder& builder = writer_.builder();
  Tensor up = like(rows, -1, heads, up_), k = like(rows, -1, heads, problem_.head_dim);
  up.buffer = of_block("latent up", up), k.buffer = of_block("latent k", k);
  if (k.numel() > 0) {
    const View product{up.buffer, 0, {rows.batch * rows.rows, heads.len * up_}, {heads.len * up_, 1}, {}};
    builder.add(writer_.compute(),
                MatMul{columns(rows, 0, rank_), transposed(weight(kv_up_, heads)), product},
                "expand " + label);
    writer_.convert(part_of_heads(up, 0, nope_), part_of_heads(k, 0, nope_), "keys of " + label);
    if (rope_ > 0) {
      writer_.convert(columns_of_heads(rows, rank_, rope_, heads.len), part_of_heads(k, nope_, rope_),
                      "rotated keys of " + label);
    }
  }
  return {k, values_in(rows, up.buffer, heads)};
}

LatentKeys::Pair LatentKeys::with_dense_values(const Pair& pair, const std::string& label) {
  Tensor v = pair.v;
  v.offset = 0, v.dim_in_memory = 0;
  v.buffer = of_block("latent v", v);
  writer_.convert(pair.v.view(), v.view(), "values of " + label);
  return {pair.k, v};
}

LatentKeys::Pair LatentKeys::gradients(const Tensor& rows, Range heads) {
  const Tensor up = like(rows, -1, heads, up_);
  Tensor dk = like(rows, -1, heads, problem_.head_dim);
  dk.buffer = of_block("latent dk", dk);
  return {dk, values_in(rows, of_block("latent dup", up), heads)};
}

void LatentKeys::contract(const Pair& gradients, const Tensor& rows, Range heads, const Tensor& drows,
                          bool accumulate, const std::string& label) {
  if (rows.numel() == 0) return;
  PlanBuilder& builder = writer_.builder();
  const StreamId compute = writer_.compute();
  CP_INVARIANT(!accumulate || drows.dtype == DType::f32, "adds gradients of latent rows in ",
               cp::name(drows.dtype));
  const std::int64_t n = rows.batch * rows.rows;
  Tensor up = like(rows, gradients.v.buffer, heads, up_);
  writer_.convert(part_of_heads(gradients.k, 0, nope_), part_of_heads(up, 0, nope_), "dk of " + label);
  const View dup{up.buffer, 0, {n, heads.len * up_}, {heads.len * up_, 1}, {}};
  builder.add(compute, MatMul{dup, weight(kv_up_, heads), columns(drows, 0, rank_), accumulate},
              "contract " + label);
  builder.add(compute, MatMul{transposed(dup), columns(rows, 0, rank_), weight(dkv_up_, heads), true},
              "dkv_up of " + label);
  if (rope_ == 0) return;
  Tensor turned = like(rows, -1, heads, rope_);
  turned.dtype = DType::f32;
  turned.buffer = of_block("latent drotated", turned);
  writer_.convert(part_of_heads(gradients.k, nope_, rope_), part_of_heads(turned, 0, rope_),
                  "rotated dk of " + label);
  for (std::int64_t left = heads.len; left > 1;) {
    const std::int64_t half = (left + 1) / 2;
    View in = part_of_heads(turned, 0, rope_), out = in;
    in.offset += half * rope_, in.shape[1] = out.shape[1] = left - half;
    builder.add(compute, Accumulate{ReduceOp::sum, in, out}, "rotated dk of " + label);
    left = half;
  }
  const View sum{turned.buffer, 0, {n, rope_}, {heads.len * rope_, 1}, {}};
  if (accumulate) {
    builder.add(compute, Accumulate{ReduceOp::sum, sum, columns(drows, rank_, rope_)},
                "rotated part of " + label);
  } else {
    writer_.convert(sum, columns(drows, rank_, rope_), "rotated part of " + label);
  }
}

void LatentKeys::attend_backward(const BackwardOperands& operands, const Masks& masks, Range heads,
                                 const std::string& label) {
  BackwardOperands expanded = operands;
  const Pair keys = expand(operands.k, heads, label);
  expanded.k = keys.k, expanded.v = keys.v;
  if (!operands.dk.is_wanted()) return writer_.attend_backward(expanded, masks, label);
  const Pair parts = gradients(operands.k, heads);
  expanded.dk = {parts.k}, expanded.dv = {parts.v};
  writer_.attend_backward(expanded, masks, label);
  contract(parts, operands.k, heads, operands.dk.tensor, operands.dk.accumulate, label);
}

}  // namespace cp::detail
