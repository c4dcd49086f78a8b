// The tables that a packed call uploads say the same documents as the call.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/cuda/fused_call.h"
#include "tests/support/any_case.h"

namespace cp::runtime {
namespace {

FusedShape packed_shape(bool backward, std::vector<FusedShape::Document> documents) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_heads = 6, shape.kv_heads = 3, shape.head_dim = 64, shape.v_head_dim = 32;
  for (const auto& document : documents) shape.q_len += document.q_len, shape.k_len += document.k_len;
  shape.documents = std::move(documents);
  return shape;
}

std::vector<FusedShape::Document> some_documents() {
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(1, 300), rc::gen::inRange(1, 300))));
  std::vector<FusedShape::Document> documents;
  documents.reserve(lengths.size());
  for (const auto& [q, k] : lengths) documents.push_back({q, k});
  return documents;
}

template <class T>
std::vector<T> table(const CudnnTables& tables, std::int64_t tensor, std::int64_t size) {
  for (const auto& [of, begin] : tables.tensors) {
    if (of != tensor) continue;
    std::vector<T> values(static_cast<std::size_t>(size));
    RC_ASSERT(begin % 16 == 0);
    RC_ASSERT(begin + values.size() * sizeof(T) <= tables.bytes.size());
    std::memcpy(values.data(), tables.bytes.data() + begin, values.size() * sizeof(T));
    return values;
  }
  RC_FAIL("a tensor has no table");
  return {};
}

RC_GTEST_PROP(FusedTables, SayTheDocumentsOfTheCallAndEmptyOnesBehind, ()) {
  const FusedShape shape = packed_shape(pick("backward", rc::gen::arbitrary<bool>()), some_documents());
  CudnnAttention call = dense_bshd(shape, 0.125);
  call.k[1] = std::int64_t{3} * 3 * 64;  // rows of k lie apart, as those of a packed qkv
  const CudnnTables tables = tables_of(call);
  const std::int64_t room = bucket_of(shape)->documents;
  const auto q_len = table<std::int32_t>(tables, static_cast<std::int64_t>(CudnnTensor::q_len), room),
             k_len = table<std::int32_t>(tables, static_cast<std::int64_t>(CudnnTensor::k_len), room);
  const auto lse = table<std::int64_t>(tables, static_cast<std::int64_t>(CudnnTensor::lse_offsets), room + 1);
  std::map<CudnnTensor, std::vector<std::int64_t>> offsets;
  for (const CudnnTensor operand : operands(call.shape))
    offsets[operand] = table<std::int64_t>(tables, offsets_of(operand), room + 1);
  std::int64_t q_row = 0, k_row = 0;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(room); ++i) {
    RC_ASSERT(lse[i] == q_row * shape.q_heads);
    for (const auto& [operand, begins] : offsets)
      RC_ASSERT(begins[i] == (is_query_side(operand) ? q_row : k_row) * strides(call, operand)[1]);
    if (i == static_cast<std::size_t>(room)) break;
    const auto document = i < shape.documents.size() ? shape.documents[i] : FusedShape::Document{0, 0};
    RC_ASSERT(q_len[i] == document.q_len);
    RC_ASSERT(k_len[i] == document.k_len);
    q_row += document.q_len, k_row += document.k_len;
  }
  RC_ASSERT(q_row == shape.q_len);
  RC_ASSERT(k_row == shape.k_len);
}

// Whatever is packed: what differs between calls of one key is in their tables.
RC_GTEST_PROP(FusedTables, CallsOfOneKeyDifferInTablesAlone, ()) {
  const auto documents = some_documents();
  auto others = documents;
  std::ranges::reverse(others);
  const bool backward = pick("backward", rc::gen::arbitrary<bool>());
  const CudnnAttention call = dense_bshd(packed_shape(backward, documents), 0.125),
                       other = dense_bshd(packed_shape(backward, others), 0.125);
  RC_ASSERT(graph_key(call) == graph_key(other));
  RC_ASSERT(digest(graph_key(call)) == digest(graph_key(other)));
  RC_ASSERT((tables_of(call).bytes == tables_of(other).bytes) == (documents == others));
}

TEST(FusedTables, ACallWithoutDocumentsHasNone) {
  FusedShape shape = packed_shape(false, {});
  shape.q_len = shape.k_len = 100;
  EXPECT_TRUE(tables_of(dense_bshd(shape, 0.125)).bytes.empty());
}

TEST(GraphKey, TellsApartWhatAGraphDependsOn) {
  const FusedShape shape = packed_shape(true, {{100, 100}, {60, 60}});
  const CudnnGraphKey key = graph_key(dense_bshd(shape, 0.125));
  const auto expect_other = [&](const char* what, const CudnnAttention& call) {
    EXPECT_FALSE(graph_key(call) == key) << what;
    EXPECT_NE(digest(graph_key(call)), digest(key)) << what;
  };
  const auto changed = [&](auto change) {
    FusedShape other = shape;
    change(other);
    return dense_bshd(other, 0.125);
  };
  expect_other("scale", dense_bshd(shape, 0.25));
  expect_other("direction", changed([](FusedShape& other) { other.backward = false; }));
  expect_other("dtype", changed([](FusedShape& other) { other.dtype = DType::f16; }));
  expect_other("heads", changed([](FusedShape& other) { other.kv_heads = 6; }));
  expect_other("mask", changed([](FusedShape& other) { other.mask = FusedShape::Mask::causal; }));
  expect_other("dim", changed([](FusedShape& other) { other.v_head_dim = 64; }));
  expect_other("documents", changed([](FusedShape& other) { other.documents = {}; }));
  CudnnAttention apart = dense_bshd(shape, 0.125);
  apart.k[1] *= 2;
  expect_other("strides", apart);
  CudnnAttention ordered = dense_bshd(shape, 0.125);
  ordered.deterministic = true;
  expect_other("order", ordered);
  EXPECT_NE(digest(graph_key(dense_bshd(shape, 0.125), 100)), digest(key));
}

}  // namespace
}  // namespace cp::runtime
