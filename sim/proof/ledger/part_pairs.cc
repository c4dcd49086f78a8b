#include "sim/proof/ledger/part_pairs.h"

#include <algorithm>

#include "sim/proof/ledger/mask_rule.h"

namespace cp::sim {

std::vector<bool> seen_keys(const AttentionProblem& problem, const IndexSet& queries) {
  std::vector<std::int64_t> changes(static_cast<std::size_t>(problem.kv_len) + 1);
  const std::int64_t masks = problem.cu_seqlens_of_entry.empty() ? 1 : problem.batch;
  for (std::int64_t batch = 0; batch < masks; ++batch) {
    for_each_index(queries, [&](std::int64_t query) {
      const KeyInterval keys = visible_keys(problem, batch, query);
      ++changes[static_cast<std::size_t>(keys.begin)];
      --changes[static_cast<std::size_t>(keys.end)];
    });
  }
  std::vector<bool> seen;
  seen.reserve(changes.size());
  std::int64_t queries_that_see = 0;
  for (std::size_t key = 0; key + 1 < changes.size(); ++key)
    seen.push_back((queries_that_see += changes[key]) > 0);
  return seen;
}

PartPairs::PartPairs(const AttentionProblem& problem, const AttentionSharding& sharding)
    : ring_size_(sharding.ring_size()) {
  for (int q = 0; q < ring_size_; ++q) {
    const std::vector<bool> seen = seen_keys(problem, sharding.compute_q(sharding.index_at(q, 0)).rows);
    for (int kv = 0; kv < ring_size_; ++kv) {
      std::int64_t needed = 0;
      for_each_index(sharding.compute_kv(sharding.index_at(kv, 0)).rows,
                     [&](std::int64_t key) { needed += seen[static_cast<std::size_t>(key)] ? 1 : 0; });
      needed_.push_back(needed);
    }
  }
}

}  // namespace cp::sim
