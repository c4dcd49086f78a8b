// Random attention problems and strategies, small enough to run.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/strategy.h"
#include "shared/placement/split.h"

namespace cp {

inline void showValue(const AttentionProblem& problem, std::ostream& out) {
  out << to_string(problem) << " " << name(problem.format) << " from " << problem.offset() << " documents "
      << documents_text(problem);
}
inline void showValue(Strategy::Keys keys, std::ostream& out) { out << name(keys); }
inline void showValue(const AttentionOptions& options, std::ostream& out) {
  out << "gradients " << to_string(options.gradients) << ", lse " << name(options.lse);
}
inline void showValue(const Strategy& strategy, std::ostream& out) { out << to_string(strategy); }

}  // namespace cp

namespace cp::testing {

inline std::vector<std::int64_t> any_documents(std::int64_t kv_len) {
  std::vector<std::int64_t> ends = {0};
  const int documents = *rc::gen::inRange(1, 6);
  for (int d = 0; d < documents; ++d) ends.push_back(*rc::gen::inRange<std::int64_t>(0, kv_len + 1));
  if (*rc::gen::arbitrary<bool>()) ends.back() = kv_len;
  std::sort(ends.begin(), ends.end());
  return ends;
}

// Lengths around multiples of 8, from 0 to 41; every mask that all batch entries share; few heads of few
// values.
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
    problem.format = *rc::gen::element(TensorFormat::bshd, TensorFormat::bnsd, TensorFormat::sbhd);
    problem.causal = *rc::gen::arbitrary<bool>();
    if (*rc::gen::inRange(0, 3) == 0) problem.window = *rc::gen::inRange(1, 12);
    if (*rc::gen::inRange(0, 3) == 0) problem.query_offset = *rc::gen::inRange(-10, 30);
    if (*rc::gen::arbitrary<bool>()) problem.cu_seqlens = any_documents(problem.kv_len);
    if (*rc::gen::inRange(0, 4) == 0) problem.chunk = *rc::gen::inRange(1, 20);
    if (*rc::gen::inRange(0, 4) == 0) problem.softcap = *rc::gen::element(0.5, 2.0, 30.0);
    if (*rc::gen::inRange(0, 4) == 0) problem.sinks = true;
    if (*rc::gen::inRange(0, 4) == 0)
      problem.dropout = {*rc::gen::element(0.1, 0.5), *rc::gen::inRange(0, 3)};
    return problem;
  });
}

// Of several batch entries, each with documents of its own; neighbours may have the same.
inline rc::Gen<AttentionProblem> any_problem_of_entries() {
  return rc::gen::exec([] {
    AttentionProblem problem = *any_problem();
    problem.cu_seqlens.clear();
    problem.batch = *rc::gen::inRange(2, 5);
    for (std::int64_t entry = 0; entry < problem.batch; ++entry) {
      const bool same = entry > 0 && *rc::gen::inRange(0, 4) == 0;
      problem.cu_seqlens_of_entry.push_back(same ? problem.cu_seqlens_of_entry.back()
                                                 : any_documents(problem.kv_len));
    }
    return problem;
  });
}
inline rc::Gen<AttentionProblem> any_problem_at_all() {
  return rc::gen::oneOf(any_problem(), any_problem(), any_problem_of_entries());
}

// Keys and values of latent rows, wider or narrower than what they expand to.
inline rc::Gen<AttentionProblem> any_latent_problem() {
  return rc::gen::exec([] {
    AttentionProblem problem = *any_problem_at_all();
    problem.head_dim = *rc::gen::element(2, 3, 4);
    problem.latent = {*rc::gen::element(1, 2, 5, 8, 24),
                      *rc::gen::inRange<std::int64_t>(0, problem.head_dim)};
    return problem;
  });
}

inline rc::Gen<AttentionOptions> any_options() {
  return rc::gen::exec([] {
    AttentionOptions options;
    Gradients& g = options.gradients;
    if (*rc::gen::arbitrary<bool>()) {
      const int asked = *rc::gen::inRange(1, 8);
      g.dq = (asked & 1) != 0, g.dk = (asked & 2) != 0, g.dv = (asked & 4) != 0;
    }
    options.lse = *rc::gen::element(LsePlace::home, LsePlace::home, LsePlace::computed);
    return options;
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
    std::vector<Core> cores = {Core::ring};  // twice as often as the others
    for (const CoreFacts* core : all_cores()) cores.push_back(core->core);
    strategy.core = *rc::gen::elementOf(cores);
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
    strategy.slots = *rc::gen::inRange(kLeastSlots, kMostSlots + 1);
    if (*rc::gen::inRange(0, 2) == 0)
      strategy.pieces = *rc::gen::inRange(1, std::min(4, most_pieces(problem, cp, strategy)) + 1);
    if (*rc::gen::inRange(0, 2) == 0) strategy.merges = Strategy::Merges::beside;
    if (*rc::gen::inRange(0, 2) == 0) {
      Strategy engines = strategy;
      engines.transfers = Strategy::Transfers::copy_engine;
      if (!refuse(problem, cp, engines)) return engines;
    }
    return strategy;
  });
}

}  // namespace cp::testing
