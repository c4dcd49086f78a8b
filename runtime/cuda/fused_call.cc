#include "runtime/cuda/fused_call.h"

#include <algorithm>
#include <span>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

enum class Order : std::uint8_t { bshd, bnsd, sbhd };

CudnnAttention dense(const FusedShape& shape, double softmax_scale, Order order) {
  CudnnAttention call;
  call.shape = shape;
  call.softmax_scale = softmax_scale;
  const auto of = [&](CudnnTensor operand) -> Shape {
    const auto [rows, heads, dim] = extents(shape, operand);
    switch (order) {
      case Order::bshd:
        break;
      case Order::bnsd:
        return {heads * rows * dim, dim, rows * dim, 1};
      case Order::sbhd:
        return {heads * dim, shape.batch * heads * dim, dim, 1};
    }
    return {rows * heads * dim, heads * dim, dim, 1};
  };
  call.q = of(CudnnTensor::q);
  call.k = of(CudnnTensor::k);
  call.v = of(CudnnTensor::v);
  call.out = of(CudnnTensor::out);
  if (shape.backward) {
    call.dout = call.out;
    call.dq = call.q;
    call.dk = call.k;
    call.dv = call.v;
  }
  return call;
}

template <class Call>
auto& strides_of(Call& call, CudnnTensor operand) {
  switch (operand) {
    case CudnnTensor::q:
      return call.q;
    case CudnnTensor::k:
      return call.k;
    case CudnnTensor::v:
      return call.v;
    case CudnnTensor::out:
      return call.out;
    case CudnnTensor::dout:
      return call.dout;
    case CudnnTensor::dq:
      return call.dq;
    case CudnnTensor::dk:
      return call.dk;
    case CudnnTensor::dv:
      return call.dv;
    default:
      break;
  }
  CP_INVARIANT(false, "tensor ", static_cast<std::int64_t>(operand), " is no operand");
  return call.q;
}

template <class T>
void add(CudnnTables& tables, std::int64_t tensor, const std::vector<T>& values) {
  tables.tensors.emplace_back(tensor, tables.bytes.size());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  tables.bytes.insert(tables.bytes.end(), bytes.begin(), bytes.end());
  tables.bytes.resize(static_cast<std::size_t>(align_up(std::ssize(tables.bytes), 16)));
}

// Where each document begins, and where the last one ends, counted in elements of a tensor whose rows are
// `row` elements apart.
std::vector<std::int64_t> offsets(const std::vector<std::int32_t>& lengths, std::int64_t row) {
  std::vector<std::int64_t> begins = {0};
  for (const std::int32_t length : lengths) begins.push_back(begins.back() + length * row);
  return begins;
}

}  // namespace

CudnnExtents extents(const FusedShape& shape, CudnnTensor operand) {
  switch (operand) {
    case CudnnTensor::q:
    case CudnnTensor::dq:
      return {shape.q_len, shape.q_heads, shape.head_dim};
    case CudnnTensor::k:
    case CudnnTensor::dk:
      return {shape.k_len, shape.kv_heads, shape.head_dim};
    case CudnnTensor::v:
    case CudnnTensor::dv:
      return {shape.k_len, shape.kv_heads, shape.v_head_dim};
    default:
      return {shape.q_len, shape.q_heads, shape.v_head_dim};
  }
}

CudnnAttention dense_bshd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::bshd);
}
CudnnAttention dense_bnsd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::bnsd);
}
CudnnAttention dense_sbhd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::sbhd);
}

std::vector<CudnnTensor> operands(const FusedShape& shape) {
  std::vector<CudnnTensor> all = {CudnnTensor::q, CudnnTensor::k, CudnnTensor::v, CudnnTensor::out};
  if (shape.backward)
    all.insert(all.end(), {CudnnTensor::dout, CudnnTensor::dq, CudnnTensor::dk, CudnnTensor::dv});
  return all;
}

bool is_query_side(CudnnTensor operand) {
  return operand == CudnnTensor::q || operand == CudnnTensor::out || operand == CudnnTensor::dout ||
         operand == CudnnTensor::dq;
}

std::string_view name(CudnnTensor operand) {
  constexpr std::string_view kNames[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};
  return kNames[static_cast<std::size_t>(operand) - 1];
}

