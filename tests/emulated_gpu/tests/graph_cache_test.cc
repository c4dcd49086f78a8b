// Graphs of fused calls are built once for a bucket, several at a time, and kept.
#include "runtime/cuda/graph_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/emulated_gpu/tests/own_folder.h"

namespace cp::runtime {
namespace {

using Mask = FusedShape::Mask;

class NamedGraph final : public FusedGraph {
 public:
  explicit NamedGraph(std::string name) : name_(std::move(name)) {}
  std::int64_t workspace_bytes() const override { return 0; }
  std::string engine() const override { return name_; }
  void enqueue(TensorAddresses&, std::byte*, cudaStream_t) const override {}

 private:
  const std::string name_;
};

// Counts. A graph is written as the name of its engine, which is the text of its key.
class CountingBuilder : public FusedGraphBuilder {
 public:
  BuiltGraph build(const CudnnGraphKey& key) override {
    ++built;
    if (on_build) on_build(key);
    return {std::make_shared<NamedGraph>(to_text(key)), ""};
  }
  std::string version() override { return the_version; }
  std::vector<std::byte> write(const FusedGraph& graph) override {
    const std::string name = graph.engine();
    const auto* const bytes = reinterpret_cast<const std::byte*>(name.data());
    return {bytes, bytes + name.size()};
  }
  BuiltGraph read(std::span<const std::byte> bytes) override {
    if (takes_no_file) return {nullptr, "it takes none"};
    return {
        std::make_shared<NamedGraph>(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())),
        ""};
  }

  std::atomic<int> built{0};
  std::function<void(const CudnnGraphKey&)> on_build;
  std::string the_version = "1";
  bool takes_no_file = false;
};

FusedShape shape_of(bool backward, Mask mask, std::vector<FusedShape::Document> documents) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_heads = 8, shape.kv_heads = 2, shape.head_dim = shape.v_head_dim = 128;
  shape.mask = mask;
  shape.window = mask == Mask::window || mask == Mask::window_tail ? 100 : 0;
  for (const auto& document : documents) shape.q_len += document.q_len, shape.k_len += document.k_len;
  shape.documents = std::move(documents);
  return shape;
}

CudnnGraphKey key_of_length(std::int64_t length) {
  FusedShape shape = shape_of(false, Mask::full, {});
  shape.q_len = shape.k_len = length;
  return graph_key(dense_bshd(shape, 0.1));
}
std::vector<CudnnGraphKey> keys_of_lengths(std::int64_t from, std::int64_t count) {
  std::vector<CudnnGraphKey> keys;
  for (std::int64_t i = 0; i < count; ++i) keys.push_back(key_of_length(from + i));
  return keys;
}

// 8,192 rows in 17 to 32 documents, the longest of 2,049 rows or more: one bucket.
std::vector<FusedShape::Document> packing(std::mt19937& random, bool square) {
  std::vector<FusedShape::Document> documents;
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const std::int64_t count = between(17, 32);
  std::int64_t left = 8192;
  documents.push_back({between(2049, 4096), 0});
  left -= documents.back().q_len;
  for (std::int64_t i = 1; i < count; ++i) {
    const std::int64_t others = count - 1 - i;
    const std::int64_t rows = others == 0 ? left : between(1, std::min<std::int64_t>(left - others, 2048));
    documents.push_back({std::min<std::int64_t>(rows, 4096), 0});
    left -= documents.back().q_len;
  }
  for (auto& document : documents) document.k_len = document.q_len;
  if (!square) documents[1].k_len += 1;  // of the shorter ones
  std::ranges::shuffle(documents, random);
  return documents;
}

TEST(GraphCache, BuildsOneGraphForEachMaskOfABucketWhateverIsPacked) {
  auto builder = std::make_shared<CountingBuilder>();
  GraphCache cache(builder);
  std::mt19937 random(20260101);
  struct Form {
    Mask mask;
    bool square;
  };
  const std::vector<Form> forms = {{Mask::full, true},   {Mask::causal, true},  {Mask::causal, false},
                                   {Mask::window, true}, {Mask::window, false}, {Mask::window_tail, true}};
  for (int i = 0; i < 1000; ++i) {
    const Form& form = forms[static_cast<std::size_t>(i) % forms.size()];
    const CudnnGraphKey key =
        graph_key(dense_bshd(shape_of(true, form.mask, packing(random, form.square)), 0.1));
    ASSERT_TRUE(cache.get({&key, 1}).front().graph);
  }
  EXPECT_EQ(builder->built, static_cast<int>(forms.size()));
}

TEST(GraphCache, EqualKeysOfOneCallAreOneGraph) {
  auto builder = std::make_shared<CountingBuilder>();
  GraphCache cache(builder);
  const std::vector<CudnnGraphKey> keys = {key_of_length(5), key_of_length(6), key_of_length(5)};
  const std::vector<BuiltGraph> graphs = cache.get(keys);
  ASSERT_EQ(graphs.size(), 3U);
  EXPECT_EQ(graphs[0].graph, graphs[2].graph);
  EXPECT_NE(graphs[0].graph, graphs[1].graph);
  EXPECT_EQ(builder->built, 2);
}

