// The rules and figures of shared/plan/fused_attention.h against the library itself, about GPUs that are not
// there: what refuse() takes, cuDNN builds, with no more workspace than workspace_bytes(). A graph takes
// about a second. With an older cuDNN, what cudnn_abilities.h says that it lacks is refused, and nothing
// else.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_library.h"
#include "shared/plan/cudnn_abilities.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/target.h"
#include "tests/cudnn/described_gpus.h"

namespace cp::runtime {
namespace {

using Mask = FusedShape::Mask;
using testing::described_gpus;

class CudnnSupport : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // Before cuDNN asks the loader for libcuda.so.1; kept for the whole process.
    static void* const driver = ::dlopen(CP_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_TRUE(driver) << ::dlerror();
    const auto version = cudnn_version();
    if (!version) GTEST_SKIP() << "no libcudnn.so.9 of 9.8.0 or later where the loader looks";
  }
  static const FusedAttention& library() { return *gpu_target(GetParam()).fused_attention; }
  static const DescribedGpu& gpu() { return described_gpus().at(GetParam()); }

  // Of this process.
  struct Asked {
    int taken = 0, refused = 0;  // by the version
  };
  static Asked& asked() {
    static Asked all;
    return all;
  }
  static void TearDownTestSuite() {
    std::cout << "cuDNN " << cudnn_version().value_or("missing") << ": " << asked().taken
              << " calls taken, and " << asked().refused << " refused that need a later version" << std::endl;
  }

  // Whether this cuDNN is too old for the call; then there is no graph, and the refusal says why.
  static bool is_refused_as_the_table_says(const CudnnAttention& call, const CudnnGraph& built) {
    const CudnnVersion version = loaded_cudnn_version();
    const auto lacks = cudnn_lacks(version, cudnn_needs(call.shape, gpu().sm_version, call.deterministic));
    if (lacks.empty()) return false;
    ++asked().refused;
    EXPECT_FALSE(built.graph) << "cuDNN " << version << " takes what it lacks: " << lacks.front()->what;
    EXPECT_TRUE(std::ranges::any_of(lacks, [&](const CudnnFact* fact) {
      return built.refusal.starts_with(to_text(*fact, version));
    })) << built.refusal;
    return true;
  }

  static void expect_taken(const CudnnAttention& call) {
    const FusedShape& shape = call.shape;
    SCOPED_TRACE(GetParam() + " " + to_text(shape));
    ASSERT_EQ(refuse(library(), shape), std::nullopt);
    const CudnnGraph built = build_cudnn_graph(graph_key(call), gpu());
    if (is_refused_as_the_table_says(call, built)) return;
    ASSERT_TRUE(built.graph) << built.refusal;
    ++asked().taken;
    const std::int64_t bytes = packed_lse_bytes(shape) + built.workspace_bytes,
                       bound = workspace_bytes(library(), shape);
    EXPECT_LE(bytes, bound) << built.engine;
    // Not much too high either: half as much again is the second dq that short calls may need or not, and
    // what a bucket rounds up is the graph's, too.
    if (shape.backward) {
      EXPECT_LE(bound, bytes + bytes / 2 + (2 << 20)) << built.engine;
    }
  }
  static void expect_taken(const FusedShape& shape) { expect_taken(dense_bshd(shape, 0.1)); }
  static void expect_refused_by_both(const FusedShape& shape) {
    SCOPED_TRACE(GetParam() + " " + to_text(shape));
    EXPECT_TRUE(refuse(library(), shape));
    EXPECT_FALSE(build_cudnn_graph(graph_key(dense_bshd(shape, 0.1)), gpu()).graph);
  }
};

FusedShape call(bool backward, std::int64_t q_len, std::int64_t k_len, Mask mask, std::int64_t head_dim = 128,
                std::int64_t v_head_dim = 128) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_len = q_len;
  shape.k_len = k_len;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = head_dim;
  shape.v_head_dim = v_head_dim;
  shape.mask = mask;
  shape.window = mask == Mask::window || mask == Mask::window_tail ? 100 : 0;
  return shape;
}

FusedShape packed(FusedShape shape, std::vector<FusedShape::Document> documents) {
  shape.q_len = shape.k_len = 0;
  for (const auto& document : documents) shape.q_len += document.q_len, shape.k_len += document.k_len;
  shape.documents = std::move(documents);
  return shape;
}

