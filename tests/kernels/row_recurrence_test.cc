// The kernels of recurrent layers' rows against definitions in f64, and gradients against central
// differences.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/row_values.h"

namespace cp::testing {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

// The row before row `row` of a run: the run's own, or the last one of the run before; false where it begins.
bool step_back(const std::vector<ConvolvedRun>& runs, std::size_t& run, std::int64_t& row) {
  if (row > 0) return --row, true;
  if (runs[run].begins) return false;
  row = runs[--run].rows - 1;
  return true;
}

struct ConvolvedRows {
  ConvolutionRule rule;
  std::int64_t rows, halo_rows, q, k, v;  // rows and halo_rows: of all sequences
  bool alone = false;                     // one output has the columns of all three
  std::int64_t columns() const { return q + k + v; }
  // q, k and v side by side, of x, the halo, the weights and the bias one behind the other.
  Values operator()(const Values& all) const {
    const std::int64_t c = columns();
    const Values x = part(all, 0, idx(rows * c)), halo = part(all, x.size(), idx(halo_rows * c)),
                 w = part(all, x.size() + halo.size(), idx(c * rule.taps)),
                 bias = part(all, all.size() - idx(c), idx(c));
    Values out(x.size());
    for (std::int64_t sequence = 0; sequence < rule.sequences; ++sequence) {
      const auto element = [&](const ConvolvedRun& run, std::int64_t row, std::int64_t column) {
        const std::int64_t first = run.first + sequence * (run.of_halo ? run.rows : rows / rule.sequences);
        return (run.of_halo ? halo : x)[idx((first + row) * c + column)];
      };
      for (std::size_t run = 0; run < rule.runs.size(); ++run) {
        if (rule.runs[run].of_halo) continue;
        for (std::int64_t row = 0; row < rule.runs[run].rows; ++row) {
          double* const to = &out[idx((rule.runs[run].first + sequence * (rows / rule.sequences) + row) * c)];
          for (std::int64_t column = 0; column < c; ++column) {
            double z = bias[idx(column)];
            std::size_t at = run;
            std::int64_t seen = row;
            for (std::int64_t tap = rule.taps - 1; tap >= 0; --tap) {
              z += w[idx(column * rule.taps + tap)] * element(rule.runs[at], seen, column);
              if (!step_back(rule.runs, at, seen)) break;
            }
            to[column] = rule.plain ? z : silu(z);
          }
          for (std::int64_t head = 0; rule.normalized > 0 && head < q + k; head += rule.normalized) {
            double squares = rule.eps;
            for (std::int64_t i = head; i < head + rule.normalized; ++i) squares += to[i] * to[i];
            for (std::int64_t i = head; i < head + rule.normalized; ++i) to[i] /= std::sqrt(squares);
          }
        }
      }
    }
    return out;
  }
};

std::vector<ConvolvedRows> convolved_cases() {
  const auto own = [](std::int64_t first, std::int64_t rows, bool begins) {
    return ConvolvedRun{first, rows, false, begins};
  };
  const auto halo = [](std::int64_t first, std::int64_t rows, bool begins) {
    return ConvolvedRun{first, rows, true, begins};
  };
  const std::vector<ConvolvedRows> runs = {
      {{3, 1, {own(0, 5, true)}, 0, 1e-6}, 5, 0, 2, 2, 3},
      {{1, 2, {own(0, 3, true)}, 2, 1e-6}, 6, 0, 2, 4, 1},
      // A rank's two chunks: the first goes on from a halo, has a document's begin inside, and the second's
      // halo came from two ranks.
      {{4,
        2,
        {halo(0, 1, true), own(0, 3, false), own(3, 2, true), halo(2, 2, true), halo(6, 1, false),
         own(5, 2, false)},
        2,
        1e-3},
       14,
       8,
       4,
       4,
       3},
      // Fewer rows than taps.
      {{5, 1, {own(2, 1, true), own(0, 2, true)}, 0, 0}, 3, 0, 1, 1, 2}};
  std::vector<ConvolvedRows> cases;
  for (const bool plain : {false, true}) {
    for (const bool alone : {false, true}) {
      for (ConvolvedRows of : runs) {
        of.rule.plain = plain, of.alone = alone;
        if (alone) of.rule.normalized = 0;
        cases.push_back(of);
      }
    }
  }
  return cases;
}

TEST(RowRecurrence, ConvolutionsAreThoseOfTheDefinition) {
  for (const DType dtype : kFloating) {
    for (const ConvolvedRows& of : convolved_cases()) {
      const std::int64_t c = of.columns(), halo_rows = of.halo_rows;
      const Values x = any_values(of.rows * c, dtype), halo = any_values(halo_rows * c, dtype, 2),
                   w = any_values(c * of.rule.taps, dtype, 3), bias = any_values(c, dtype, 4),
                   d = any_values(of.rows * c, dtype, 5), all = joined({x, halo, w, bias});
      KernelMemory memory;
      const BufferId of_x = memory.add(dtype, x), of_halo = memory.add(dtype, halo),
                     of_w = memory.add(dtype, w), of_bias = memory.add(dtype, bias),
                     out = memory.add(dtype, nothing(of.rows * c)), of_d = memory.add(dtype, d),
                     dx = memory.add(dtype, nothing(of.rows * c)),
                     d_halo = memory.add(dtype, nothing(halo_rows * c)),
                     dw = memory.add(DType::f32, Values(w.size(), 0.5)),
                     d_bias = memory.add(DType::f32, Values(bias.size(), 0.5));
      const auto outputs = [&](BufferId buffer) {
        const View rows = matrix(buffer, of.rows, c);
        std::vector<View> views;
        if (of.alone) return std::vector<View>{rows};
        for (const auto& [first, count] :
             {std::pair{std::int64_t{0}, of.q}, {of.q, of.k}, {of.q + of.k, of.v}})
          views.push_back(View{rows.buffer, first, {of.rows, count}, {c, 1}, {}});
        return views;
      };
      std::vector<View> reads{matrix(of_x, of.rows, c), flat_view(of_w, 0, c * of.rule.taps),
                              flat_view(of_bias, 0, c)};
      if (halo_rows > 0) reads.push_back(matrix(of_halo, halo_rows, c));
      memory.run(RowKernel{RowOperation::short_convolution, reads, outputs(out), {}, of.rule});
      expect_near(memory.values(out), of(all), dtype, "q, k and v");
      for (const View& view : outputs(of_d)) reads.push_back(view);
      std::vector<View> writes{matrix(dx, of.rows, c)};
      if (halo_rows > 0) writes.push_back(matrix(d_halo, halo_rows, c));
      memory.run(RowKernel{RowOperation::short_convolution_backward,
                           reads,
                           writes,
                           {flat_view(dw, 0, c * of.rule.taps), flat_view(d_bias, 0, c)},
                           of.rule});
      const Values expected = differences(of, all, d);
      expect_gradient(memory.values(dx), part(expected, 0, x.size()), dtype, "dx");
      if (halo_rows > 0)
        expect_gradient(memory.values(d_halo), part(expected, x.size(), halo.size()), dtype, "d halo");
      Values learnt = part(expected, x.size() + halo.size(), w.size() + bias.size());
      for (double& value : learnt) value += 0.5;
      expect_gradient(joined({memory.values(dw), memory.values(d_bias)}), learnt, DType::f32,
                      "d weights and d bias, added");
    }
  }
}

// y = C conv(B x) of LFM2, whose rows have B, x, C and what is convolved side by side.
TEST(RowRecurrence, GatedConvolutionsAreProductsAroundAPlainOne) {
  constexpr std::int64_t kRows = 7, kColumns = 3, kTaps = 3;
  const ConvolutionRule rule{kTaps, 1, {{0, kRows, false, true}}, 0, 1e-6, true};
  const ActivationRule gate{ActivationFunction::identity, true};
  const Values in = any_values(3 * kRows * kColumns), w = any_values(kColumns * kTaps, DType::f32, 2),
               d = any_values(kRows * kColumns, DType::f32, 3);
  const Function f = [&](const Values& of) {
    const auto element = [&](std::int64_t row, std::int64_t which, std::int64_t column) {
      return of[idx((row * 3 + which) * kColumns + column)];
    };
    Values y;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        double z = 0;
        for (std::int64_t tap = 0; tap < kTaps; ++tap) {
          const std::int64_t seen = row - (kTaps - 1) + tap;
          if (seen >= 0)
            z += of[in.size() + idx(column * kTaps + tap)] * element(seen, 0, column) *
                 element(seen, 1, column);
        }
        y.push_back(element(row, 2, column) * z);
      }
    }
    return y;
  };
  Values wide;  // with a column of what is convolved, which is not there yet
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (const Values& each : {part(in, idx(3 * row * kColumns), idx(3 * kColumns)), nothing(kColumns)})
      wide.insert(wide.end(), each.begin(), each.end());
  }
  KernelMemory memory;
  const BufferId all = memory.add(DType::f32, wide), of_w = memory.add(DType::f32, w),
                 product = memory.add(DType::f32, nothing(kRows * kColumns)),
                 y = memory.add(DType::f32, nothing(kRows * kColumns)), of_d = memory.add(DType::f32, d),
                 d_all = memory.add(DType::f32, nothing(4 * kRows * kColumns)),
                 d_product = memory.add(DType::f32, nothing(kRows * kColumns)),
                 dw = memory.add(DType::f32, nothing(kColumns * kTaps));
  const auto columns = [&](BufferId buffer, std::int64_t first, std::int64_t count) {
    return View{buffer, first * kColumns, {kRows, count * kColumns}, {4 * kColumns, 1}, {}};
  };
  const auto rows = [&](BufferId buffer) { return matrix(buffer, kRows, kColumns); };
  const View weights = flat_view(of_w, 0, kColumns * kTaps), d_weights = flat_view(dw, 0, kColumns * kTaps);
  memory.run(RowKernel{RowOperation::gated_activation, {columns(all, 0, 2)}, {rows(product)}, {}, gate});
  memory.run(
      RowKernel{RowOperation::short_convolution, {rows(product), weights}, {columns(all, 3, 1)}, {}, rule});
  memory.run(RowKernel{RowOperation::gated_activation, {columns(all, 2, 2)}, {rows(y)}, {}, gate});
  expect_near(memory.values(y), f(joined({in, w})), DType::f32, "y");
  memory.run(RowKernel{RowOperation::gated_activation_backward,
                       {columns(all, 2, 2), rows(of_d)},
                       {columns(d_all, 2, 2)},
                       {},
                       gate});
  memory.run(RowKernel{RowOperation::short_convolution_backward,
                       {rows(product), weights, columns(d_all, 3, 1)},
                       {rows(d_product), d_weights},
                       {},
                       rule});
  memory.run(RowKernel{RowOperation::gated_activation_backward,
                       {columns(all, 0, 2), rows(d_product)},
                       {columns(d_all, 0, 2)},
                       {},
                       gate});
  const Values expected = differences(f, joined({in, w}), d), got = memory.values(d_all);
  for (std::int64_t row = 0; row < kRows; ++row)
    expect_gradient(part(got, idx(4 * row * kColumns), idx(3 * kColumns)),
                    part(expected, idx(3 * row * kColumns), idx(3 * kColumns)), DType::f32,
                    "dB, dx and dC of a row");
  expect_gradient(memory.values(dw), part(expected, in.size(), w.size()), DType::f32, "d weights");
}

