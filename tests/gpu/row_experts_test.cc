// The router of a mixture of experts, and the ways of rows to experts and back, against the host's.
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

// Experts on some ranks, the choices of rows, and fewer or more slots than these need.
struct ExpertDraw {
  SlotsRule rule;
  std::int64_t rows = RowRun::any_rows(), columns = RowRun::any_columns(), top_k = pick<std::int64_t>(1, 3),
               slots = 0;
  ExpertDraw() {
    rule.ranks = pick<std::int64_t>(1, 3), rule.experts = rule.ranks * any_of<std::int64_t>({1, 2, 5});
    slots = rule.ranks * any_of<std::int64_t>({0, 1, 7, 40});
  }
  View chosen(RowRun& run) const {
    return run.integers({rows, top_k}, [&] { return pick<std::int64_t>(0, rule.experts - 1); });
  }
};

TEST(GpuRowExperts, RowsGoWhereTheHostBringsThem) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const ExpertDraw draw;
    RowRun run;
    std::vector<View> reads = {run.read({draw.rows, draw.columns})},
                      writes = {run.written({draw.slots, draw.columns})};
    if (coin()) {
      reads.push_back(run.statistic({draw.rows, draw.top_k}));
      writes.push_back(run.written_statistic({draw.slots, 1}));
    }
    reads.push_back(draw.chosen(run));
    run.run({RowOperation::dispatch, reads, writes, {}, draw.rule});
    for (const View& view : writes) RC_ASSERT(run.difference_in(view) == "");
  }));
}

TEST(GpuRowExperts, RowsAreSortedAndCombinedAsOnTheHost) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const ExpertDraw draw;
    RowRun run;
    const View rows = run.read({draw.slots, draw.columns});
    RowKernel kernel{coin() ? RowOperation::dispatch : RowOperation::combine, {rows}, {}, {}, draw.rule};
    View result;
    if (kernel.operation == RowOperation::combine && coin()) {
      kernel.reads.push_back(draw.chosen(run));
      result = run.written({draw.rows, draw.columns});
    } else {
      result = run.written({draw.slots, draw.columns});
    }
    kernel.writes = {result};
    run.run(kernel);
    RC_ASSERT(run.difference_in(result) == "");
  }));
}

// More choices than a block counts, most of them of one expert, whose slots end.
TEST(GpuRowExperts, ManyChoicesTakeSlotsInTheirOrder) {
  CP_SKIP_WITHOUT_GPU();
  RowRun run(DType::f32);
  std::int64_t number = 0;
  const View x = run.read({3000, 8}), rows = run.written({4000, 8}),
             chosen = run.integers({3000, 2}, [&] { return ++number % 4 == 0 ? number / 4 % 6 : 2; });
  run.run({RowOperation::dispatch, {x, chosen}, {rows}, {}, SlotsRule{6, 2}});
  EXPECT_EQ(run.difference_in(rows), "");
}

RouterRule any_router(std::int64_t& experts) {
  RouterRule rule;
  rule.sigmoid = coin(), rule.normalized = coin(), rule.scale = any_of<double>({1, 2.5});
  rule.groups = pick<std::int64_t>(1, 3), rule.top_groups = pick<std::int64_t>(1, rule.groups);
  experts = rule.groups * any_of<std::int64_t>({1, 2, 6, 40});
  return rule;
}
// Multiples of 1/2 from 0 on: scores are equal, or differ by more than any rounding, and so do sums of two.
std::vector<double> any_logits(std::int64_t count) {
  std::vector<double> logits;
  for (; count > 0; --count) logits.push_back(pick(0, 8) / 2.0);
  return logits;
}
// One expert of each group is corrected, by a whole number that no other group has: scores are between 0 and
// 1, and sums of two that are apart differ by less than 1.
std::vector<double> any_correction(std::int64_t groups, std::int64_t experts) {
  std::vector<double> correction(idx(experts), 0.0);
  const std::int64_t each = experts / groups;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t expert = pick<std::int64_t>(0, each - 1);
    correction[idx(group * each + expert)] = static_cast<double>(coin() ? group + 1 : -group - 1);
  }
  return correction;
}

// Scores are an exponential, of four roundings on a GPU with that of its argument, a sum and a quotient.
constexpr double kScore = 2 * 8 * kRounding;

TEST(GpuRowRouter, ChoosesAsTheHost) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    std::int64_t experts = 0;
    const RouterRule rule = any_router(experts);
    const std::int64_t rows = any_of<std::int64_t>({0, 1, 9, 20}),
                       top_k = pick<std::int64_t>(
                           1, std::min<std::int64_t>(8, experts / rule.groups * rule.top_groups));
    const View logits = run.numbers_of(run.any_dtype(), {rows, experts}, any_logits(rows * experts)),
               weights = run.written_statistic({rows, top_k}), chosen = run.written_integers({rows, top_k});
    std::vector<View> reads{logits};
    if (coin()) reads.push_back(run.numbers_of(DType::f32, {experts}, any_correction(rule.groups, experts)));
    std::vector<View> loads;
    if (coin()) loads.push_back(run.numbers_of(DType::f32, {experts}, any_correction(rule.groups, experts)));
    run.run({RowOperation::route, reads, {weights, chosen}, loads, rule});
    RC_ASSERT(run.difference_in(chosen) == "");
    if (!loads.empty()) RC_ASSERT(run.difference_in(loads[0]) == "");
    // A weight is at most the scale. It is a score, or one by a sum of scores that are not smaller than it.
    RC_ASSERT(run.beyond(weights, rule.scale * 3 * kScore) == "");
  }));
}

TEST(GpuRowRouter, GradientsAreTheHostsWithinTheRoundingOfScores) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    std::int64_t experts = 0;
    RouterRule rule = any_router(experts);
    rule.ranks = rule.groups;  // divides the experts, too
    const std::int64_t rows = any_of<std::int64_t>({0, 1, 9, 20}),
                       slots = rule.ranks * any_of<std::int64_t>({0, 3, 20}),
                       top_k = pick<std::int64_t>(
                           1, std::min<std::int64_t>(4, experts / rule.groups * rule.top_groups));
    std::int64_t next = 0;  // the choices of a row are different experts
    const View logits = run.numbers_of(run.any_dtype(), {rows, experts}, any_logits(rows * experts));
    std::vector<double> choices;
    for (std::int64_t row = 0; row < rows; ++row) {
      next = pick<std::int64_t>(0, experts - 1);
      for (std::int64_t k = 0; k < top_k; ++k) choices.push_back(static_cast<double>(next++ % experts));
    }
    const View chosen = run.numbers_of(DType::i32, {rows, top_k}, choices),
               d_slots = run.statistic({slots, 1}), d_logits = run.written({rows, experts});
    run.run({RowOperation::route_backward, {logits, chosen, d_slots}, {d_logits}, {}, rule});
    // With gradients of weights below 1, a gradient of a chosen score is at most 2 scale / divisor. The
    // divisor, a sum of chosen scores, is at least one of a softmax of logits up to 4, and scores are at most
    // e^4 times as large as one another: so what comes of it is at most 2 scale e^4, times a score or a
    // difference of it. Five scores are in each of its terms, and top_k such terms in the sum along the row.
    const double largest = 2 * rule.scale * 54.6 * static_cast<double>(top_k + 1);
    RC_ASSERT(run.beyond(d_logits, largest * 5 * kScore) == "");
  }));
}

}  // namespace
}  // namespace cp