TEST_P(CudnnSupport, MasksAndOddLengths) {
  for (const bool backward : {false, true}) {
    FusedShape shape = call(backward, 1001, 2003, Mask::causal);
    shape.batch = 2;
    expect_taken(dense_sbhd(shape, 0.1));
    shape.mask = Mask::window;
    shape.window = 100;
    expect_taken(dense_bnsd(shape, 0.1));
    expect_taken(call(backward, 2003, 1001, Mask::causal_top_left));
    expect_taken(call(backward, 1001, 1001, Mask::window_tail));
    shape.mask = Mask::window_tail;
    shape.window = 1;
    expect_taken(dense_bnsd(shape, 0.1));
    expect_refused_by_both(call(backward, 1051, 1001, Mask::window_tail));
    FusedShape heads = call(backward, 1000, 777, Mask::full);
    heads.kv_heads = heads.q_heads;
    heads.dtype = DType::f16;
    expect_taken(heads);
  }
}

// The lengths that cuDNN 9.15.0 and older take, too.
TEST_P(CudnnSupport, BackwardOverWholeTilesOfKeys) {
  expect_taken(call(true, 1001, 2048, Mask::causal));
  expect_taken(call(true, 1024, 1024, Mask::window));
  expect_taken(call(true, 2003, 1024, Mask::causal_top_left));
  expect_taken(call(true, 1000, 640, Mask::full, 64, 64));
}

// What cudnn_abilities.h says of versions, where the tests above do not ask.
TEST_P(CudnnSupport, WhatVersionsDifferIn) {
  for (const FusedShape& shape :
       {call(false, 1, 1000, Mask::window), call(false, 1, 1000, Mask::full, 256, 256),
        call(true, 256, 1024, Mask::causal, 160, 96), call(true, 256, 1024, Mask::causal, 192, 128)})
    if (!refuse(library(), shape)) expect_taken(shape);
}

TEST_P(CudnnSupport, OneQuery) {
  FusedShape decode = call(false, 1, 65536, Mask::full);
  decode.q_heads = 100;
  expect_taken(decode);
  decode.batch = 16, decode.q_heads = 256, decode.kv_heads = 16;
  expect_taken(decode);
  expect_taken(call(true, 1, 1000, Mask::full));
  expect_refused_by_both(call(true, 1, 1, Mask::full));
}

TEST_P(CudnnSupport, HeadDims) {
  const std::int64_t forward = library().max_head_dim_forward, backward = library().max_head_dim_backward;
  expect_taken(call(false, 256, 256, Mask::causal, forward, forward));
  expect_taken(call(false, 3, 5, Mask::causal, 8, forward));
  expect_taken(call(true, 256, 256, Mask::causal, backward, backward));
  expect_taken(call(true, 3, 5, Mask::causal, backward - 8, 8));
  expect_refused_by_both(call(true, 256, 256, Mask::causal, backward + 8, backward + 8));
  expect_refused_by_both(call(false, 256, 256, Mask::causal, 100, 128));
}

TEST_P(CudnnSupport, Documents) {
  const std::vector<FusedShape::Document> same = {{100, 100}, {300, 300}, {1, 1}, {623, 623}};
  const std::vector<FusedShape::Document> other = {{100, 200}, {300, 300}, {1, 64}, {623, 1000}};
  if (!library().packed) {
    expect_refused_by_both(packed(call(true, 0, 0, Mask::causal), same));
    return;
  }
  for (const bool backward : {false, true}) {
    expect_taken(packed(call(backward, 0, 0, Mask::causal), same));
    expect_taken(packed(call(backward, 0, 0, Mask::window, 64, 128), other));
    expect_taken(packed(call(backward, 0, 0, Mask::window_tail, 64, 128), {{100, 200}, {80, 50}, {1, 64}}));
    expect_taken(packed(call(backward, 0, 0, Mask::causal), {2000, {16, 16}}));
  }
}

TEST_P(CudnnSupport, Generated) {
  std::mt19937 random(20260101);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int taken = 0; taken < 4;) {
    FusedShape shape = call(between(0, 2) > 0, between(1, 3000), between(1, 3000),
                            static_cast<Mask>(between(0, 4)), 8 * between(1, 32), 8 * between(1, 32));
    shape.dtype = between(0, 1) ? DType::f16 : DType::bf16;
    shape.kv_heads = between(1, 4);
    shape.q_heads = shape.kv_heads * between(1, 5);
    shape.batch = between(1, 3);
    if (shape.mask == Mask::window || shape.mask == Mask::window_tail) shape.window = between(1, 4000);
    if (refuse(library(), shape)) continue;
    ++taken;
    expect_taken(between(0, 1) ? dense_bshd(shape, 0.1) : dense_bnsd(shape, 0.1));
  }
}

