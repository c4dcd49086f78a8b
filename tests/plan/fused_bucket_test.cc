// Buckets hold the calls that they are of, and are few; the bound of a plan's workspace holds for the bucket.
#include "shared/plan/fused_bucket.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/cudnn_target.h"
#include "shared/plan/target.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using Mask = FusedShape::Mask;
using Documents = std::vector<FusedShape::Document>;

FusedShape packed(const Documents& documents, Mask mask = Mask::causal, bool backward = true) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_heads = 8, shape.kv_heads = 2, shape.head_dim = 128, shape.v_head_dim = 64;
  shape.mask = mask;
  shape.window = 100;
  for (const auto& document : documents) shape.q_len += document.q_len, shape.k_len += document.k_len;
  shape.documents = documents;
  return shape;
}

Documents some_documents() {
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(1, 5000), rc::gen::inRange(1, 5000))));
  Documents documents;
  for (const auto& [q, k] : lengths) documents.push_back({std::min(q, k), std::max(q, k)});
  return documents;
}

TEST(FusedBucket, IsOfPackedCallsOnly) {
  FusedShape shape = packed({});
  shape.q_len = shape.k_len = 1000;
  EXPECT_EQ(bucket_of(shape), std::nullopt);
}

TEST(FusedBucket, RoundsUp) {
  const FusedShape shape = packed({{1000, 1000}, {24, 24}, {300, 300}});
  EXPECT_EQ(bucket_of(shape), (FusedBucket{8, 1024, 1024, 1408, 1408}));
  EXPECT_EQ(bucket_of(packed({{1000, 1000}, {24, 24}, {300, 300}}, Mask::causal, false)),
            (FusedBucket{8, 1024, 1024, 0, 0}));
  EXPECT_EQ(bucket_of(packed(Documents(9, {1, 70}))), (FusedBucket{16, 1, 128, 128, 640}));
  // Bottom-right windows over equal lengths are more than old versions take.
  EXPECT_EQ(bucket_of(packed({{600, 1000}, {1, 1}}, Mask::window))->longest_k, 2048);
  EXPECT_EQ(bucket_of(packed({{1000, 1000}, {1, 1}}, Mask::window))->longest_k, 1024);
}

RC_GTEST_PROP(FusedBucket, HoldsTheCall, ()) {
  const Documents documents = some_documents();
  const FusedShape shape = packed(documents);
  const FusedBucket bucket = *bucket_of(shape);
  RC_ASSERT(bucket.documents >= std::ssize(documents));
  for (const auto& document : documents) {
    RC_ASSERT(document.q_len <= bucket.longest_q);
    RC_ASSERT(document.k_len <= bucket.longest_k);
  }
  RC_ASSERT(shape.q_len <= bucket.q_rows);
  RC_ASSERT(shape.k_len <= bucket.k_rows);
  // What costs memory is rounded by little.
  RC_ASSERT(bucket.q_rows < shape.q_len + shape.q_len / 8 + 128);
  RC_ASSERT(bucket.k_rows < shape.k_len + shape.k_len / 8 + 128);
}

// Documents in another order, or cut otherwise, are the same graph if the sizes round up alike.
RC_GTEST_PROP(FusedBucket, DependsOnSizesAlone, ()) {
  Documents documents = some_documents();
  const auto bucket = bucket_of(packed(documents));
  std::ranges::reverse(documents);
  RC_ASSERT(bucket_of(packed(documents)) == bucket);
}

RC_GTEST_PROP(FusedBucket, WorkspaceOfAPlanIsEnoughForTheGraphOfTheBucket, ()) {
  const FusedShape shape =
      packed(some_documents(), Mask::causal, pick("backward", rc::gen::arbitrary<bool>()));
  const FusedAttention& library =
      cudnn_attention(pick("target", rc::gen::element<std::string>("sm90", "sm100")));
  const std::int64_t graph = graph_workspace_bytes(library, graph_shape(shape), bucket_of(shape));
  RC_ASSERT(packed_lse_bytes(shape) >= shape.q_len * shape.q_heads * 4);
  RC_ASSERT(workspace_bytes(library, shape) == packed_lse_bytes(shape) + graph);
}

TEST(FusedBucket, GraphsOfSquaresAreTopLeft) {
  EXPECT_EQ(graph_shape(packed({{5, 5}, {6, 6}})).mask, Mask::causal_top_left);
  EXPECT_EQ(graph_shape(packed({{5, 5}, {6, 7}})).mask, Mask::causal);
  const FusedShape graph = graph_shape(packed({{5, 5}, {6, 7}}));
  EXPECT_TRUE(graph.documents.empty());
  EXPECT_EQ(std::tuple(graph.q_len, graph.k_len), std::tuple(0, 0));
}

// ---- targets of older versions

TEST(CudnnTarget, IsThatOfTheGenerationWhereNothingIsMissing) {
  for (const std::vector<CudnnVersion>& versions :
       {std::vector<CudnnVersion>{}, {91900}, {91002}, {91501, 92801}})
    EXPECT_EQ(&gpu_target("sm90", versions), &gpu_target("sm90"));
}

TEST(CudnnTarget, LacksWhatAnyVersionLacks) {
  const Target& old = gpu_target("sm90", std::vector<CudnnVersion>{91900, 90900});
  EXPECT_EQ(old.name, "sm90+cudnn9.8.0");
  EXPECT_FALSE(old.fused_attention->window_tail);
  EXPECT_FALSE(old.fused_attention->packed);
  EXPECT_TRUE(old.fused_attention->window);
  // 9.14.0 lost it again for many keys.
  const Target& lost = gpu_target("sm90", std::vector<CudnnVersion>{91400});
  EXPECT_EQ(lost.name, "sm90+cudnn9.14.0");
  EXPECT_FALSE(lost.fused_attention->window_tail);
  EXPECT_TRUE(lost.fused_attention->packed);
  EXPECT_EQ(&gpu_target("sm90", std::vector<CudnnVersion>{91400, 90900}), &old);
}

TEST(CudnnTarget, HasANameThatIsRead) {
  for (const char* generation : {"sm80", "sm90", "sm100", "sm120", "sm89"}) {
    for (const CudnnVersion version : {90800, 91400, 91900}) {
      const Target& target = gpu_target(generation, std::vector<CudnnVersion>{version});
      EXPECT_EQ(&target_by_name(target.name), &target);
      EXPECT_EQ(&gpu_target(target.name), &target);
    }
  }
  EXPECT_EQ(&target_by_name("sm86+cudnn9.9.0"), &gpu_target("sm80", std::vector<CudnnVersion>{90900}));
  for (const char* wrong :
       {"sm90+cudnn", "sm90+cudnn9", "sm90+cudnn9.8.0.1", "sm90+cudnn9.x.0", "host+cudnn9.8.0"})
    EXPECT_THROW(target_by_name(wrong), InvalidInput) << wrong;
}

}  // namespace
}  // namespace cp
