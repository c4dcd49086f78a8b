#include "shared/context_parallel/pair_counts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <vector>

#include "shared/base/error.h"

namespace cp {
namespace {

// Allowed pairs by query, or by key, under a causal mask: a function of the position that is linear between
// few bends. Of the rows and partners of one document, if there are any. (Without, queries may stand behind
// all keys and see them; behind the last document they see nothing.)
struct Pairs {
  const AttentionProblem& problem;
  bool by_key;
  std::optional<KeyInterval> document = {};  // among the keys

  // Without one: longer than any distance.
  std::int64_t window() const {
    return problem.window.value_or(problem.kv_len + problem.q_len + std::abs(problem.offset()));
  }
  // Where the partners of a row lie: keys of the document, or queries.
  std::int64_t low() const {
    if (!document) return 0;
    return by_key ? std::max<std::int64_t>(0, document->begin - problem.offset()) : document->begin;
  }
  std::int64_t high() const {
    if (!document) return by_key ? problem.q_len : problem.kv_len;
    return by_key ? std::min(problem.q_len, document->end - problem.offset()) : document->end;
  }

  std::int64_t at(std::int64_t row) const {
    const std::int64_t offset = problem.offset();
    const std::int64_t first = by_key ? row - offset : row + offset + 1 - window(),
                       last = by_key ? row - offset + window() : row + offset + 1;
    return std::max<std::int64_t>(0, std::min(last, high()) - std::max(first, low()));
  }
  // Rows at which first or last pass an end of the document.
  std::array<std::int64_t, 4> bends() const {
    const std::int64_t offset = problem.offset();
    if (by_key)
      return {offset + low(), offset + high(), offset + low() - window(), offset + high() - window()};
    return {window() - offset - 1 + low(), window() - offset - 1 + high(), low() - offset - 1,
            high() - offset - 1};
  }

  // Over rows first, first + stride, ..., `count` of them.
  std::int64_t sum(std::int64_t first, std::int64_t stride, std::int64_t count) const {
    const auto rows_before = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(row - first, 0), stride), 0, count);
    };
    std::int64_t from = 0, to = count;
    if (document) {
      const std::int64_t before = by_key ? 0 : problem.offset();
      from = rows_before(document->begin - before), to = rows_before(document->end - before);
    }
    std::vector<std::int64_t> cuts = {from, to};
    for (const std::int64_t bend : bends()) {
      cuts.push_back(std::clamp(rows_before(bend), from, to));
      cuts.push_back(std::min(to, cuts.back() + 1));
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

std::int64_t pairs_of(const AttentionProblem& problem, const IndexSet& rows, bool by_key) {
  CP_INVARIANT(problem.causal && problem.shares_mask(),
               "pairs are counted under one causal mask, which is not that of ", to_string(problem));
  const std::vector<std::int64_t>& ends = problem.cu_seqlens;
  if (ends.empty()) return Pairs{problem, by_key}.sum(rows);
  std::int64_t total = 0;
  for (std::size_t d = 0; d + 1 < ends.size(); ++d)
    total += Pairs{problem, by_key, KeyInterval{ends[d], ends[d + 1]}}.sum(rows);
  return total;
}

}  // namespace

std::int64_t pairs_of_queries(const AttentionProblem& problem, const IndexSet& queries) {
  return pairs_of(problem, queries, false);
}

std::int64_t pairs_of_keys(const AttentionProblem& problem, const IndexSet& keys) {
  return pairs_of(problem, keys, true);
}

}  // namespace cp
