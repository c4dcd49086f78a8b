// Rows of recurrent layers: the short convolution, decay and beta, the norm and gates, against the host's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "runtime/cuda/row_kernels.h"
#include "shared/base/error.h"
#include "shared/base/index.h"
#include "tests/gpu/row_run.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using testing::any_of;
using testing::coin;
using testing::kRounding;
using testing::pick;
using testing::RowRun;

// An exponential has an error of one unit in the last place on a GPU (CUDA C++ Programming Guide,
// mathematical functions) and on the host, which is two roundings; a sigmoid adds a sum and a quotient, and
// silu a product. Both sides together, of |x| below 1:
constexpr double kSilu = 2 * 5 * kRounding;
// The slope s (1 + x (1 - s)), of |x| below `most`: on both sides the sigmoid and five more roundings, of
// terms below 1 + most.
constexpr double slope_error(double most) { return 2 * (4 + 5) * (1 + most) * kRounding; }
constexpr double kSlope = 1.1;  // of silu, at most

// ---- the convolution ----

// Weights are below 1/4. So z, a sum of multiples of 2^-14 below 1 + taps / 4, is exact in f32.
constexpr double kWeight = 0.25;
// Eps bounds what heads are multiplied with by 2.
constexpr double kFactor = 2;

// A convolution over drawn chains, and its operands.
struct ConvolutionDraw {
  ConvolutionRule rule;
  RowRun run;
  std::vector<std::int64_t> widths;  // of q, k and v, or of y
  std::int64_t columns = 0, rows = 0, halo_rows = 0;
  bool has_bias = coin();
  RowKernel kernel;

  explicit ConvolutionDraw(RowOperation operation) {
    rule.taps = any_of<std::int64_t>({1, 2, 3, 4, 4, 4, 5, 8}), rule.sequences = pick<std::int64_t>(1, 2);
    rule.eps = 1 / (kFactor * kFactor), rule.plain = coin();
    if (pick(0, 2) == 0) {
      widths = {any_of<std::int64_t>({1, 5, 8, 64, 72, 136})};
    } else if (coin()) {
      rule.normalized = any_of<std::int64_t>({1, 3, 8, 16, 24, 40, 128, 256});
      for (int part = 0; part < 2; ++part)
        widths.push_back(rule.normalized * pick<std::int64_t>(1, rule.normalized > 40 ? 1 : 3));
    } else {
      for (int part = 0; part < 2; ++part) widths.push_back(any_of<std::int64_t>({0, 1, 8, 16, 72, 136}));
    }
    if (widths.size() == 2) widths.push_back(any_of<std::int64_t>({1, 5, 8, 16, 64, 72}));
    for (const std::int64_t width : widths) columns += width;
    draw_runs();
    kernel.operation = operation, kernel.rule = rule;
    kernel.reads = {run.read({rows, columns}), run.read({columns * rule.taps}, kWeight)};
    if (has_bias) kernel.reads.push_back(run.read({columns}));
    if (halo_rows > 0) kernel.reads.push_back(run.read({halo_rows, columns}));
  }

  // Chains of up to three runs of x or of the halo, of which many are shorter than the taps. In x they lie
  // in their order or the other way round.
  void draw_runs() {
    for (int chains = pick(0, 4); chains > 0; --chains) {
      for (int part = pick(0, 2), first = part; part >= 0; --part)
        rule.runs.push_back({0, any_of<std::int64_t>({1, 1, 2, 3, 5, 33}), pick(0, 2) == 0, part == first});
    }
    // Longer than the tiles of blocks.
    if (!rule.runs.empty() && pick(0, 3) == 0) rule.runs.back().rows = 150;
    if (coin()) {
      for (ConvolvedRun& its : rule.runs) place(its);
    } else {
      for (std::size_t i = rule.runs.size(); i-- > 0;) place(rule.runs[i]);
    }
    rows *= rule.sequences;
  }
  void place(ConvolvedRun& its) {
    its.first = its.of_halo ? halo_rows : rows;
    its.of_halo ? halo_rows += its.rows* rule.sequences : rows += its.rows;
  }

