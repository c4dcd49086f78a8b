// GraphCache keeps the graphs of fused calls for later plans, by their keys, and builds those that are
// missing on several threads: each takes about a second, mostly to compile kernels. With a folder, graphs are
// read from there first, and written there.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/graph_files.h"

namespace cp::runtime {

struct GraphCacheOptions {
  // How many graphs are kept, those that were asked for last; all of the last call in any case, so that a
  // plan with more finds its own again. Chosen: keeping one takes memory of the GPU for its kernels, building
  // it again takes time.
  std::size_t kept = 256;
  // How many build at once at most; 0: as many as the machine runs threads, up to 8.
  std::size_t threads = 0;
  std::shared_ptr<GraphFiles> files = {};  // null: none
};

class GraphCache {
 public:
  explicit GraphCache(std::shared_ptr<FusedGraphBuilder> builder, GraphCacheOptions options = {});

  // Returns the graph of each key. Equal keys share one. The missing ones are read or built, and the function
  // returns when all are there. What the builder refuses is not kept. If the builder throws, so does this,
  // when the others have ended.
  std::vector<BuiltGraph> get(std::span<const CudnnGraphKey> keys);

  struct Counts {
    std::size_t built = 0, read = 0, refused = 0;  // since this object was made
  };
  Counts counts() const { return counts_; }
  std::size_t size() const { return kept_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const CudnnGraphKey& key) const { return digest(key).low; }
  };
  using Kept = std::list<std::pair<CudnnGraphKey, BuiltGraph>>;
  enum class Way : std::uint8_t { built, read, refused };

  std::pair<BuiltGraph, Way> make(const CudnnGraphKey& key) const;  // on any thread
  std::vector<std::pair<BuiltGraph, Way>> make_all(std::span<const CudnnGraphKey> keys) const;

  const std::shared_ptr<FusedGraphBuilder> builder_;
  const GraphCacheOptions options_;
  Kept kept_;  // latest first
  std::unordered_map<CudnnGraphKey, Kept::iterator, Hash> by_key_;
  Counts counts_;
};

}  // namespace cp::runtime
