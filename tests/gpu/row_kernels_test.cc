// Norms, rotary embeddings, activations, gates, biases, and the optimizer's kernels, against the host's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
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

// ---- norms ----

// A norm over drawn groups, and its operands. Eps bounds r, of which sums are exact (RowRun), by 2.
struct NormDraw {
  NormRule rule;
  std::int64_t rows = RowRun::any_rows(), columns = 0;
  RowRun run;
  View x;
  std::vector<View> weights;
  RowKernel kernel;

  explicit NormDraw(RowOperation operation, bool of_sums) {
    rule.eps = 0.25, rule.unit_offset = coin();
    rule.unweighted = operation != RowOperation::norm_sums && !rule.unit_offset && coin();
    rule.width = any_of<std::int64_t>({1, 5, 8, 16, 24, 128, 257, 1160});
    const bool has_more = coin();
    if (of_sums || coin()) {
      rule.ranks = of_sums ? 3 : any_of<std::int64_t>({1, 2});
      if (has_more) rule.more_groups = 1;
    } else {
      rule.groups = pick<std::int64_t>(1, 3);
      if (has_more) rule.more_groups = pick<std::int64_t>(1, 2);
    }
    if (has_more) rule.more_width = any_of<std::int64_t>({3, 8, 16, 40});
    rule.centered = !of_sums && rule.ranks == 1 && coin();
    columns = rule.normalized() + any_of<std::int64_t>({0, 0, 1, 8});
    kernel.operation = operation, kernel.rule = rule;
    x = run.read({rows, columns});
    kernel.reads.push_back(x);
  }

  void add_weights() {
    if (rule.unweighted) return;
    kernel.reads.push_back(run.read({rule.width}));
    if (rule.more_groups > 0) kernel.reads.push_back(run.read({rule.more_width}));
  }
  // Sums of ranks that share the rows; of squares, so that none is negative.
  void add_sums(bool of_products) {
    if (rule.ranks == 1) return;
    std::vector<double> squares(idx(rows * rule.kinds_of_groups()));
    for (double& value : squares) value = pick(0, 640) / 64.0;
    kernel.reads.push_back(run.numbers({rows, rule.kinds_of_groups()}, squares));
    if (of_products) kernel.reads.push_back(run.statistic({rows, rule.kinds_of_groups()}));
  }
};

TEST(GpuRowNorms, AreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    NormDraw norm(RowOperation::rms_norm, false);
    norm.add_weights(), norm.add_sums(false);
    const View y = norm.run.written({norm.rows, norm.columns});
    norm.kernel.writes = {y};
    norm.run.run(norm.kernel);
    if (!norm.rule.centered) {
      RC_ASSERT(norm.run.difference_in(y) == "");
      return;
    }
    // Sums of x are exact, and so means and what is left are the same: at most 2. Their squares are not, of
    // which a pack adds up 8, so that r, at most 2, is off by half as many roundings and its own. A factor is
    // at most 2, and two products round on both sides.
    RC_ASSERT(norm.run.beyond(y, 2 * 2 * 2 * (4 + 1 + 2 * 2) * kRounding) == "");
  }));
}

TEST(GpuRowNorms, SumsOfRowsThatRanksShareAreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const bool backward = coin();
    NormDraw norm(backward ? RowOperation::norm_sums_backward : RowOperation::norm_sums, true);
    if (backward) norm.add_weights(), norm.kernel.reads.push_back(norm.run.read({norm.rows, norm.columns}));
    const View sums = norm.run.written_statistic({norm.rows, norm.rule.kinds_of_groups()});
    norm.kernel.writes = {sums};
    norm.run.run(norm.kernel);
    RC_ASSERT(norm.run.difference_in(sums) == "");
  }));
}

