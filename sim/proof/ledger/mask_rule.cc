#include "sim/proof/ledger/mask_rule.h"

#include <algorithm>

namespace cp::sim {

KeyInterval visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query) {
  const std::vector<std::int64_t>& ends = problem.cu_seqlens_of_entry.empty()
                                              ? problem.cu_seqlens
                                              : problem.cu_seqlens_of_entry[static_cast<std::size_t>(batch)];
  const std::int64_t p =
      query + (problem.query_offset ? *problem.query_offset : problem.kv_len - problem.q_len);
  std::int64_t first = 0, last = problem.kv_len - 1;
  if (problem.causal) last = std::min(last, p);
  if (problem.window) {
    first = std::max(first, p - *problem.window + 1);
    if (!problem.causal) last = std::min(last, p + *problem.window - 1);
  }
  if (problem.chunk) {
    // The multiples of the chunk at or below p, and above it.
    const std::int64_t into = (p % *problem.chunk + *problem.chunk) % *problem.chunk;
    first = std::max(first, p - into);
    last = std::min(last, p - into + *problem.chunk - 1);
  }
  if (!ends.empty()) {
    std::int64_t begin = 0, end = 0;  // of the document of p, if there is one
    for (std::size_t d = 1; d < ends.size(); ++d) {
      if (ends[d - 1] > p || p >= ends[d]) continue;
      begin = ends[d - 1];
      end = ends[d];
    }
    first = std::max(first, begin);
    last = std::min(last, end - 1);
  }
  return first <= last ? KeyInterval{first, last + 1} : KeyInterval{};
}

std::vector<std::vector<KeyInterval>> visible_keys(const AttentionProblem& problem) {
  std::vector<std::vector<KeyInterval>> entries(static_cast<std::size_t>(problem.batch));
  for (std::size_t batch = 0; batch < entries.size(); ++batch) {
    if (batch > 0 && problem.cu_seqlens_of_entry.empty()) {
      entries[batch] = entries.front();
      continue;
    }
    for (std::int64_t query = 0; query < problem.q_len; ++query)
      entries[batch].push_back(visible_keys(problem, static_cast<std::int64_t>(batch), query));
  }
  return entries;
}

}  // namespace cp::sim