  bool is_normalized() const { return rule.normalized > 0; }
  double most_z() const { return 1 + kWeight * static_cast<double>(rule.taps); }
  // Both sides' activations differ by this, and their slopes; z itself is the same.
  double value_error() const { return rule.plain ? 0 : kSilu * most_z(); }
  double slopes_error() const { return rule.plain ? 0 : slope_error(most_z()); }
  double head() const { return static_cast<double>(std::max<std::int64_t>(1, rule.normalized)); }
};

TEST(GpuRowConvolution, IsTheHostsWithinTheRoundingOfFunctions) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    ConvolutionDraw draw(RowOperation::short_convolution);
    std::vector<View> parts;
    for (const std::int64_t width : draw.widths) parts.push_back(draw.run.written({draw.rows, width}));
    draw.kernel.writes = parts;
    draw.run.run(draw.kernel);
    RC_ASSERT(draw.run.beyond(parts.back(), draw.value_error()) == "");
    if (parts.size() == 1) return;
    // With the vector a of a head's activations, r = 1 / sqrt(a a + eps), and an error e of each: a r changes
    // by r e, and by a r^3 (a de), of which a r is at most 1 and r (a de) at most sqrt(D) e. The squares of a
    // pack have nine roundings of their sum, of which the root halves the relative error; the root, its
    // factor and the product round, on both sides.
    const double of_heads = kFactor * draw.value_error() * (1 + std::sqrt(draw.head())) + 2 * 8 * kRounding;
    for (const int part : {0, 1})
      RC_ASSERT(draw.run.beyond(parts[idx(part)], draw.is_normalized() ? of_heads : draw.value_error()) ==
                "");
  }));
}

// What gradients of a convolution differ by: those of rows, and those of weights and biases.
struct ConvolutionErrors {
  double rows = 0, weights = 0;
};
ConvolutionErrors errors_of(const ConvolutionDraw& draw) {
  const double d = draw.head(), e = draw.value_error();
  // The gradient g of an activation is that of the output, below 1, or in a head r d - a (d a) r^3, of which
  // r is at most 2, a r at most 1, and r (d a) at most sqrt(D): so g is below 2 (1 + sqrt(D)). An error e of
  // each a changes r by r^2 sqrt(D) e at most, and so g by less than 8 sqrt(D) e + 16 D e. The sum of a
  // pack's products has nine roundings, the others of g are fewer, on both sides.
  const double most = draw.is_normalized() ? kFactor * (1 + std::sqrt(d)) : 1;
  const double g = draw.is_normalized() ? (8 * std::sqrt(d) + 16 * d) * e + 2 * 18 * most * kRounding : 0;
  const double dz = kSlope * g + draw.slopes_error() * most + 2 * kSlope * most * kRounding,
               most_dz = kSlope * most;
  const auto taps = static_cast<double>(draw.rule.taps),
             rows = static_cast<double>(std::max<std::int64_t>(1, draw.rows));
  // Sums of `taps` terms, with a product and a sum each, and what was there; of all rows likewise.
  return {kWeight * taps * dz + (taps + 2) * (kWeight * taps * most_dz + 1) * kRounding,
          rows * dz + (rows + 2) * (rows * most_dz + 1) * kRounding};
}