// beta, then the logarithm of the decay; a head's numbers are b and a, or a alone.
Values decays(std::int64_t heads, bool has_beta, const Values& numbers, const Values& of_heads) {
  Values decay, beta;
  const std::int64_t columns = has_beta ? 2 * heads : heads;
  for (std::size_t row = 0; row < numbers.size() / idx(columns); ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const double* const at = &numbers[row * idx(columns)];
      const double step = softplus(at[columns - heads + head] + of_heads[idx(heads + head)]);
      decay.push_back(-std::exp(of_heads[idx(head)]) * step);
      beta.push_back(has_beta ? 1 / (1 + std::exp(-at[head])) : step);
    }
  }
  return joined({beta, decay});
}

TEST(RowRecurrence, DecayAndBetaAreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 4, kHeads = 3;
  for (const DType dtype : kFloating) {
    for (const bool has_beta : {false, true}) {
      const std::int64_t columns = has_beta ? 2 * kHeads : kHeads;
      const Values numbers = any_values(kRows * columns, dtype), of_heads = any_values(2 * kHeads, dtype, 2),
                   d = any_values(2 * kRows * kHeads, DType::f32, 3);
      KernelMemory memory;
      const BufferId of_numbers = memory.add(dtype, numbers), of_h = memory.add(dtype, of_heads),
                     out = memory.add(DType::f32, nothing(2 * kRows * kHeads)),
                     of_d = memory.add(DType::f32, d),
                     d_numbers = memory.add(dtype, nothing(kRows * columns)),
                     d_of_heads = memory.add(DType::f32, nothing(2 * kHeads));
      const auto two = [&](BufferId buffer) {  // of beta, and of the decay
        return std::pair{dense_view(buffer, 0, {kRows, kHeads}),
                         dense_view(buffer, kRows * kHeads, {kRows, kHeads})};
      };
      std::vector<View> reads{matrix(of_numbers, kRows, columns), flat_view(of_h, 0, 2 * kHeads)};
      const auto [beta, decay] = two(out);
      memory.run(RowKernel{RowOperation::decay_and_beta, reads, {decay, beta}, {}});
      expect_near(memory.values(out), decays(kHeads, has_beta, numbers, of_heads), DType::f32, "decay");
      const auto [d_beta, d_decay] = two(of_d);
      reads.push_back(d_decay), reads.push_back(d_beta);
      memory.run(RowKernel{RowOperation::decay_and_beta_backward,
                           reads,
                           {matrix(d_numbers, kRows, columns), flat_view(d_of_heads, 0, 2 * kHeads)},
                           {}});
      const Values expected = differences(
          [&](const Values& all) {
            return decays(kHeads, has_beta, part(all, 0, numbers.size()),
                          part(all, numbers.size(), of_heads.size()));
          },
          joined({numbers, of_heads}), d);
      expect_gradient(memory.values(d_numbers), part(expected, 0, numbers.size()), dtype, "d numbers");
      expect_gradient(memory.values(d_of_heads), part(expected, numbers.size(), of_heads.size()), DType::f32,
                      "d of heads");
    }
  }
}

