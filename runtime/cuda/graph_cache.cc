#include "runtime/cuda/graph_cache.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <system_error>
#include <thread>

namespace cp::runtime {

GraphCache::GraphCache(std::shared_ptr<FusedGraphBuilder> builder, GraphCacheOptions options)
    : builder_(std::move(builder)), options_(std::move(options)) {}

std::pair<BuiltGraph, GraphCache::Way> GraphCache::make(const CudnnGraphKey& key) const {
  const std::string version = options_.files ? builder_->version() : "";
  const GraphFiles::Name name{digest(key), version};
  if (!version.empty()) {
    if (const auto bytes = options_.files->read(name)) {
      if (BuiltGraph read = builder_->read(*bytes); read.graph) return {std::move(read), Way::read};
      options_.files->reject(name, "the library does not take it");
    }
  }
  BuiltGraph built = builder_->build(key);
  if (!built.graph) return {std::move(built), Way::refused};
  if (!version.empty()) {
    if (const std::vector<std::byte> bytes = builder_->write(*built.graph); !bytes.empty())
      options_.files->write(name, bytes);
  }
  return {std::move(built), Way::built};
}

std::vector<std::pair<BuiltGraph, GraphCache::Way>> GraphCache::make_all(
    std::span<const CudnnGraphKey> keys) const {
  std::vector<std::pair<BuiltGraph, Way>> made(keys.size());
  std::vector<std::exception_ptr> errors(keys.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < keys.size(); i = next++) {
      try {
        made[i] = make(keys[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  // Chosen: the ranks of a machine with eight GPUs then start no more threads than it has, mostly.
  constexpr std::size_t kMostThreads = 8;
  const std::size_t most =
      options_.threads > 0 ? options_.threads
                           : std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < std::min(most, keys.size()); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // the system has no more threads for us: those that there are do it
  }
  work();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return made;
}

std::vector<BuiltGraph> GraphCache::get(std::span<const CudnnGraphKey> keys) {
  std::vector<CudnnGraphKey> missing;
  std::unordered_map<CudnnGraphKey, BuiltGraph, Hash> answers;
  for (const CudnnGraphKey& key : keys) {
    const auto [answer, is_new] = answers.try_emplace(key);
    if (!is_new) continue;
    if (const auto known = by_key_.find(key); known != by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, known->second);
      answer->second = known->second->second;
    } else {
      missing.push_back(key);
    }
  }
  std::vector<std::pair<BuiltGraph, Way>> made = make_all(missing);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    auto& [graph, way] = made[i];
    ++(way == Way::built ? counts_.built : way == Way::read ? counts_.read : counts_.refused);
    answers[missing[i]] = graph;
    if (!graph.graph) continue;
    kept_.emplace_front(missing[i], std::move(graph));
    by_key_.emplace(missing[i], kept_.begin());
  }
  while (kept_.size() > std::max(options_.kept, answers.size())) {
    by_key_.erase(kept_.back().first);
    kept_.pop_back();
  }
  std::vector<BuiltGraph> graphs;
  graphs.reserve(keys.size());
  for (const CudnnGraphKey& key : keys) graphs.push_back(answers.at(key));
  return graphs;
}

}  // namespace cp::runtime