TEST(GpuRowConvolution, GradientsAreTheHostsWithinTheRoundingOfTheirTerms) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    ConvolutionDraw draw(RowOperation::short_convolution_backward);
    RowRun& run = draw.run;
    for (const std::int64_t width : draw.widths) draw.kernel.reads.push_back(run.read({draw.rows, width}));
    // Results with rows are all written or all added, and so are those of weights, so that they stay in
    // their order.
    std::vector<View>&of_rows = coin() ? draw.kernel.writes : draw.kernel.updates,
    &of_weights = coin() ? draw.kernel.writes : draw.kernel.updates;
    std::vector<View> rows = {run.written({draw.rows, draw.columns})},
                      weights = {run.written({draw.columns * draw.rule.taps})};
    if (draw.halo_rows > 0) rows.push_back(run.written({draw.halo_rows, draw.columns}));
    if (draw.has_bias) weights.push_back(run.written({draw.columns}));
    of_rows.insert(of_rows.end(), rows.begin(), rows.end());
    of_weights.insert(of_weights.end(), weights.begin(), weights.end());
    run.run(draw.kernel);
    const ConvolutionErrors errors = errors_of(draw);
    for (const View& view : rows) RC_ASSERT(run.beyond(view, errors.rows) == "");
    for (const View& view : weights) RC_ASSERT(run.beyond(view, errors.weights) == "");
  }));
}

// More tiles than the blocks of a group have at once: heads of 256 columns and 8 taps leave a tile one row.
TEST(GpuRowConvolution, TakesManyTiles) {
  CP_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kRows = 400, kHead = 256, kTaps = 8;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    RowRun run(dtype);
    ConvolutionRule rule;
    rule.taps = kTaps, rule.normalized = kHead, rule.eps = 64;
    rule.runs = {{0, kRows, false, true}};
    const Shape part = {kRows, kHead}, all = {kRows, 2 * kHead + 8};
    const View x = run.read(all), weights = run.read({all[1] * kTaps}, kWeight), dq = run.read(part),
               dk = run.read(part), dv = run.read({kRows, 8}), dx = run.written(all),
               dw = run.written_statistic({all[1] * kTaps});
    run.run({RowOperation::short_convolution_backward, {x, weights, dq, dk, dv}, {dx}, {dw}, rule});
    // As errors_of(), with r at most 1/8: r d, and a (d a) r^3 of at most r sqrt(D), are g below 1/8 + 2. An
    // error e of each a changes it by r^2 (8 sqrt(D) + 16 D) e / 4 at most.
    constexpr double kZ = 1 + kWeight * kTaps, kMost = 0.125 + 2, kG = (8 * 16 + 16 * 256) * kSilu * kZ / 256;
    constexpr double kDz =
        kSlope * (kG + 2 * 18 * kMost * kRounding) + slope_error(kZ) * kMost + 2 * kSlope * kMost * kRounding;
    EXPECT_EQ(run.beyond(dx, kWeight * kTaps * kDz +
                                 (kTaps + 2) * (kWeight * kTaps * kSlope * kMost + 1) * kRounding),
              "")
        << name(dtype);
    EXPECT_EQ(run.beyond(dw, kRows * kDz + (kRows + 2) * (kRows * kSlope * kMost + 1) * kRounding), "")
        << name(dtype);
  }
}

TEST(GpuRowConvolution, RefusesMoreThanABlockHolds) {
  CP_SKIP_WITHOUT_GPU();
  const auto said = [](std::int64_t taps, std::int64_t head) {
    ConvolutionRule rule;
    rule.taps = taps, rule.normalized = head;
    const View part = dense_view(0, 0, {0, head}), empty = dense_view(0, 0, {0, 2 * head});
    const runtime::CudaMemory memory({}, {});
    return testing::message_of([&] {
      runtime::prepare(RowKernel{RowOperation::short_convolution,
                                 {empty, dense_view(0, 0, {2 * head * taps})},
                                 {part, part, dense_view(0, 0, {0, 0})},
                                 {},
                                 rule},
                       memory);
    });
  };
  EXPECT_EQ(
      said(9, 8),
      "a short convolution of 9 taps that normalizes heads of 8 columns: the GPU takes at most 8 taps, and "
      "256 columns of a head");
  EXPECT_EQ(
      said(4, 512),
      "a short convolution of 4 taps that normalizes heads of 512 columns: the GPU takes at most 8 taps, "
      "and 256 columns of a head");
}

// ---- decay and beta ----