TEST(GpuRowNorms, GradientsAreTheHostsWithinTheRoundingOfTheirTerms) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    NormDraw norm(RowOperation::rms_norm_backward, false);
    norm.add_weights(), norm.kernel.reads.push_back(norm.run.read({norm.rows, norm.columns}));
    norm.add_sums(true);
    const View dx = norm.run.written({norm.rows, norm.columns});
    norm.run.give(norm.kernel, dx);
    std::vector<View> of_weights;
    if (!norm.rule.unweighted) {
      of_weights.push_back(norm.run.written({norm.rule.width}));
      norm.run.give(norm.kernel, of_weights[0]);
    }
    if (norm.rule.weights() > 1) {
      const View& dw = of_weights[0];
      // Both of a kernel's weights are written, or both updated, so that they stay in their order.
      auto& with_first = norm.kernel.writes.empty() || norm.kernel.writes.back().buffer != dw.buffer
                             ? norm.kernel.updates
                             : norm.kernel.writes;
      of_weights.push_back(norm.run.written({norm.rule.more_width}));
      with_first.push_back(of_weights[1]);
    }
    norm.run.run(norm.kernel);
    // r is at most 2, a factor at most 2, and x, dy and what was there are below 1. So r f dy is at most 4,
    // and x r^3 T / width at most 8: with T at most 2 sqrt(width S), what follows from it is at most 2 r^2;
    // with a given T below 1 it is r^3 / width. r, r^3 T / width, their three products and their difference
    // round, and the sum with what was there.
    //
    // Without its mean x is at most 2, and so is the mean of f dy, so that the first is at most 8, and the
    // other 16. Then sums are inexact, too: a pack adds up 8 products of each, and the host rounds what it
    // takes the mean of.
    const bool centered = norm.rule.centered;
    RC_ASSERT(norm.run.beyond(dx, centered ? (5 + 8 + 2) * (8 + 16) * kRounding + kRounding * 25
                                           : 5 * (4 + 8) * kRounding + kRounding * 13) == "");
    // Each of N terms is at most 2, or 4, and has three roundings, and with a mean those of r; their sum has
    // N - 1.
    const auto terms =
        static_cast<double>(norm.rows * std::max({norm.rule.groups, norm.rule.more_groups, std::int64_t{1}}));
    const double most = centered ? 4 : 2, rounds = centered ? 3 + 5 : 3;
    for (const View& view : of_weights)
      RC_ASSERT(norm.run.beyond(view, (most * terms * (terms + rounds) + 1) * kRounding) == "");
  }));
}

// Longer rows than the registers of a block keep, and more rows than all blocks have at once.
TEST(GpuRowNorms, TakeLongRowsAndManyOfThem) {
  CP_SKIP_WITHOUT_GPU();
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 8808}, {5, 4808}, {1100, 1160}}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      RowRun run(dtype);
      NormRule rule;
      rule.width = columns, rule.eps = 0.25;
      const Shape all = {rows, columns};
      const View x = run.read(all), w = run.read({columns}), dy = run.read(all), y = run.written(all),
                 dx = run.written(all), dw = run.written_statistic({columns});
      run.run({RowOperation::rms_norm, {x, w}, {y}, {}, rule});
      EXPECT_EQ(run.difference_in(y), "") << rows << " rows of " << name(dtype);
      run.run({RowOperation::rms_norm_backward, {x, w, dy}, {dx}, {dw}, rule});
      EXPECT_EQ(run.beyond(dx, 73 * kRounding), "") << rows << " rows of " << name(dtype);
      // Each term is at most 2 and rounds three times. At most five are added up in f32 by a thread, one of
      // each turn of its block, or three and then those of two threads; and the sums of four blocks. The rest
      // is f64.
      EXPECT_EQ(run.beyond(dw, 2 * static_cast<double>(rows) * (3 + 4 + 3) * kRounding), "")
          << rows << " rows of " << name(dtype);
      rule.centered = true;  // tolerances as of drawn ones above
      run.run({RowOperation::rms_norm, {x, w}, {y}, {}, rule});
      EXPECT_EQ(run.beyond(y, 2 * 2 * (4 + 1 + 2 * 2) * kRounding), "") << rows << " centered rows";
      run.run({RowOperation::rms_norm_backward, {x, w, dy}, {dx}, {dw}, rule});
      EXPECT_EQ(run.beyond(dx, (5 + 8 + 2) * (8 + 16) * kRounding), "") << rows << " centered rows";
      EXPECT_EQ(run.beyond(dw, 4 * static_cast<double>(rows) * (3 + 5 + 4 + 3) * kRounding), "")
          << rows << " centered rows";
    }
  }
}

// ---- rotary ----

