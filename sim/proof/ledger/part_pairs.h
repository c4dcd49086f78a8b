// Counts which queries of one ring index see which keys of another, row by row, under the mask rule.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/sharding.h"

namespace cp::sim {

// Calls visit(index) for every index of the set.
template <class Visit>
void for_each_index(const IndexSet& set, const Visit& visit) {
  for (const Run& run : set) {
    for (std::int64_t block = 0; block < run.count; ++block) {
      for (std::int64_t i = 0; i < run.run; ++i) visit(run.begin + block * run.stride + i);
    }
  }
}

// One flag for each key: whether any of the queries may see it, in any batch entry.
std::vector<bool> seen_keys(const AttentionProblem& problem, const IndexSet& queries);

// The pairs of all ring indices.
class PartPairs {
 public:
  PartPairs(const AttentionProblem& problem, const AttentionSharding& sharding);

  // How many keys of ring index `kv` some query of ring index `q` may see.
  std::int64_t needed_rows(int q, int kv) const { return needed_[at(q, kv)]; }
  bool any(int q, int kv) const { return needed_rows(q, kv) > 0; }

 private:
  std::size_t at(int q, int kv) const { return static_cast<std::size_t>(q * ring_size_ + kv); }

  int ring_size_;
  std::vector<std::int64_t> needed_;  // [q][kv]
};

}  // namespace cp::sim