// Numbers are below 1: exp(A_log) below e, and softplus, of sums below 2, below ln(1 + exp(2)).
constexpr double kRate = 2.72, kStep = 2.13;
// On both sides exp, log1p and exp again have two roundings each, with two sums and a product.
constexpr double kDecays = 2 * (3 * 2 + 3) * kRate * kStep * kRounding;
// d_step = (d_decay rate + d_beta) sigmoid: a rate has two roundings, a sigmoid four, and there are three
// more.
constexpr double kDStep = 2 * (2 + 4 + 3) * (kRate + 1) * kRounding;

struct DecayDraw {
  RowRun run;
  std::int64_t rows = RowRun::any_rows(), heads = any_of<std::int64_t>({1, 3, 4, 8, 24, 40, 136, 260});
  std::int64_t numbers = coin() ? 2 * heads : heads;
};

TEST(GpuRowDecay, IsTheHostsWithinTheRoundingOfFunctions) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    DecayDraw draw;
    RowRun& run = draw.run;
    const View numbers = run.read({draw.rows, draw.numbers}), of_heads = run.read({2 * draw.heads}),
               log_decay = run.written_statistic({draw.rows, draw.heads}),
               beta = run.written_statistic({draw.rows, draw.heads});
    run.run({RowOperation::decay_and_beta, {numbers, of_heads}, {log_decay, beta}, {}, {}});
    RC_ASSERT(run.beyond(log_decay, kDecays) == "");
    RC_ASSERT(run.beyond(beta, kDecays) == "");
  }));
}

// `rows`, and how they are added up: a term of A_log has the roundings of a decay, and its gradient's one. A
// thread, a block and the sum of blocks round in f32, and four blocks are added up in f32.
double of_heads_error(std::int64_t rows) {
  return static_cast<double>(rows) * (kDecays + (1 + 3 + 4) * kRate * kStep * kRounding) + kRounding;
}

TEST(GpuRowDecay, GradientsAreTheHostsWithinTheRoundingOfTheirTerms) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    DecayDraw draw;
    RowRun& run = draw.run;
    RowKernel kernel;
    kernel.operation = RowOperation::decay_and_beta_backward;
    const Shape of_rows = {draw.rows, draw.heads};
    kernel.reads = {run.read({draw.rows, draw.numbers}), run.read({2 * draw.heads}), run.statistic(of_rows),
                    run.statistic(of_rows)};
    const View d_numbers = run.written({draw.rows, draw.numbers}), d_of_heads = run.written({2 * draw.heads});
    run.give(kernel, d_numbers), run.give(kernel, d_of_heads);
    run.run(kernel);
    // The sum with what was there rounds, too.
    RC_ASSERT(run.beyond(d_numbers, kDStep + 2 * (kRate + 2) * kRounding) == "");
    RC_ASSERT(run.beyond(d_of_heads, of_heads_error(draw.rows)) == "");
  }));
}

// More rows than all blocks have at once.
TEST(GpuRowDecay, AddsUpManyRows) {
  CP_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kRows = 2200, kHeads = 33;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    RowRun run(dtype);
    const View numbers = run.read({kRows, 2 * kHeads}), of_heads = run.read({2 * kHeads}),
               d_decay = run.statistic({kRows, kHeads}), d_beta = run.statistic({kRows, kHeads}),
               d_numbers = run.written({kRows, 2 * kHeads}), d_of_heads = run.written_statistic({2 * kHeads});
    run.run({RowOperation::decay_and_beta_backward,
             {numbers, of_heads, d_decay, d_beta},
             {d_numbers},
             {d_of_heads},
             {}});
    EXPECT_EQ(run.beyond(d_numbers, kDStep), "") << name(dtype);
    EXPECT_EQ(run.beyond(d_of_heads, of_heads_error(kRows)), "") << name(dtype);
  }
}

// ---- norm and gates ----

// Eps bounds r by 2. What is normalized, u, is x, below 1; or (x + skip v) silu(gate), below 2, of which
// silu rounds, and the product.
constexpr double kRoot = 2;
constexpr double kSkipped = 2 * (kSilu + 2 * kRounding);