// Where softplus is its argument, and where it is nothing, exp does not overflow.
TEST(RowRecurrence, StepsOfLargeNumbersAreFinite) {
  KernelMemory memory;
  const BufferId numbers = memory.add(DType::f32, {500, -500}), of_heads = memory.add(DType::f32, {0, 0}),
                 out = memory.add(DType::f32, nothing(4));
  memory.run(RowKernel{RowOperation::decay_and_beta,
                       {dense_view(numbers, 0, {2, 1}), flat_view(of_heads, 0, 2)},
                       {dense_view(out, 0, {2, 1}), dense_view(out, 2, {2, 1})},
                       {}});
  EXPECT_EQ(memory.values(out), (Values{-500, 0, 500, 0}));
}

struct GatedCase {
  GatedNormRule rule;
  std::int64_t columns = 0, weights = 0, heads = 0;  // heads: 0 without a skip
  // Of x, gates and v, the weight, and the skip, one behind the other.
  Values operator()(const Values& all, std::int64_t rows) const {
    const auto n = idx(rows * columns);
    const Values x = part(all, 0, n), gates = part(all, n, n), v = part(all, 2 * n, n),
                 w = part(all, 3 * n, idx(weights)), skip = part(all, 3 * n + idx(weights), idx(heads));
    Values y(n);
    for (std::size_t first = 0; first < n; first += idx(rule.width)) {
      double mean = 0;
      Values u;
      for (std::size_t i = first; i < first + idx(rule.width); ++i) {
        const std::size_t column = i % idx(columns);
        u.push_back(heads == 0 ? x[i]
                               : (x[i] + skip[column * idx(heads) / idx(columns)] * v[i]) * silu(gates[i]));
        mean += u.back() * u.back() / static_cast<double>(rule.width);
      }
      for (std::size_t i = first; i < first + idx(rule.width); ++i)
        y[i] = u[i - first] / std::sqrt(mean + rule.eps) * w[i % idx(columns) % idx(weights)] *
               (heads == 0 ? silu(gates[i]) : 1);
    }
    return y;
  }
};