// Each build waits until another is under way.
TEST(GraphCache, BuildsSeveralAtATime) {
  auto builder = std::make_shared<CountingBuilder>();
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;
  builder->on_build = [&](const CudnnGraphKey&) {
    std::unique_lock lock(mutex);
    ++under_way;
    changed.notify_all();
    // So long only where nobody else comes.
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(2), [&] { return under_way >= 2; }));
  };
  GraphCache cache(builder, {.threads = 2});
  for (const BuiltGraph& graph : cache.get(keys_of_lengths(1, 5))) EXPECT_TRUE(graph.graph);
  EXPECT_EQ(builder->built, 5);
}

TEST(GraphCache, KeepsTheLatest) {
  auto builder = std::make_shared<CountingBuilder>();
  GraphCache cache(builder, {.kept = 3});
  for (const std::int64_t length : {1, 2, 3, 1, 4}) cache.get(keys_of_lengths(length, 1));
  EXPECT_EQ(builder->built, 4);
  cache.get(keys_of_lengths(1, 1));  // asked for later than 2, which went
  EXPECT_EQ(builder->built, 4);
  cache.get(keys_of_lengths(2, 1));
  EXPECT_EQ(builder->built, 5);
  EXPECT_EQ(cache.size(), 3U);
}

TEST(GraphCache, KeepsAllOfAPlanThatHasMore) {
  auto builder = std::make_shared<CountingBuilder>();
  GraphCache cache(builder, {.kept = 3});
  const std::vector<CudnnGraphKey> plan = keys_of_lengths(1, 40);
  cache.get(plan);
  EXPECT_EQ(cache.size(), 40U);
  cache.get(plan);
  EXPECT_EQ(builder->built, 40);
  cache.get(keys_of_lengths(100, 1));
  EXPECT_EQ(cache.size(), 3U);
}

TEST(GraphCache, RefusalsAreAskedForAgain) {
  struct Refusing final : CountingBuilder {
    BuiltGraph build(const CudnnGraphKey& key) override {
      ++built;
      return key.shape.q_len == 2 ? BuiltGraph{nullptr, "not this one"}
                                  : BuiltGraph{std::make_shared<NamedGraph>(""), ""};
    }
  };
  auto builder = std::make_shared<Refusing>();
  GraphCache cache(builder);
  for (const int built : {3, 4}) {
    const std::vector<BuiltGraph> graphs = cache.get(keys_of_lengths(1, 3));
    EXPECT_TRUE(graphs[0].graph && graphs[2].graph);
    EXPECT_EQ(graphs[1].refusal, "not this one");
    EXPECT_EQ(builder->built, built);
  }
  EXPECT_EQ(cache.counts().refused, 2U);
}

TEST(GraphCache, ThrowsWhatABuilderThrows) {
  auto builder = std::make_shared<CountingBuilder>();
  builder->on_build = [](const CudnnGraphKey& key) {
    if (key.shape.q_len == 3) throw InvalidInput("there is no library");
  };
  GraphCache cache(builder, {.threads = 4});
  EXPECT_THROW(cache.get(keys_of_lengths(1, 6)), InvalidInput);
  EXPECT_EQ(cache.get(keys_of_lengths(1, 2)).size(), 2U);
}

// ---- with files

class GraphCacheWithFiles : public ::testing::Test {
 protected:
  GraphCache cache() {
    return GraphCache(builder_, {.files = std::make_shared<GraphFiles>(
                                     folder_.path() / "graphs",
                                     [this](const std::string& note) { notes_.push_back(note); })});
  }
  const testing::OwnFolder folder_;
  std::shared_ptr<CountingBuilder> builder_ = std::make_shared<CountingBuilder>();
  std::vector<std::string> notes_;
};

TEST_F(GraphCacheWithFiles, TheNextProcessReadsWhatThisOneBuilt) {
  const std::vector<CudnnGraphKey> keys = keys_of_lengths(1, 5);
  cache().get(keys);
  EXPECT_EQ(builder_->built, 5);
  GraphCache next = cache();
  const std::vector<BuiltGraph> graphs = next.get(keys);
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(graphs[i].graph->engine(), to_text(keys[i]));
  EXPECT_EQ(builder_->built, 5);
  EXPECT_EQ(next.counts().read, 5U);
  EXPECT_THAT(notes_, ::testing::IsEmpty());
}

TEST_F(GraphCacheWithFiles, AnotherVersionBuildsItsOwn) {
  cache().get(keys_of_lengths(1, 1));
  builder_->the_version = "2";
  cache().get(keys_of_lengths(1, 1));
  EXPECT_EQ(builder_->built, 2);
  builder_->the_version = "1";
  cache().get(keys_of_lengths(1, 1));
  EXPECT_EQ(builder_->built, 2);
}

TEST_F(GraphCacheWithFiles, WhatTheLibraryDoesNotTakeIsBuilt) {
  cache().get(keys_of_lengths(1, 1));
  builder_->takes_no_file = true;
  EXPECT_TRUE(cache().get(keys_of_lengths(1, 1)).front().graph);
  EXPECT_EQ(builder_->built, 2);
  EXPECT_THAT(notes_, ::testing::ElementsAre(::testing::HasSubstr("the library does not take it")));
}

TEST_F(GraphCacheWithFiles, ABuilderWithoutAVersionWritesNone) {
  builder_->the_version = "";
  cache().get(keys_of_lengths(1, 1));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "graphs"));
}

}  // namespace
}  // namespace cp::runtime