struct GatedNormErrors {
  double y = 0, dx = 0, d_gates = 0, d_v = 0, term = 0, skip_term = 0;
};
GatedNormErrors gated_norm_errors(bool skips) {
  // An error e of each u changes r by r^2 e at most: r^3 (u de) / width, of which r |u| / sqrt(width) is at
  // most 1. The squares of a pack have nine roundings, of which the root halves the relative error. With it,
  // the root's own one and three products, y = u r weight (silu(gate)) has nine roundings.
  const double e = skips ? kSkipped : 0, u = skips ? 2 : 1, r = kRoot;
  GatedNormErrors errors;
  errors.y = (r + r * r * u) * e + (skips ? 0 : kSilu * r) + 2 * 9 * u * r * kRounding;
  // du = r G - u T r^3 / width, with G = dy weight (silu(gate)) below 1, and T = G u, of which T r / width is
  // at most 1: so that du is at most r + r^2 u. An error g of each G changes that by as much g. One of u
  // changes r by r^2 e, T r^3 / width by r^3 e and by 3 r^3 e, u itself by e.
  const double g = skips ? 0 : kSilu, du = r + r * r * u;
  const double du_error = du * g + (r * r + 4 * r * r * r * u + r * r) * e + 2 * (9 + 9) * du * kRounding;
  if (skips) {
    errors.dx = du_error + kSilu * du;
    errors.d_gates = 2 * kSlope * du_error + 2 * du * slope_error(1) + 2 * 2 * 2 * kSlope * du * kRounding;
    errors.d_v = errors.dx + 2 * 2 * du * kRounding;
    errors.skip_term = errors.d_v;
  } else {
    errors.dx = du_error;
    errors.d_gates = errors.y * kSlope + slope_error(1) * r * u;
  }
  errors.term = errors.y + 2 * kRounding * u * r;
  // Of what was there and the sum.
  for (double* const error : {&errors.dx, &errors.d_gates, &errors.d_v})
    *error += 2 * (2 * kSlope * du + 1) * kRounding;
  return errors;
}
// Of so many terms of `rows` rows, each below `most`. In f32 are added up those of a pack, of a thread's
// rows, of a block's threads, and of four blocks; and what was there.
double sum_error(std::int64_t rows, std::int64_t count, double term, double most) {
  const auto n = static_cast<double>(count), sums = static_cast<double>(8 + rows + 256 + 4);
  return n * term + (sums * n * most + 1) * kRounding;
}

struct GatedNormDraw {
  GatedNormRule rule;
  RowRun run;
  std::int64_t rows = RowRun::any_rows(), columns = 0, weights = 0, heads = 0;  // heads: 0 without a skip
  RowKernel kernel;

  explicit GatedNormDraw(RowOperation operation) {
    rule.eps = 1 / (kRoot * kRoot);
    rule.width = any_of<std::int64_t>({1, 5, 8, 16, 24, 128, 257, 1160});
    const std::int64_t groups = pick<std::int64_t>(1, rule.width > 128 ? 2 : 4);
    columns = groups * rule.width;
    // One weight for each group, as for heads; or one for all; or for parts that groups do not have.
    weights = any_of<std::int64_t>({rule.width, columns, columns % 3 == 0 ? columns / 3 : rule.width});
    if (coin()) heads = any_of<std::int64_t>({1, groups, columns % 4 == 0 ? columns / 4 : columns});
    kernel.operation = operation, kernel.rule = rule;
    const Shape all = {rows, columns};
    if (operation == RowOperation::gated_norm_backward) kernel.reads.push_back(run.read(all));
    kernel.reads.push_back(run.read(all)), kernel.reads.push_back(run.read(all));
    if (heads > 0) kernel.reads.push_back(run.read(all));
    kernel.reads.push_back(run.read({weights}));
    if (heads > 0) kernel.reads.push_back(run.read({heads}));
  }
};

