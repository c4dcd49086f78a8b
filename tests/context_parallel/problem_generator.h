// Random attention problems and strategies, small enough to run.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/text.h"
#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/strategy.h"
#include "shared/placement/split.h"

namespace cp {

inline void showValue(const AttentionProblem& problem, std::ostream& out) {
  out << to_string(problem) << " from " << problem.offset() << " documents " << join(problem.cu_seqlens, "/");
}
inline void showValue(const Strategy& strategy, std::ostream& out) { out << to_string(strategy); }

}  // namespace cp

namespace cp::testing {

// Lengths around multiples of 8, from 0 to 41; every mask; few heads of few values.
inline rc::Gen<AttentionProblem> any_problem() {
  return rc::gen::exec([] {
    AttentionProblem problem;
    const auto length = [] { return std::max(0, *rc::gen::inRange(0, 6) * 8 + *rc::gen::inRange(-1, 2)); };
    problem.kv_len = length();
    problem.q_len = *rc::gen::arbitrary<bool>() ? problem.kv_len : length();
    problem.batch = *rc::gen::element(1, 1, 2, 3);
    problem.kv_heads = *rc::gen::element(1, 2, 3, 4);
    problem.q_heads = problem.kv_heads * *rc::gen::element(1, 1, 2, 3);
    problem.head_dim = *rc::gen::element(1, 3, 4);
    problem.v_head_dim = *rc::gen::arbitrary<bool>() ? problem.head_dim : 2;
    problem.dtype = *rc::gen::element(DType::f32, DType::f32, DType::bf16, DType::f16);
    problem.format = *rc::gen::element(TensorFormat::bshd, TensorFormat::bnsd);
    problem.causal = *rc::gen::arbitrary<bool>();
    if (*rc::gen::inRange(0, 3) == 0) problem.window = *rc::gen::inRange(1, 12);
    if (*rc::gen::inRange(0, 3) == 0) problem.query_offset = *rc::gen::inRange(-10, 30);
    if (*rc::gen::arbitrary<bool>()) {
      problem.cu_seqlens = {0};
      const int documents = *rc::gen::inRange(1, 6);
      for (int d = 0; d < documents; ++d) {
        problem.cu_seqlens.push_back(*rc::gen::inRange<std::int64_t>(0, problem.kv_len + 1));
      }
      if (*rc::gen::arbitrary<bool>()) problem.cu_seqlens.back() = problem.kv_len;
      std::sort(problem.cu_seqlens.begin(), problem.cu_seqlens.end());
    }
    return problem;
  });
}

// Some of the rows, as splits cut them; their runs in ascending or descending order.
inline rc::Gen<IndexSet> any_rows(std::int64_t length) {
  return rc::gen::exec([length] {
    const int parts = *rc::gen::inRange(1, 5), index = *rc::gen::inRange(0, parts);
    const std::vector<Split> splits = {Chunked{}, HeadTail{}, Striped{1}, Striped{2}, Striped{3}};
    const Split& split = splits[*rc::gen::inRange<std::size_t>(0, splits.size())];
    IndexSet rows = split_part(split, index_range(0, length), parts, index);
    if (*rc::gen::arbitrary<bool>()) std::reverse(rows.begin(), rows.end());
    return rows;
  });
}

// A strategy that is legal for the problem on `cp` ranks.
inline rc::Gen<Strategy> any_strategy(const AttentionProblem& problem, int cp) {
  return rc::gen::exec([problem, cp] {
    const auto divisor = [](int n, std::int64_t limit) {
      std::vector<int> divisors;
      for (int d = 1; d <= n && d <= limit; ++d) {
        if (n % d == 0) divisors.push_back(d);
      }
      return *rc::gen::elementOf(divisors);
    };
    Strategy strategy;
    strategy.core =
        *rc::gen::element(Core::all_gather, Core::ring, Core::ring, Core::need_only, Core::pass_q);
    strategy.ulysses_degree = divisor(cp, problem.q_heads);
    strategy.ulysses_inner = *rc::gen::arbitrary<bool>();
    strategy.inner_ring = divisor(cp / strategy.ulysses_degree, cp);
    if (*rc::gen::inRange(0, 4) == 0) strategy.rotation = Strategy::Rotation::all_gather;
    strategy.balance = parse_balance(*rc::gen::element<std::string>(
        "contiguous", "head_tail", "striped", "striped:3", "cost:4", "head_tail_exchange",
        "per_document:contiguous", "per_document:head_tail", "per_document:striped:2"));
    strategy.input_dtype_gradients = *rc::gen::inRange(0, 4) == 0;
    strategy.input_dtype_merge = *rc::gen::inRange(0, 4) == 0;
    strategy.send_empty = *rc::gen::inRange(0, 4) == 0;
    return strategy;
  });
}

}  // namespace cp::testing
