#include "sim/ledger/mask_rule.h"

#include <algorithm>

namespace cp::sim {

KeyInterval visible_keys(const AttentionProblem& problem, std::int64_t query) {
  const std::int64_t p =
      query + (problem.query_offset ? *problem.query_offset : problem.kv_len - problem.q_len);
  std::int64_t first = 0, last = problem.kv_len - 1;
  if (problem.causal) last = std::min(last, p);
  if (problem.window) {
    first = std::max(first, p - *problem.window + 1);
    if (!problem.causal) last = std::min(last, p + *problem.window - 1);
  }
  if (!problem.cu_seqlens.empty()) {
    std::int64_t begin = 0, end = 0;  // of the document of p, if there is one
    for (std::size_t d = 1; d < problem.cu_seqlens.size(); ++d) {
      if (problem.cu_seqlens[d - 1] > p || p >= problem.cu_seqlens[d]) continue;
      begin = problem.cu_seqlens[d - 1];
      end = problem.cu_seqlens[d];
    }
    first = std::max(first, begin);
    last = std::min(last, end - 1);
  }
  return first <= last ? KeyInterval{first, last + 1} : KeyInterval{};
}

std::vector<KeyInterval> visible_keys(const AttentionProblem& problem) {
  std::vector<KeyInterval> rows;
  rows.reserve(static_cast<std::size_t>(problem.q_len));
  for (std::int64_t query = 0; query < problem.q_len; ++query) rows.push_back(visible_keys(problem, query));
  return rows;
}

}  // namespace cp::sim
