// Draws recurrences with odd sizes, and strategies that are legal for them.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include "shared/recurrence/recurrence_plan.h"

namespace cp::testing {

inline RecurrenceProblem any_recurrence(std::int64_t most_rows = 90) {
  RecurrenceProblem problem;
  problem.rule = *rc::gen::element(RecurrenceRule::decay, RecurrenceRule::delta);
  problem.seq_len = *rc::gen::inRange<std::int64_t>(1, most_rows);
  problem.batch = *rc::gen::element<std::int64_t>(1, 1, 2);
  problem.key_heads = *rc::gen::inRange<std::int64_t>(1, 5);
  problem.value_heads = problem.key_heads * *rc::gen::inRange<std::int64_t>(1, 3);
  problem.key_dim = *rc::gen::element<std::int64_t>(1, 3, 4, 8);
  problem.value_dim = *rc::gen::element<std::int64_t>(1, 2, 5, 8);
  problem.dtype = *rc::gen::element(DType::f32, DType::f32, DType::bf16, DType::f16);
  if (*rc::gen::arbitrary<bool>()) {
    problem.cu_seqlens = {0, problem.seq_len};
    for (int left = *rc::gen::inRange(0, 7); left > 0; --left)
      problem.cu_seqlens.push_back(*rc::gen::inRange<std::int64_t>(0, problem.seq_len + 1));
    std::sort(problem.cu_seqlens.begin(), problem.cu_seqlens.end());
  }
  return problem;
}

inline std::vector<Rank> ranks_to(int count) {
  std::vector<Rank> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// All ranks' strategies that are legal, with any ranks.
inline RecurrenceRequest any_request(const RecurrenceProblem& problem, int most_ranks = 7) {
  RecurrenceRequest request{problem, {}, {}, true};
  request.ranks.resize(static_cast<std::size_t>(*rc::gen::inRange(1, most_ranks + 1)));
  std::iota(request.ranks.begin(), request.ranks.end(), *rc::gen::inRange(0, 3));
  if (*rc::gen::arbitrary<bool>()) std::reverse(request.ranks.begin(), request.ranks.end());
  request.strategy.scan = *rc::gen::elementOf(state_scans());
  request.strategy.balance = parse_balance(*rc::gen::element<std::string>(
      "contiguous", "head_tail", "striped:2", "per_document:contiguous", "per_document:head_tail"));
  const auto cp = static_cast<int>(request.ranks.size());
  if (request.strategy.balance.kind != Balance::Kind::striped && *rc::gen::arbitrary<bool>()) {
    request.strategy.ulysses_degree = std::gcd(cp, *rc::gen::inRange(1, 5));
    request.strategy.ulysses_inner = *rc::gen::arbitrary<bool>();
  }
  if (const auto refusal = refuse(problem, static_cast<int>(request.ranks.size()), request.strategy))
    request.strategy = refusal->strategy;
  return request;
}

}  // namespace cp::testing