Shape& strides(CudnnAttention& call, CudnnTensor operand) { return strides_of(call, operand); }
const Shape& strides(const CudnnAttention& call, CudnnTensor operand) { return strides_of(call, operand); }
const Shape& strides(const CudnnGraphKey& key, CudnnTensor operand) { return strides_of(key, operand); }

Shape normal_strides(const View& view) {
  Shape normal = view.strides;
  for (std::size_t i = 0; i < normal.size(); ++i) {
    if (view.shape[i] > 1) continue;
    normal[i] = 1;
    for (std::size_t j = i + 1; j < normal.size(); ++j)
      if (view.shape[j] > 1) normal[i] = std::max(normal[i], view.shape[j] * view.strides[j]);
  }
  return normal;
}

CudnnGraphKey graph_key(const CudnnAttention& call, WorkspaceLimit limit) {
  CudnnGraphKey key;
  key.shape = graph_shape(call.shape);
  key.bucket = bucket_of(call.shape);
  key.top_left = key.shape.mask == FusedShape::Mask::causal_top_left ||
                 key.shape.mask == FusedShape::Mask::window_tail ||
                 (key.shape.mask == FusedShape::Mask::window && is_square(call.shape));
  key.softmax_scale = call.softmax_scale;
  key.deterministic = call.deterministic;
  key.limit = limit;
  for (const CudnnTensor operand : operands(call.shape)) {
    Shape& of_key = strides_of(key, operand);
    of_key = strides(call, operand);
    if (key.bucket) of_key[0] = 0;
  }
  return key;
}

Digest digest(const CudnnGraphKey& key) {
  const FusedShape& shape = key.shape;
  Hasher hasher;
  hasher.add(shape.backward).add(name(shape.dtype)).add(shape.batch).add(shape.q_len).add(shape.k_len);
  hasher.add(shape.q_heads).add(shape.kv_heads).add(shape.head_dim).add(shape.v_head_dim);
  hasher.add(static_cast<int>(shape.mask)).add(shape.window).add(key.bucket.has_value());
  if (key.bucket) {
    hasher.add(key.bucket->documents).add(key.bucket->longest_q).add(key.bucket->longest_k);
    hasher.add(key.bucket->q_rows).add(key.bucket->k_rows);
  }
  hasher.add(key.top_left).add(key.softmax_scale).add(key.deterministic).add(key.limit.value_or(-1));
  for (const Shape* strides : {&key.q, &key.k, &key.v, &key.out, &key.dout, &key.dq, &key.dk, &key.dv})
    hasher.add_all(*strides);
  return hasher.digest();
}

std::string to_text(const CudnnGraphKey& key) {
  if (!key.bucket) return cp::to_text(key.shape);
  FusedShape shape = key.shape;
  shape.q_len = key.bucket->q_rows, shape.k_len = key.bucket->k_rows;
  return str(cp::to_text(shape), ", up to ", key.bucket->documents, " documents of up to ",
             key.bucket->longest_q, " queries and ", key.bucket->longest_k, " keys");
}

CudnnLengths lengths(const CudnnGraphKey& key) {
  if (!key.bucket) return {key.shape.batch, key.shape.q_len, key.shape.k_len};
  return {key.bucket->documents, key.bucket->longest_q, key.bucket->longest_k};
}

CudnnTables tables_of(const CudnnAttention& call) {
  CudnnTables tables;
  const FusedShape& shape = call.shape;
  const auto bucket = bucket_of(shape);
  if (!bucket) return tables;
  std::vector<std::int32_t> q_lens, k_lens;
  for (const FusedShape::Document& document : shape.documents) {
    q_lens.push_back(static_cast<std::int32_t>(document.q_len));
    k_lens.push_back(static_cast<std::int32_t>(document.k_len));
  }
  q_lens.resize(static_cast<std::size_t>(bucket->documents));
  k_lens.resize(static_cast<std::size_t>(bucket->documents));
  add(tables, static_cast<std::int64_t>(CudnnTensor::q_len), q_lens);
  add(tables, static_cast<std::int64_t>(CudnnTensor::k_len), k_lens);
  add(tables, static_cast<std::int64_t>(CudnnTensor::lse_offsets), offsets(q_lens, shape.q_heads));
  for (const CudnnTensor operand : operands(call.shape))
    add(tables, offsets_of(operand),
        offsets(is_query_side(operand) ? q_lens : k_lens, strides(call, operand)[1]));
  return tables;
}

}  // namespace cp::runtime
