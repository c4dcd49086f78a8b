#include "shared/context_parallel/pair_counts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "shared/base/error.h"

namespace cp {
namespace {

// Allowed pairs by query, or by key, under a causal mask: a function of the position that is linear between
// few bends.
struct Pairs {
  const AttentionProblem& problem;
  bool by_key;

  // Without one: longer than any distance.
  std::int64_t window() const {
    return problem.window.value_or(problem.kv_len + problem.q_len + std::abs(problem.offset()));
  }

  std::int64_t at(std::int64_t row) const {
    const std::int64_t offset = problem.offset();
    const std::int64_t begin = by_key ? row - offset : row + offset + 1 - window(),
                       end = by_key ? row - offset + window() : row + offset + 1;
    const std::int64_t length = by_key ? problem.q_len : problem.kv_len;
    return std::max<std::int64_t>(0, std::min(end, length) - std::max<std::int64_t>(begin, 0));
  }
  // Rows at which begin or end pass 0 or the length.
  std::array<std::int64_t, 4> bends() const {
    const std::int64_t offset = problem.offset();
    if (by_key) return {offset, offset + problem.q_len, offset - window(), offset + problem.q_len - window()};
    return {window() - offset - 1, window() - offset - 1 + problem.kv_len, -offset - 1,
            problem.kv_len - offset - 1};
  }

  // Over rows first, first + stride, ..., `count` of them.
  std::int64_t sum(std::int64_t first, std::int64_t stride, std::int64_t count) const {
    std::vector<std::int64_t> cuts = {0, count};
    for (const std::int64_t bend : bends()) {
      cuts.push_back(
          std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(bend - first, 0), stride), 0, count));
      cuts.push_back(std::min(count, cuts.back() + 1));
    }
    std::sort(cuts.begin(), cuts.end());
    std::int64_t total = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t n = cuts[i + 1] - cuts[i];
      if (n == 0) continue;
      total += n * (at(first + cuts[i] * stride) + at(first + (cuts[i + 1] - 1) * stride)) / 2;
    }
    return total;
  }
  std::int64_t sum(const IndexSet& rows) const {
    std::int64_t total = 0;
    for (const Run& run : rows) {
      if (run.run <= run.count) {
        for (std::int64_t i = 0; i < run.run; ++i) total += sum(run.begin + i, run.stride, run.count);
      } else {
        for (std::int64_t i = 0; i < run.count; ++i) total += sum(run.begin + i * run.stride, 1, run.run);
      }
    }
    return total;
  }
};

void require_causal(const AttentionProblem& problem) {
  CP_INVARIANT(problem.causal && !problem.has_documents(),
               "pairs are counted under a causal mask without documents, not of ", to_string(problem));
}

}  // namespace

std::int64_t pairs_of_queries(const AttentionProblem& problem, const IndexSet& queries) {
  require_causal(problem);
  return Pairs{problem, false}.sum(queries);
}

std::int64_t pairs_of_keys(const AttentionProblem& problem, const IndexSet& keys) {
  require_causal(problem);
  return Pairs{problem, true}.sum(keys);
}

}  // namespace cp