// What one order of summing dq up costs: nothing on Blackwell, elsewhere two bytes for each pair of query and
// key.
TEST_P(CudnnSupport, DeterministicBackward) {
  CudnnAttention attention = dense_bshd(call(true, 2048, 2048, Mask::causal), 0.1);
  attention.deterministic = true;
  const CudnnGraph built = build_cudnn_graph(graph_key(attention), gpu());
  if (is_refused_as_the_table_says(attention, built)) return;
  ASSERT_TRUE(built.graph) << built.refusal;
  const std::int64_t pairs_bytes = attention.shape.q_heads * 2048 * 2048 * 2;
  if (GetParam().starts_with("sm10")) {
    EXPECT_LE(built.workspace_bytes, workspace_bytes(library(), attention.shape));
  } else {
    EXPECT_GE(built.workspace_bytes, pairs_bytes);
  }
}

// How plans are chosen is the project's own, so two generations are asked.
using CudnnLimit = CudnnSupport;
TEST_P(CudnnLimit, GraphsKeepToTheLimitOfTheirWorkspace) {
  CudnnAttention attention = dense_bshd(call(true, 2048, 2048, Mask::causal), 0.1);
  const CudnnGraph first = build_cudnn_graph(graph_key(attention), gpu());
  ASSERT_TRUE(first.graph) << first.refusal;
  ASSERT_GT(first.workspace_bytes, 0);
  const CudnnGraph same = build_cudnn_graph(graph_key(attention, first.workspace_bytes), gpu());
  ASSERT_TRUE(same.graph) << same.refusal;
  EXPECT_EQ(same.engine, first.engine);
  const CudnnGraph smaller = build_cudnn_graph(graph_key(attention, first.workspace_bytes - 1), gpu());
  EXPECT_TRUE(!smaller.graph || smaller.workspace_bytes < first.workspace_bytes) << smaller.engine;
}

// Graphs of buckets with room that no document needs: few documents of a length far below the longest one's
// bound, some of one query, and rows that are rounded up.
TEST_P(CudnnLimit, BucketsOfPackedCalls) {
  for (const bool backward : {false, true}) {
    expect_taken(packed(call(backward, 0, 0, Mask::causal), {{1025, 1025}, {1, 1}}));
    expect_taken(packed(call(backward, 0, 0, Mask::full), {{2, 70}, {1, 129}, {1, 1}}));
    expect_taken(packed(call(backward, 0, 0, Mask::window), {33, {130, 130}}));
    expect_taken(packed(call(backward, 0, 0, Mask::window), {{600, 1000}, {1, 1}}));
    expect_taken(packed(call(backward, 0, 0, Mask::causal_top_left), {9, {200, 40}}));
  }
}

// What is written down is a graph again, of the same engine with the same workspace, and cuDNN takes nothing
// else for one.
TEST_P(CudnnLimit, GraphsComeBackFromBytes) {
  for (const bool backward : {false, true}) {
    const CudnnAttention attention =
        dense_bshd(packed(call(backward, 0, 0, Mask::causal), {{100, 100}, {300, 300}}), 0.1);
    const CudnnGraph built = build_cudnn_graph(graph_key(attention), gpu());
    if (is_refused_as_the_table_says(attention, built)) continue;
    ASSERT_TRUE(built.graph) << built.refusal;
    std::vector<std::byte> bytes = write_cudnn_graph(built);
    ASSERT_FALSE(bytes.empty());
    const auto before = std::chrono::steady_clock::now();
    const CudnnGraph read = read_cudnn_graph(bytes, gpu());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    ASSERT_TRUE(read.graph) << read.refusal;
    EXPECT_EQ(read.engine, built.engine);
    EXPECT_EQ(read.workspace_bytes, built.workspace_bytes);
    std::cout << "a graph of " << bytes.size() << " bytes, read in " << took.count() << " s" << std::endl;
    bytes.resize(bytes.size() / 2);
    EXPECT_FALSE(read_cudnn_graph(bytes, gpu()).graph);
    EXPECT_FALSE(read_cudnn_graph({}, gpu()).graph);
  }
}

// On threads of their own, as graph_cache.h builds them.
TEST_P(CudnnLimit, SeveralThreadsBuildAtOnce) {
  std::vector<CudnnGraph> built(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < built.size(); ++i)
    threads.emplace_back([&, i] {
      const auto length = static_cast<std::int64_t>(1000 + 100 * i);
      built[i] =
          build_cudnn_graph(graph_key(dense_bshd(call(false, length, length, Mask::causal), 0.1)), gpu());
    });
  for (std::thread& thread : threads) thread.join();
  for (const CudnnGraph& graph : built) EXPECT_TRUE(graph.graph) << graph.refusal;
}

INSTANTIATE_TEST_SUITE_P(, CudnnLimit, ::testing::Values("sm90", "sm100"),
                         [](const auto& tested) { return tested.param; });
INSTANTIATE_TEST_SUITE_P(, CudnnSupport,
                         ::testing::Values("sm80", "sm90", "sm100", "sm120", "sm86", "sm89", "sm103",
                                           "sm121"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace cp::runtime
