// The documents of a mask: pieces of the sequence outside of which nothing is seen. They are the problem's
// packed documents, cut at the multiples of its chunk; without either, all keys are one. Internal to
// shared/context_parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shared/base/at_work.h"
#include "shared/base/types.h"
#include "shared/context_parallel/problem.h"

namespace cp::detail {

// Its keys, and the queries that stand in it.
struct MaskDocument {
  KeyInterval keys, queries;
};

// Calls f(MaskDocument) for the pieces of `whole` that the multiples of the chunk make, as far as queries of
// [begin, end) stand in them and they have keys; stops when f returns true.
template <class F>
bool for_each_chunk(const AttentionProblem& problem, const MaskDocument& whole, std::int64_t begin,
                    std::int64_t end, const F& f) {
  if (!problem.chunk) return whole.keys.begin < whole.keys.end && f(whole);
  const std::int64_t chunk = *problem.chunk, offset = problem.offset();
  begin = std::max(begin, whole.queries.begin), end = std::min(end, whole.queries.end);
  // Neither does a query before the first key see any, nor one of a chunk behind the last key.
  const std::int64_t first = std::max(floor_div(begin + offset, chunk), whole.keys.begin / chunk),
                     last = std::min(floor_div(end - 1 + offset, chunk), (whole.keys.end - 1) / chunk);
  for (std::int64_t at = first * chunk; at <= last * chunk; at += chunk) {
    at_work();
    const MaskDocument piece{
        {std::max(whole.keys.begin, at), std::min(whole.keys.end, at + chunk)},
        {std::max(whole.queries.begin, at - offset), std::min(whole.queries.end, at + chunk - offset)}};
    if (piece.keys.begin < piece.keys.end && piece.queries.begin < piece.queries.end && f(piece)) return true;
  }
  return false;
}

// Calls f(MaskDocument) for each document in which a query of [begin, end) stands; stops when f returns true.
// The problem's batch entries must share their mask.
template <class F>
bool for_each_mask_document(const AttentionProblem& problem, std::int64_t begin, std::int64_t end,
                            const F& f) {
  if (begin >= end) return false;
  if (problem.cu_seqlens.empty()) {
    if (!problem.chunk) return f(MaskDocument{{0, problem.kv_len}, {0, problem.q_len}});
    return for_each_chunk(problem, {{0, problem.kv_len}, {0, problem.q_len}}, begin, end, f);
  }
  const std::vector<std::int64_t>& ends = problem.cu_seqlens;
  const std::int64_t offset = problem.offset();
  auto next = std::upper_bound(ends.begin(), ends.end(), begin + offset);
  if (next == ends.begin()) ++next;  // the queries begin before the first document
  for (; next < ends.end() && *(next - 1) < end + offset; ++next) {
    at_work();
    const MaskDocument document{{*(next - 1), *next}, {*(next - 1) - offset, *next - offset}};
    if (for_each_chunk(problem, document, begin, end, f)) return true;
  }
  return false;
}

}  // namespace cp::detail