TEST(RowRecurrence, GatedNormsAreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 3;
  const GatedCase of_heads{{4, 1e-6}, 12, 4, 0}, of_groups{{6, 1e-2}, 12, 12, 4}, of_all{{8, 1e-5}, 8, 8, 2};
  for (const DType dtype : kFloating) {
    for (const GatedCase& of : {of_heads, of_groups, of_all}) {
      const std::int64_t c = of.columns;
      const bool skips = of.heads > 0;
      const Values all = joined({any_values(3 * kRows * c, dtype), any_values(of.weights, dtype, 2),
                                 any_values(of.heads, dtype, 3)}),
                   dy = any_values(kRows * c, dtype, 4);
      KernelMemory memory;
      const BufferId buffer = memory.add(dtype, all), y = memory.add(dtype, nothing(kRows * c)),
                     of_dy = memory.add(dtype, dy),
                     d = memory.add(dtype, nothing((skips ? 3 : 2) * kRows * c)),
                     dw = memory.add(DType::f32, nothing(of.weights + of.heads));
      const auto rows = [&](BufferId from, std::int64_t number) {
        return dense_view(from, number * kRows * c, {kRows, c});
      };
      std::vector<View> reads{rows(buffer, 0), rows(buffer, 1)}, writes{rows(d, 0), rows(d, 1)};
      if (skips) reads.push_back(rows(buffer, 2)), writes.push_back(rows(d, 2));
      reads.push_back(flat_view(buffer, 3 * kRows * c, of.weights));
      writes.push_back(flat_view(dw, 0, of.weights));
      if (skips) {
        reads.push_back(flat_view(buffer, 3 * kRows * c + of.weights, of.heads));
        writes.push_back(flat_view(dw, of.weights, of.heads));
      }
      memory.run(RowKernel{RowOperation::gated_norm, reads, {matrix(y, kRows, c)}, {}, of.rule});
      expect_near(memory.values(y), of(all, kRows), dtype, "y");
      reads.insert(reads.begin(), matrix(of_dy, kRows, c));
      memory.run(RowKernel{RowOperation::gated_norm_backward, reads, writes, {}, of.rule});
      const Values expected = differences([&](const Values& values) { return of(values, kRows); }, all, dy);
      const std::size_t of_rows = memory.values(d).size(), three = idx(3 * kRows * c);
      expect_gradient(memory.values(d), part(expected, 0, of_rows), dtype, "dx, d gates and dv");
      expect_gradient(memory.values(dw), part(expected, three, expected.size() - three), DType::f32,
                      "d weight and d skip");
    }
  }
}

}  // namespace
}  // namespace cp::testing
