#include "shared/transformer/sizes.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/context_parallel/sharding.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

// The closed form of rows is what the index sets of attention's home say, for every strategy, balance and odd
// length.
RC_GTEST_PROP(Sizes, RowsAreThoseOfTheFullestHome, ()) {
  AttentionProblem problem;
  problem.causal = true;
  problem.q_len = problem.kv_len = pick("problem.kv_len", rc::gen::inRange<std::int64_t>(1, 700));
  problem.q_heads = 16, problem.kv_heads = 4;
  const int cp = pick("cp", rc::gen::element(1, 2, 3, 4, 6, 8, 12, 16));
  Strategy strategy = pick("strategy", rc::gen::elementOf(standard_strategies(problem, cp)));
  strategy.ulysses_degree =
      pick("strategy.ulysses_degree",
           rc::gen::suchThat(rc::gen::inRange(1, cp + 1), [&](int u) { return cp % u == 0; }));
  strategy.inner_ring = 1;
  if (strategy.balance.kind == Balance::Kind::striped)
    strategy.balance.block = pick("strategy.balance.block", rc::gen::inRange(1, 40));
  const AttentionSharding sharding(problem, cp, strategy);
  std::int64_t most = 0;
  for (int index = 0; index < cp; ++index) most = std::max(most, sharding.home_q(index).num_rows());
  RC_LOG() << to_string(strategy, cp) << " of " << problem.q_len << " on " << cp;
  RC_ASSERT(most_home_rows(problem, cp, strategy) == most);
}

}  // namespace
}  // namespace cp