TEST(GpuRowGatedNorm, IsTheHostsWithinTheRoundingOfFunctions) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    GatedNormDraw draw(RowOperation::gated_norm);
    const View y = draw.run.written({draw.rows, draw.columns});
    draw.kernel.writes = {y};
    draw.run.run(draw.kernel);
    RC_ASSERT(draw.run.beyond(y, gated_norm_errors(draw.heads > 0).y) == "");
  }));
}

TEST(GpuRowGatedNorm, GradientsAreTheHostsWithinTheRoundingOfTheirTerms) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    GatedNormDraw draw(RowOperation::gated_norm_backward);
    RowRun& run = draw.run;
    const bool skips = draw.heads > 0;
    std::vector<View>&of_rows = coin() ? draw.kernel.writes : draw.kernel.updates,
    &of_weights = coin() ? draw.kernel.writes : draw.kernel.updates;
    const Shape all = {draw.rows, draw.columns};
    std::vector<View> rows = {run.written(all), run.written(all)}, weights = {run.written({draw.weights})};
    if (skips) rows.push_back(run.written(all)), weights.push_back(run.written({draw.heads}));
    of_rows.insert(of_rows.end(), rows.begin(), rows.end());
    of_weights.insert(of_weights.end(), weights.begin(), weights.end());
    run.run(draw.kernel);
    const GatedNormErrors errors = gated_norm_errors(skips);
    RC_ASSERT(run.beyond(rows[0], errors.dx) == "");
    RC_ASSERT(run.beyond(rows[1], errors.d_gates) == "");
    const std::int64_t terms = draw.rows * draw.columns / draw.weights;
    RC_ASSERT(run.beyond(weights[0], sum_error(draw.rows, terms, errors.term, skips ? 4 : 2)) == "");
    if (!skips) return;
    RC_ASSERT(run.beyond(rows[2], errors.d_v) == "");
    RC_ASSERT(run.beyond(weights[1], sum_error(draw.rows, draw.rows * draw.columns / draw.heads,
                                               errors.skip_term, 10)) == "");
  }));
}

// Longer rows than the registers of a block keep, and more of them than its group's blocks have at once.
TEST(GpuRowGatedNorm, TakesLongRowsAndManyOfThem) {
  CP_SKIP_WITHOUT_GPU();
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 8808}, {5, 4808}, {300, 1031}}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      RowRun run(dtype);
      GatedNormRule rule;
      rule.width = columns, rule.eps = 1 / (kRoot * kRoot);
      const Shape all = {rows, columns};
      const std::int64_t heads = columns % 8 == 0 ? columns / 8 : columns;
      const View dy = run.read(all), x = run.read(all), gates = run.read(all), v = run.read(all),
                 weight = run.read({columns}), skip = run.read({heads}), dx = run.written(all),
                 d_gates = run.written(all), d_v = run.written(all), dw = run.written_statistic({columns}),
                 d_skip = run.written_statistic({heads});
      run.run({RowOperation::gated_norm_backward,
               {dy, x, gates, v, weight, skip},
               {dx, d_gates, d_v},
               {dw, d_skip},
               rule});
      const GatedNormErrors errors = gated_norm_errors(true);
      EXPECT_EQ(run.beyond(dx, errors.dx), "") << rows << " rows of " << name(dtype);
      EXPECT_EQ(run.beyond(d_gates, errors.d_gates), "") << rows << " rows of " << name(dtype);
      EXPECT_EQ(run.beyond(d_v, errors.d_v), "") << rows << " rows of " << name(dtype);
      EXPECT_EQ(run.beyond(dw, sum_error(rows, rows, errors.term, 4)), "")
          << rows << " rows of " << name(dtype);
      EXPECT_EQ(run.beyond(d_skip, sum_error(rows, rows * columns / heads, errors.skip_term, 10)), "")
          << rows << " rows of " << name(dtype);
    }
  }
}

}  // namespace
}  // namespace cp
