// The look-up of tokens, and the loss of a split vocabulary, against the host's.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "shared/base/index.h"
#include "tests/gpu/row_run.h"

namespace cp {
namespace {

using testing::any_of;
using testing::coin;
using testing::kRounding;
using testing::pick;
using testing::RowRun;

// Some tokens of the rank, few enough to come again, some of other ranks on both sides, and ignored ones.
std::int64_t any_token(const VocabularyRule& rule) {
  return pick(0, 5) == 0
             ? rule.ignored
             : pick<std::int64_t>(rule.first - 2, rule.first + std::min<std::int64_t>(rule.count, 5) + 2);
}
VocabularyRule any_vocabulary(std::int64_t count) {
  VocabularyRule rule;
  rule.first = any_of<std::int64_t>({0, 2, 1000}), rule.count = count;
  rule.scale = any_of<double>({1, 3});
  return rule;
}

TEST(GpuRowEmbedding, IsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const std::int64_t rows = RowRun::any_rows(), columns = RowRun::any_columns(),
                       count = any_of<std::int64_t>({0, 1, 4, 20}), more = pick<std::int64_t>(0, 3);
    const VocabularyRule rule = any_vocabulary(count);
    const View tokens = run.integers({rows}, [&] { return any_token(rule); });
    if (coin()) {
      const View table = run.read({count + more, columns}), x = run.written({rows, columns});
      run.run({RowOperation::embed, {tokens, table}, {x}, {}, rule});
      RC_ASSERT(run.difference_in(x) == "");
    } else {
      const View dx = run.read({rows, columns}), table = run.written({count + more, columns});
      run.run({RowOperation::embed_backward, {tokens, dx}, {}, {table}, rule});
      RC_ASSERT(run.difference_in(table) == "");
    }
  }));
}

// More tokens than the tile of a block has, one of which comes very often.
TEST(GpuRowEmbedding, AddsUpManyRowsOfATokenInTheirOrder) {
  CP_SKIP_WITHOUT_GPU();
  RowRun run(DType::bf16);
  VocabularyRule rule;
  rule.count = 9;
  std::int64_t number = 0;
  const View tokens = run.integers({2500}, [&] { return ++number % 3 == 0 ? 4 : number * number % 11; }),
             dx = run.read({2500, 24}), table = run.written({9, 24});
  run.run({RowOperation::embed_backward, {tokens, dx}, {}, {table}, rule});
  EXPECT_EQ(run.difference_in(table), "");
}

TEST(GpuRowLoss, IsTheHostsWithinTheRoundingOfExponentials) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const std::int64_t rows = RowRun::any_rows(), columns = RowRun::any_columns();
    VocabularyRule rule = any_vocabulary(std::max<std::int64_t>(0, columns - pick<std::int64_t>(0, 3)));
    rule.softcap = any_of<double>({0, 0, 2}), rule.logit_scale = any_of<double>({1, 1, 0.25, 0.8333});
    constexpr double kLargest = 4;  // of logits
    const View logits = run.read({rows, columns}, kLargest);
    const auto labels = [&] { return run.integers({rows}, [&] { return any_token(rule); }); };
    // Logits are exact without a cap and a scale, whose product rounds on both sides; with a cap, a
    // hyperbolic tangent of one unit in the last place (two roundings) on both sides, a quotient and a
    // product.
    const double of_logits = (rule.logit_scale == 1 ? 0 : 2 * kLargest * kRounding) +
                             (rule.softcap == 0 ? 0 : 2 * 4 * rule.softcap * kRounding);
    std::vector<View> reads = {logits}, writes;
    const int mode = pick(0, 2);
    if (mode != 1) writes.push_back(run.written_statistic({rows, 1}));
    if (mode == 1) reads.push_back(run.numbers({rows, 1}, std::vector<double>(idx(rows), kLargest)));
    if (mode > 0) reads.push_back(labels()), writes.push_back(run.written_statistic({rows, 2}));
    run.run({RowOperation::cross_entropy, reads, writes, {}, rule});
    if (mode != 1) RC_ASSERT(run.beyond(writes.front(), of_logits) == "");
    if (mode == 0) return;
    // Each term is at most 1. Its exponential has two roundings and those of its argument. So has each factor
    // by which a sum shrinks where a greater logit comes: at most once for each of the packs of a lane, of
    // which these rows have 5, and once where the lane's sum becomes one as of the row's maximum. The sums of
    // a pack round seven times.
    const double of_exponential = 2 * (2 + 2 * kLargest) * kRounding + 2 * of_logits;
    const double of_term = (5 + 1 + 1) * of_exponential + 7 * kRounding;
    RC_ASSERT(run.beyond(writes.back(), static_cast<double>(columns) * of_term) == "");
  }));
}

TEST(GpuRowLoss, GradientsAreTheHostsWithinTheRoundingOfExponentials) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const std::int64_t rows = RowRun::any_rows(), columns = RowRun::any_columns();
    VocabularyRule rule = any_vocabulary(std::max<std::int64_t>(0, columns - pick<std::int64_t>(0, 3)));
    rule.softcap = any_of<double>({0, 0, 2}), rule.logit_scale = any_of<double>({1, 1, 0.25, 0.8333});
    constexpr double kLargest = 4, kLargestSum = 2;
    std::vector<double> maxima(idx(rows), kLargest), sums(idx(2 * rows));
    for (double& value : sums) value = pick(64, 128) / 64.0;
    const View logits = run.read({rows, columns}, kLargest), of_maxima = run.numbers({rows, 1}, maxima),
               of_sums = run.numbers({rows, 2}, sums),
               labels = run.integers({rows}, [&] { return any_token(rule); }),
               weight = run.numbers({1}, {0.375}), d_logits = run.written({rows, columns}),
               losses = run.written_statistic({rows});
    run.run({RowOperation::cross_entropy_backward,
             {logits, of_maxima, of_sums, labels, weight},
             {d_logits, losses},
             {},
             rule});
    // All terms are at most 1: an exponential, of two roundings and those of its argument, on both sides; its
    // product or quotient, the difference, and two of the slope of the cap.
    const double of_logits = (rule.logit_scale == 1 ? 0 : 2 * kLargest * kRounding) +
                             (rule.softcap == 0 ? 0 : 2 * 4 * rule.softcap * kRounding),
                 of_exponential = 2 * (2 + 2 * kLargest) * kRounding + 2 * of_logits;
    RC_ASSERT(run.beyond(d_logits, of_exponential + 2 * 6 * kRounding + 2 * of_logits) == "");
    // A logarithm of one unit in the last place, and two sums of at most 4 + 2.
    RC_ASSERT(run.beyond(losses, 2 * 4 * (kLargest + kLargestSum) * kRounding) == "");
  }));
}

}  // namespace
}  // namespace cp
