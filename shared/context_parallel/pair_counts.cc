#include "shared/context_parallel/pair_counts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "shared/base/error.h"
#include "shared/context_parallel/mask_documents.h"

namespace cp {
namespace {

// Allowed pairs by query, or by key, under a causal mask: a function of the position that is linear between
// few bends. Of the rows and partners of one document.
struct Pairs {
  const AttentionProblem& problem;
  bool by_key;
  const detail::MaskDocument& document;

  // Without one: longer than any distance.
  std::int64_t window() const {
    return problem.window.value_or(problem.kv_len + problem.q_len + std::abs(problem.offset()));
  }
  // Where the partners of a row lie: keys of the document, or queries.
  std::int64_t low() const {
    return by_key ? std::max<std::int64_t>(0, document.queries.begin) : document.keys.begin;
  }
  std::int64_t high() const {
    return by_key ? std::min(problem.q_len, document.queries.end) : document.keys.end;
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
    const KeyInterval& own = by_key ? document.keys : document.queries;
    const std::int64_t from = rows_before(own.begin), to = rows_before(own.end);
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
  std::int64_t total = 0;
  detail::for_each_mask_document(problem, 0, problem.q_len, [&](const detail::MaskDocument& document) {
    total += Pairs{problem, by_key, document}.sum(rows);
    return false;
  });
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
