#include "shared/context_parallel/pair_counts.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"

namespace cp {
namespace {

// Runs that lie in [0, length): of any length, stride and count.
IndexSet any_rows(std::int64_t length) {
  return pick_case("rows", [=] {
    IndexSet rows;
    for (int runs = *rc::gen::inRange(0, 4); runs > 0; --runs) {
      const std::int64_t run = *rc::gen::inRange<std::int64_t>(1, length + 1);
      const std::int64_t begin = *rc::gen::inRange<std::int64_t>(0, length - run + 1);
      const std::int64_t stride = run + *rc::gen::inRange<std::int64_t>(0, 5);
      const std::int64_t most = (length - begin - run) / stride + 1;
      rows.push_back({begin, run, stride, *rc::gen::inRange<std::int64_t>(1, most + 1)});
    }
    return rows;
  });
}

RC_GTEST_PROP(PairCounts, AreSumsOfAllowedKeys, ()) {
  AttentionProblem problem;
  problem.causal = true;
  problem.q_len = pick("problem.q_len", rc::gen::inRange<std::int64_t>(1, 40)),
  problem.kv_len = pick("problem.kv_len", rc::gen::inRange<std::int64_t>(1, 40));
  if (pick("whether problem.window", rc::gen::arbitrary<bool>()))
    problem.window = pick("problem.window", rc::gen::inRange<std::int64_t>(1, 50));
  if (pick("whether problem.query_offset", rc::gen::arbitrary<bool>()))
    problem.query_offset = pick("problem.query_offset", rc::gen::inRange<std::int64_t>(-45, 46));
  if (pick("whether problem.cu_seqlens", rc::gen::arbitrary<bool>())) {
    problem.cu_seqlens = {0};
    while (problem.cu_seqlens.size() < 4) {
      const std::int64_t last = problem.cu_seqlens.back();
      problem.cu_seqlens.push_back(pick("end of a document", rc::gen::inRange(last, problem.kv_len + 1)));
    }
  }
  const auto allowed = [&](std::int64_t query, std::int64_t key) {
    const KeyInterval keys = allowed_keys(problem, query);
    return keys.begin <= key && key < keys.end;
  };
  std::int64_t by_queries = 0, by_keys = 0;
  const IndexSet queries = any_rows(problem.q_len), keys = any_rows(problem.kv_len);
  const auto each = [](const IndexSet& rows, const auto& visit) {
    for (const Run& run : rows) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        for (std::int64_t row = 0; row < run.run; ++row) visit(run.begin + i * run.stride + row);
      }
    }
  };
  each(queries, [&](std::int64_t query) {
    for (std::int64_t key = 0; key < problem.kv_len; ++key) by_queries += allowed(query, key) ? 1 : 0;
  });
  each(keys, [&](std::int64_t key) {
    for (std::int64_t query = 0; query < problem.q_len; ++query) by_keys += allowed(query, key) ? 1 : 0;
  });
  RC_ASSERT(pairs_of_queries(problem, queries) == by_queries);
  RC_ASSERT(pairs_of_keys(problem, keys) == by_keys);
}

}  // namespace
}  // namespace cp