// Queries, keys and values from one matrix of rows, the keys and values as caches may have them; heads that
// share a part; and columns that nobody takes.
RowKernel any_rotary(RowRun& run, bool backward, std::vector<View>& out) {
  RotaryRule rule;
  rule.sequences = pick<std::int64_t>(1, 3), rule.interleaved = coin();
  const std::int64_t of_sequence = any_of<std::int64_t>({0, 1, 4, 11}),
                     rotated = any_of<std::int64_t>({2, 8, 16, 32}), plain = any_of<std::int64_t>({0, 8, 5}),
                     heads = pick<std::int64_t>(1, 3), shared = pick<std::int64_t>(0, 1),
                     rows = rule.sequences * of_sequence;
  // A ring's share of a sequence: its first and its last piece.
  if (of_sequence > 0) rule.positions = {Run{3, 1, 1, 1}};
  if (of_sequence > 1) rule.positions.push_back(Run{5, of_sequence - 1, of_sequence - 1, 1});
  const std::int64_t width = rotated + plain, gap = any_of<std::int64_t>({0, 8, 3});
  // Source: [heads (rotated, plain) | shared part | gap]. Targets: heads with both, and heads with the shared
  // part behind a copy of their own plain columns.
  const std::int64_t from_shared = heads * width, columns = from_shared + rotated + gap;
  rule.moves.push_back({0, 0, width, 0, 0, width, heads, rotated, true});
  rule.temperature = 0.25, rule.floor = 2;
  if (plain > 0) rule.moves.push_back({0, rotated, width, 0, rotated, width, heads, plain, false, coin()});
  const bool turns = shared == 1, scales = !turns && coin();
  rule.moves.push_back({0, from_shared, 0, 1, 0, rotated, heads, rotated, turns, scales});
  RowKernel kernel{backward ? RowOperation::rotary_backward : RowOperation::rotary, {}, {}, {}, rule};
  const std::vector<Shape> sources = {{rows, columns}},
                           targets = {{rule.sequences, of_sequence, heads, width}, {rows, heads * rotated}};
  for (const Shape& shape : backward ? targets : sources) kernel.reads.push_back(run.read(shape));
  for (const Shape& shape : backward ? sources : targets) kernel.writes.push_back(run.written(shape));
  kernel.reads.push_back(run.statistic({of_sequence + 5, rotated}));
  out = kernel.writes;
  return kernel;
}

TEST(GpuRowRotary, IsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    std::vector<View> out;
    run.run(any_rotary(run, coin(), out));
    for (const View& view : out) RC_ASSERT(run.difference_in(view) == "");
  }));
}

// ---- activations, gates, biases ----

// Functions of numbers below 1 have terms below 2, or with an offset of 1 below 4. Each has at most five
// operations of its own, and one of the mathematical library, of four units in the last place on a GPU
// (erfcf; CUDA C++ Programming Guide, mathematical functions) and one on the host; both sides, so that 32
// roundings of terms are more than all.
constexpr double kFunctions = 32 * 4 * kRounding;

TEST(GpuRowActivation, IsTheHostsWithinTheRoundingOfFunctions) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    ActivationRule rule{static_cast<ActivationFunction>(pick(0, 6)), coin()};
    rule.limit = any_of<double>({0, 0, 0.25, 0.5});
    if (rule.gated) rule.offset = any_of<double>({0, 1});
    rule.weighs_inputs = coin();
    const std::int64_t rows = RowRun::any_rows(), columns = RowRun::any_columns();
    const bool weighted = coin();
    const View up = run.read({rows, (rule.gated ? 2 : 1) * columns});
    std::vector<View> reads = {up};
    if (weighted) reads.push_back(run.statistic({rows, 1}));
    if (coin()) {
      const View y = run.written({rows, columns});
      run.run({RowOperation::gated_activation, reads, {y}, {}, rule});
      RC_ASSERT(run.beyond(y, kFunctions) == "");
      return;
    }
    reads.push_back(run.read({rows, columns}));
    std::vector<View> writes = {run.written(up.shape)};
    if (weighted) writes.push_back(run.written_statistic({rows, 1}));
    run.run({RowOperation::gated_activation_backward, reads, writes, {}, rule});
    RC_ASSERT(run.beyond(writes[0], kFunctions) == "");
    // A pack of eight terms has seven sums in f32, of at most 16: less than nine more roundings for each
    // term.
    if (weighted)
      RC_ASSERT(run.beyond(writes[1], static_cast<double>(columns) * (kFunctions + 9 * kRounding)) == "");
  }));
}

TEST(GpuRowGates, AreTheHostsWithinTheRoundingOfFunctions) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const Shape shape = {RowRun::any_rows(), RowRun::any_columns()};
    std::vector<View> reads = {run.read(shape), run.read(shape)}, writes = {run.written(shape)};
    const bool backward = coin();
    if (backward) reads.push_back(run.read(shape)), writes.push_back(run.written(shape));
    run.run(
        {backward ? RowOperation::output_gate_backward : RowOperation::output_gate, reads, writes, {}, {}});
    for (const View& view : writes) RC_ASSERT(run.beyond(view, kFunctions) == "");
  }));
}

TEST(GpuRowBiases, AreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const Shape shape = {RowRun::any_rows(), RowRun::any_columns()};
    RowKernel kernel;
    kernel.operation = RowOperation::add_bias;
    View result;
    if (coin()) {
      kernel.reads = {run.read({shape[1]})};
      result = run.written(shape);
      kernel.updates = {result};
    } else {
      kernel.reads = {run.read(shape)};
      result = run.written({shape[1]});
      run.give(kernel, result);
    }
    run.run(kernel);
    RC_ASSERT(run.difference_in(result) == "");
  }));
}

TEST(GpuRowBiases, OfGroupsAreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    const std::int64_t groups = pick<std::int64_t>(1, 5), rows = groups * any_of<std::int64_t>({0, 1, 4, 33}),
                       columns = RowRun::any_columns();
    const bool weighted = coin();
    if (coin()) {
      RowKernel kernel{RowOperation::group_bias, {run.read({groups, columns})}, {}, {}, {}};
      if (weighted) kernel.reads.push_back(run.statistic({rows, 1}));
      const View y = run.written({rows, columns});
      kernel.updates = {y};
      run.run(kernel);
      RC_ASSERT(run.difference_in(y) == "");
      return;
    }
    RowKernel kernel{RowOperation::group_bias_backward, {run.read({rows, columns})}, {}, {}, {}};
    if (weighted)
      kernel.reads.push_back(run.read({groups, columns})), kernel.reads.push_back(run.statistic({rows, 1}));
    const View d_biases = run.written({groups, columns});
    run.give(kernel, d_biases);
    std::vector<View> results = {d_biases};
    if (weighted) {
      results.push_back(run.written_statistic({rows, 1}));
      kernel.updates.push_back(results[1]);
    }
    run.run(kernel);
    for (const View& view : results) RC_ASSERT(run.difference_in(view) == "");
  }));
}

// More rows than all groups of a block read at once. Sums of small fractions are exact.
TEST(GpuRowBiases, AddUpManyRows) {
  CP_SKIP_WITHOUT_GPU();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    RowRun run(dtype);
    const View dy = run.read({1100, 40}), db = run.written_statistic({40});
    run.run({RowOperation::add_bias, {dy}, {}, {db}, {}});
    EXPECT_EQ(run.difference_in(db), "") << name(dtype);
  }
}

// ---- update ----

TEST(GpuRowOptimizer, SquaredNormsAreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    RowKernel kernel;
    SquaredNormRule rule;
    kernel.operation = RowOperation::squared_norm;
    for (int views = pick(0, 4); views > 0; --views) {
      kernel.reads.push_back(run.read(testing::any_shape(3000)));
      rule.copies.push_back(any_of<std::int64_t>({1, 2, 4}));  // quotients are exact
    }
    kernel.rule = rule;
    const View total = run.written_statistic({1});
    kernel.writes = {total};
    run.run(kernel);
    RC_ASSERT(run.difference_in(total) == "");
  }));
}

TEST(GpuRowOptimizer, UpdatesAreTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    RowRun run;
    OptimizerRule rule;
    rule.states = pick<std::int64_t>(0, 2), rule.eps = 0.125;
    rule.max_norm = any_of<double>({0, 1, 100});
    const std::int64_t numel = any_of<std::int64_t>({0, 1, 3, 4, 8, 64, 1021, 1024, 5000});
    RowKernel kernel;
    kernel.operation = RowOperation::optimizer, kernel.rule = rule;
    constexpr double kRate = 0.0625, kStep = 3;
    kernel.reads = {run.read({numel}), run.numbers({1}, {any_of<double>({0, 0.25, 9})}),
                    run.numbers({2}, {kRate, kStep})};
    const View parameters = run.written_statistic({numel});
    kernel.updates = {parameters};
    View states;
    if (rule.states > 0) {
      const Shape shape = coin() ? Shape{rule.states * numel} : Shape{rule.states, numel};
      const DType dtype = run.any_dtype();
      // Moments of squares are not negative.
      const std::vector<double> drawn = testing::small_fractions(rule.states * numel, 99);
      std::vector<double> values(drawn.size());
      std::transform(drawn.begin(), drawn.end(), values.begin(),
                     [](double value) { return std::abs(value); });
      states = run.numbers_of(dtype, shape, values);
      kernel.updates.push_back(states);
    }
    View computed;
    const bool writes = coin();
    if (writes) computed = run.written({numel}), kernel.writes = {computed};
    run.run(kernel);
    if (rule.states > 0) RC_ASSERT(run.difference_in(states) == "");
    if (rule.states < 2) {
      RC_ASSERT(run.difference_in(parameters) == "");
      if (writes) RC_ASSERT(run.difference_in(computed) == "");
      return;
    }
    // All of it is one rounding of IEEE's each, in one order, but for the powers in f64, of which both
    // factors of moments may differ by a unit in the last place: then an update of at most 1 / 16 x 3.7 x 1.2
    // x 8 does by three, and its difference from the parameter rounds.
    RC_ASSERT(run.beyond(parameters, 2.3 * 6 * kRounding) == "");
    if (writes) RC_ASSERT(run.beyond(computed, 2.3 * 6 * kRounding) == "");
  }));
}

}  // namespace
}  // namespace cp
