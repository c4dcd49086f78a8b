// The kernels of rows against definitions in f64 that are written apart from them; gradients against central
// differences of these.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "tests/kernels/row_values.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

// ---- norms ----

// y of x, [rows, columns], with the weights one behind the other.
Values normalized(const NormRule& rule, std::int64_t columns, const Values& x, const Values& weights) {
  Values y = x;
  for (std::size_t row = 0; row < x.size() / idx(columns); ++row) {
    for (std::int64_t group = 0; group < rule.groups + rule.more_groups; ++group) {
      const bool more = group >= rule.groups;
      const std::int64_t width = more ? rule.more_width : rule.width,
                         first =
                             more ? rule.groups * rule.width + (group - rule.groups) * width : group * width;
      double mean = 0, center = 0;
      for (std::int64_t i = 0; rule.centered && i < width; ++i)
        center += x[row * idx(columns) + idx(first + i)] / static_cast<double>(width);
      for (std::int64_t i = 0; i < width; ++i) {
        double& value = y[row * idx(columns) + idx(first + i)];
        value -= center;
        mean += std::pow(value, 2) / static_cast<double>(width);
      }
      for (std::int64_t i = 0; i < width; ++i) {
        double& value = y[row * idx(columns) + idx(first + i)];
        const double factor =
            rule.unweighted ? 1 : (rule.unit_offset ? 1 : 0) + weights[idx((more ? rule.width : 0) + i)];
        value *= factor / std::sqrt(mean + rule.eps);
      }
    }
  }
  return y;
}

struct NormCase {
  NormRule rule;
  std::int64_t columns = 0;
};
std::vector<NormCase> norm_cases() {
  return {{{1e-5, false, 1, 7, 0, 0, 1}, 7},
          {{1e-2, true, 1, 6, 0, 0, 1}, 6},
          {{1e-6, false, 1, 5, 0, 0, 1}, 8},   // a latent row, and what stands behind it
          {{1e-6, false, 3, 4, 2, 4, 1}, 20},  // heads of q and of k
          {{1e-6, true, 1, 9, 1, 3, 1}, 12},   // all heads of each
          {{1e-6, false, 3, 4, 2, 4, 1, true}, 20},
          {{1e-2, false, 1, 7, 0, 0, 1, false, true}, 9},  // LayerNorm
          {{1e-2, true, 3, 4, 2, 3, 1, false, true}, 18},
          {{1e-2, false, 2, 4, 1, 3, 1, true, true}, 11}};
}

TEST(RowNorms, AreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 3;
  for (const DType dtype : kFloating) {
    for (const NormCase& each : norm_cases()) {
      const NormRule& rule = each.rule;
      const std::int64_t columns = each.columns;
      const std::int64_t widths = rule.width + rule.more_width;
      const Values x = any_values(kRows * columns, dtype), w = any_values(widths, dtype, 2),
                   dy = any_values(kRows * columns, dtype, 3), before = any_values(kRows * columns, dtype, 4);
      KernelMemory memory;
      const BufferId of_x = memory.add(dtype, x), of_w = memory.add(dtype, w),
                     y = memory.add(dtype, nothing(kRows * columns)), of_dy = memory.add(dtype, dy),
                     dx = memory.add(dtype, before), dw = memory.add(DType::f32, nothing(widths));
      std::vector<View> reads{matrix(of_x, kRows, columns)}, gradients;
      if (!rule.unweighted) {
        reads.push_back(flat_view(of_w, 0, rule.width));
        gradients.push_back(flat_view(dw, 0, rule.width));
      }
      if (rule.weights() > 1) {
        reads.push_back(flat_view(of_w, rule.width, rule.more_width));
        gradients.push_back(flat_view(dw, rule.width, rule.more_width));
      }
      memory.run(RowKernel{RowOperation::rms_norm, reads, {matrix(y, kRows, columns)}, {}, rule});
      expect_near(memory.values(y), normalized(rule, columns, x, w), dtype, "y");
      reads.push_back(matrix(of_dy, kRows, columns));
      memory.run(
          RowKernel{RowOperation::rms_norm_backward, reads, gradients, {matrix(dx, kRows, columns)}, rule});
      const Values all = differences(
          [&](const Values& both) {
            return normalized(rule, columns, part(both, 0, x.size()), part(both, x.size(), w.size()));
          },
          joined({x, w}), dy);
      Values expected = part(all, 0, x.size());
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
      expect_gradient(memory.values(dx), expected, dtype, "dx, added");
      if (!rule.unweighted)
        expect_gradient(memory.values(dw), part(all, x.size(), w.size()), DType::f32, "dw");
    }
  }
}

// Two ranks have half of the heads each, and add up their sums.
TEST(RowNorms, OverSeveralRanksAreThoseOfTheWholeRow) {
  constexpr std::int64_t kRows = 5, kQ = 6, kK = 4;
  const NormRule whole{1e-6, false, 1, 2 * kQ, 1, 2 * kK, 1}, half{1e-6, false, 1, kQ, 1, kK, 2};
  const Values x = any_values(kRows * 2 * (kQ + kK)), w = any_values(2 * (kQ + kK), DType::f32, 2),
               dy = any_values(kRows * 2 * (kQ + kK), DType::f32, 3);
  KernelMemory memory;
  const BufferId of_x = memory.add(DType::f32, x), of_w = memory.add(DType::f32, w),
                 of_dy = memory.add(DType::f32, dy),
                 y = memory.add(DType::f32, nothing(kRows * 2 * (kQ + kK))),
                 dx = memory.add(DType::f32, nothing(kRows * 2 * (kQ + kK))),
                 dw = memory.add(DType::f32, nothing(2 * (kQ + kK))),
                 squares = memory.add(DType::f32, nothing(4 * kRows)),
                 sums = memory.add(DType::f32, nothing(4 * kRows));
  // Columns: q of both ranks, then k of both. A rank's q and k are copied together, as they are there.
  const auto own = [&](BufferId buffer, std::int64_t rank, BufferId to) {
    memory.run(Copy{View{buffer, rank * kQ, {kRows, kQ}, {2 * (kQ + kK), 1}, {}},
                    View{to, 0, {kRows, kQ}, {kQ + kK, 1}, {}}});
    memory.run(Copy{View{buffer, 2 * kQ + rank * kK, {kRows, kK}, {2 * (kQ + kK), 1}, {}},
                    View{to, kQ, {kRows, kK}, {kQ + kK, 1}, {}}});
    return matrix(to, kRows, kQ + kK);
  };
  std::vector<View> rows, gradients, outs, d_outs;
  const auto two = [&](BufferId all, std::vector<View>& views) {
    for (std::int64_t rank = 0; rank < 2; ++rank)
      views.push_back(own(all, rank, memory.add(DType::f32, nothing(kRows * (kQ + kK)))));
  };
  two(of_x, rows), two(of_dy, gradients), two(y, outs), two(dx, d_outs);
  const auto weights = [&](BufferId buffer, std::int64_t rank) {
    return std::vector<View>{flat_view(buffer, rank * kQ, kQ), flat_view(buffer, 2 * kQ + rank * kK, kK)};
  };
  const auto add_up = [&](BufferId buffer) {
    memory.run(
        Accumulate{ReduceOp::sum, flat_view(buffer, 0, 2 * kRows), flat_view(buffer, 2 * kRows, 2 * kRows)});
    memory.run(Copy{flat_view(buffer, 2 * kRows, 2 * kRows), flat_view(buffer, 0, 2 * kRows)});
  };
  const auto statistics = [&](BufferId buffer, std::int64_t rank) {
    return dense_view(buffer, rank * 2 * kRows, {kRows, 2});
  };
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    memory.run(RowKernel{RowOperation::norm_sums, {rows[idx(rank)]}, {statistics(squares, rank)}, {}, half});
    std::vector<View> reads = weights(of_w, rank);
    reads.insert(reads.begin(), rows[idx(rank)]), reads.push_back(gradients[idx(rank)]);
    memory.run(RowKernel{RowOperation::norm_sums_backward, reads, {statistics(sums, rank)}, {}, half});
  }
  add_up(squares), add_up(sums);
  const Values expected = normalized(whole, 2 * (kQ + kK), x, w);
  const Values all = differences(
      [&](const Values& both) {
        return normalized(whole, 2 * (kQ + kK), part(both, 0, x.size()), part(both, x.size(), w.size()));
      },
      joined({x, w}), dy);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    std::vector<View> reads = weights(of_w, rank);
    reads.insert(reads.begin(), rows[idx(rank)]), reads.push_back(statistics(squares, rank));
    memory.run(RowKernel{RowOperation::rms_norm, reads, {outs[idx(rank)]}, {}, half});
    reads.insert(reads.end() - 1, gradients[idx(rank)]), reads.push_back(statistics(sums, rank));
    std::vector<View> writes = weights(dw, rank);
    writes.insert(writes.begin(), d_outs[idx(rank)]);
    memory.run(RowKernel{RowOperation::rms_norm_backward, reads, writes, {}, half});
    const auto of_rank = [&](const Values& whole_rows) {
      Values values;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::size_t begin = idx(row * 2 * (kQ + kK));
        values = joined({values, part(whole_rows, begin + idx(rank * kQ), kQ),
                         part(whole_rows, begin + idx(2 * kQ + rank * kK), kK)});
      }
      return values;
    };
    expect_near(memory.values(outs[idx(rank)].buffer), of_rank(expected), DType::f32, "y of a rank");
    expect_gradient(memory.values(d_outs[idx(rank)].buffer), of_rank(part(all, 0, x.size())), DType::f32,
                    "dx of a rank");
  }
  expect_gradient(memory.values(dw), part(all, x.size(), w.size()), DType::f32, "dw");
}

// ---- rotary ----

// Row p: cosines, then sines, of angles p / (i + 1).
Values table_of(std::int64_t positions, std::int64_t rotated) {
  Values table;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (const bool sines : {false, true}) {
      for (std::int64_t i = 0; i < rotated / 2; ++i) {
        const double angle = static_cast<double>(p) / static_cast<double>(i + 1);
        table.push_back(sines ? std::sin(angle) : std::cos(angle));
      }
    }
  }
  return table;
}

// q and k with heads of 6 columns, the last 4 rotated, of rows 5, 6 and 1 of two sequences.
TEST(RowRotary, TurnsPairsByThePositionOfTheirRow) {
  constexpr std::int64_t kSequences = 2, kRows = 6, kHeads = 2, kDim = 6, kRotated = 4, kWidth = 3 * kDim + 5;
  const std::vector<std::int64_t> positions{5, 6, 1};
  for (const DType dtype : kFloating) {
    for (const bool interleaved : {false, true}) {
      RotaryRule rule;
      rule.sequences = kSequences, rule.positions = {{5, 2, 2, 1}, {1, 1, 1, 1}},
      rule.interleaved = interleaved;
      rule.moves = {{0, 0, kDim, 0, 0, kDim, kHeads, 2, false},
                    {0, 2, kDim, 0, 2, kDim, kHeads, kRotated, true},
                    {0, 12, 0, 1, 0, kDim, 1, 2, false},
                    {0, 14, 0, 1, 2, 0, 1, kRotated, true},
                    {0, 18, 0, 2, 0, 0, 1, 5, false}};
      const Values x = any_values(kRows * kWidth, dtype);
      KernelMemory memory;
      const BufferId in = memory.add(dtype, x), table = memory.add(DType::f32, table_of(7, kRotated)),
                     q = memory.add(dtype, nothing(kRows * 12)), k = memory.add(dtype, nothing(kRows * 6)),
                     v = memory.add(dtype, nothing(kRows * 5));
      // k has its rows in two dimensions, as a cache has them.
      memory.run(RowKernel{RowOperation::rotary,
                           {matrix(in, kRows, kWidth), matrix(table, 7, kRotated)},
                           {matrix(q, kRows, 12), dense_view(k, 0, {kSequences, 3, 6}), matrix(v, kRows, 5)},
                           {},
                           rule});
      Values of_q, of_k, of_v;
      for (std::size_t row = 0; row < kRows; ++row) {
        const Values own = part(x, row * kWidth, kWidth);
        const auto turn = [&](std::size_t first, Values& out) {
          out.push_back(own[first]), out.push_back(own[first + 1]);
          Values turned(kRotated);
          for (std::size_t i = 0; i < kRotated / 2; ++i) {
            const double angle = static_cast<double>(positions[row % 3]) / static_cast<double>(i + 1);
            const std::size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + kRotated / 2;
            const double one = own[first + 2 + a], two = own[first + 2 + b];
            turned[a] = one * std::cos(angle) - two * std::sin(angle);
            turned[b] = one * std::sin(angle) + two * std::cos(angle);
          }
          out.insert(out.end(), turned.begin(), turned.end());
        };
        turn(0, of_q), turn(6, of_q), turn(12, of_k);
        of_v.insert(of_v.end(), own.begin() + 18, own.end());
      }
      expect_near(memory.values(q), of_q, dtype, "q");
      expect_near(memory.values(k), of_k, dtype, "k");
      expect_near(memory.values(v), of_v, dtype, "v");
    }
  }
}

// Of a latent row's expansion: all heads read the one rotated part of the key, whose gradient is the sum of
// theirs. The way back is the transpose: <rotary(x), d> = <x, rotary_backward(d)> for all x and d.
TEST(RowRotary, GradientsGoTheWayBack) {
  constexpr std::int64_t kRows = 4, kHeads = 3;
  RotaryRule rule;
  rule.positions = {{2, 4, 4, 1}};
  rule.moves = {{0, 0, 5, 0, 0, 4, kHeads, 2, false},
                {1, 0, 0, 0, 2, 4, kHeads, 2, true},
                {0, 2, 5, 1, 0, 3, kHeads, 3, false}};
  const Values x = any_values(kRows * 15), shared = any_values(kRows * 2, DType::f32, 2),
               dk = any_values(kRows * 12, DType::f32, 3), dv = any_values(kRows * 9, DType::f32, 4);
  KernelMemory memory;
  const View table = matrix(memory.add(DType::f32, table_of(6, 2)), 6, 2),
             of_x = matrix(memory.add(DType::f32, x), kRows, 15),
             of_shared = matrix(memory.add(DType::f32, shared), kRows, 2),
             k = matrix(memory.add(DType::f32, nothing(kRows * 12)), kRows, 12),
             v = matrix(memory.add(DType::f32, nothing(kRows * 9)), kRows, 9),
             of_dk = matrix(memory.add(DType::f32, dk), kRows, 12),
             of_dv = matrix(memory.add(DType::f32, dv), kRows, 9),
             dx = matrix(memory.add(DType::f32, nothing(kRows * 15)), kRows, 15),
             d_shared = matrix(memory.add(DType::f32, nothing(kRows * 2)), kRows, 2);
  memory.run(RowKernel{RowOperation::rotary, {of_x, of_shared, table}, {k, v}, {}, rule});
  memory.run(RowKernel{RowOperation::rotary_backward, {of_dk, of_dv, table}, {dx, d_shared}, {}, rule});
  const auto dot = [](const Values& a, const Values& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  EXPECT_NEAR(dot(memory.values(k.buffer), dk) + dot(memory.values(v.buffer), dv),
              dot(x, memory.values(dx.buffer)) + dot(shared, memory.values(d_shared.buffer)), 1e-4);
  // The rotated part alone: each head's gradient turned back, added up.
  Values expected;
  for (std::size_t row = 0; row < kRows; ++row) {
    const double angle = static_cast<double>(row + 2);
    double a = 0, b = 0;
    for (std::size_t head = 0; head < kHeads; ++head)
      a += dk[row * 12 + head * 4 + 2], b += dk[row * 12 + head * 4 + 3];
    expected.push_back(a * std::cos(angle) + b * std::sin(angle));
    expected.push_back(b * std::cos(angle) - a * std::sin(angle));
  }
  expect_near(memory.values(d_shared.buffer), expected, DType::f32, "gradient of the shared part");
}

// Queries of positions 0 to 8 and a key beside them: of the first three, and so on, the whole part of (p + 1)
// / 3 is 0, 1, 2 and 3.
TEST(RowRotary, ScalesQueriesByTheirPosition) {
  constexpr std::int64_t kRows = 9, kWidth = 5;
  RotaryRule rule;
  rule.positions = {{0, kRows, kRows, 1}}, rule.temperature = 0.5, rule.floor = 3;
  rule.moves = {{0, 0, 2, 0, 0, 2, 2, 2, false, true}, {0, 4, 0, 1, 0, 0, 1, 1, false, false}};
  for (const DType dtype : kFloating) {
    const Values x = any_values(kRows * kWidth, dtype);
    KernelMemory memory;
    const View of_x = matrix(memory.add(dtype, x), kRows, kWidth),
               table = matrix(memory.add(DType::f32, Values(kRows, 0)), kRows, 0),
               q = matrix(memory.add(dtype, nothing(kRows * 4)), kRows, 4),
               k = matrix(memory.add(dtype, nothing(kRows)), kRows, 1),
               back = matrix(memory.add(dtype, nothing(kRows * kWidth)), kRows, kWidth);
    memory.run(RowKernel{RowOperation::rotary, {of_x, table}, {q, k}, {}, rule});
    const auto scale = [](std::size_t row) {
      return 1 + 0.5 * std::log(1 + std::floor((static_cast<double>(row) + 1) / 3));
    };
    Values of_q, of_k, gradient;
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < 4; ++i) of_q.push_back(scale(row) * x[row * kWidth + i]);
      of_k.push_back(x[row * kWidth + 4]);
    }
    expect_near(memory.values(q.buffer), of_q, dtype, "queries");
    expect_near(memory.values(k.buffer), of_k, dtype, "key");
    memory.run(RowKernel{RowOperation::rotary_backward, {q, k, table}, {back}, {}, rule});
    const Values rounded_q = memory.values(q.buffer);
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < 4; ++i) gradient.push_back(scale(row) * rounded_q[row * 4 + i]);
      gradient.push_back(x[row * kWidth + 4]);
    }
    expect_near(memory.values(back.buffer), gradient, dtype, "gradient");
  }
}

// ---- MLP ----

double activated(ActivationFunction function, double x) {
  switch (function) {
    case ActivationFunction::silu:
      return x / (1 + std::exp(-x));
    case ActivationFunction::gelu:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case ActivationFunction::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case ActivationFunction::relu:
      return std::max(x, 0.0);
    case ActivationFunction::relu2:
      return std::pow(std::max(x, 0.0), 2);
    case ActivationFunction::quick_gelu:
      return x / (1 + std::exp(-1.702 * x));
    case ActivationFunction::identity:
      return x;
  }
  return 0;
}

TEST(RowActivation, IsThatOfTheDefinition) {
  constexpr std::int64_t kRows = 3, kColumns = 5;
  for (const DType dtype : kFloating) {
    for (const auto function :
         {ActivationFunction::silu, ActivationFunction::gelu, ActivationFunction::gelu_tanh,
          ActivationFunction::relu, ActivationFunction::relu2, ActivationFunction::quick_gelu,
          ActivationFunction::identity}) {
      for (const bool gated : {true, false}) {
        for (const bool weighted : {false, true}) {
          const std::int64_t width = gated ? 2 * kColumns : kColumns;
          const Values up = any_values(kRows * width, dtype), weights = any_values(kRows, DType::f32, 2),
                       dy = any_values(kRows * kColumns, dtype, 3);
          const Function f = [&](const Values& in) {
            Values y;
            for (std::size_t row = 0; row < kRows; ++row) {
              for (std::size_t i = 0; i < kColumns; ++i) {
                const double gate = in[row * idx(width) + i],
                             other = gated ? in[row * idx(width) + kColumns + i] : 1;
                y.push_back(activated(function, gate) * other *
                            (weighted ? in[idx(kRows * width) + row] : 1));
              }
            }
            return y;
          };
          KernelMemory memory;
          const BufferId of_up = memory.add(dtype, up), of_weights = memory.add(DType::f32, weights),
                         y = memory.add(dtype, nothing(kRows * kColumns)), of_dy = memory.add(dtype, dy),
                         d_up = memory.add(dtype, nothing(kRows * width)),
                         d_weights = memory.add(DType::f32, nothing(kRows));
          std::vector<View> reads{matrix(of_up, kRows, width)}, writes{matrix(d_up, kRows, width)};
          if (weighted)
            reads.push_back(matrix(of_weights, kRows, 1)), writes.push_back(matrix(d_weights, kRows, 1));
          const ActivationRule rule{function, gated};
          memory.run(
              RowKernel{RowOperation::gated_activation, reads, {matrix(y, kRows, kColumns)}, {}, rule});
          const Values both = joined({up, weights});
          expect_near(memory.values(y), f(both), dtype, "y");
          reads.push_back(matrix(of_dy, kRows, kColumns));
          memory.run(RowKernel{RowOperation::gated_activation_backward, reads, writes, {}, rule});
          const Values expected = differences(f, both, dy);
          expect_gradient(memory.values(d_up), part(expected, 0, up.size()), dtype, "d up");
          if (weighted)
            expect_gradient(memory.values(d_weights), part(expected, up.size(), kRows), DType::f32,
                            "d weights");
        }
      }
    }
  }
}

// With limits that hold for some elements, an offset, and weights of what the function takes.
TEST(RowActivation, LimitsAndWeighsItsInputs) {
  constexpr std::int64_t kRows = 4, kColumns = 6;
  constexpr double kLimit = 0.53125;  // of no element, so that differences have a slope
  for (const DType dtype : kFloating) {
    for (const bool gated : {true, false}) {
      for (const bool weighs_inputs : {false, true}) {
        const ActivationRule rule{ActivationFunction::quick_gelu, gated, kLimit, gated ? 1.0 : 0.0,
                                  weighs_inputs};
        const std::int64_t width = gated ? 2 * kColumns : kColumns;
        const Values up = any_values(kRows * width, dtype), weights = any_values(kRows, DType::f32, 2),
                     dy = any_values(kRows * kColumns, dtype, 3);
        std::int64_t limited = 0;
        const Function f = [&](const Values& in) {
          Values y;
          for (std::size_t row = 0; row < kRows; ++row) {
            const double weight = in[idx(kRows * width) + row], of_inputs = weighs_inputs ? weight : 1;
            for (std::size_t i = 0; i < kColumns; ++i) {
              const double gate = of_inputs * in[row * idx(width) + i],
                           other = gated ? of_inputs * in[row * idx(width) + kColumns + i] : 0;
              limited += gate > kLimit || std::abs(other) > kLimit ? 1 : 0;
              const double factor = gated ? std::clamp(other, -kLimit, kLimit) + 1 : 1;
              y.push_back(activated(rule.function, std::min(gate, kLimit)) * factor *
                          (weighs_inputs ? 1 : weight));
            }
          }
          return y;
        };
        KernelMemory memory;
        const View of_up = matrix(memory.add(dtype, up), kRows, width),
                   of_weights = matrix(memory.add(DType::f32, weights), kRows, 1),
                   y = matrix(memory.add(dtype, nothing(kRows * kColumns)), kRows, kColumns),
                   of_dy = matrix(memory.add(dtype, dy), kRows, kColumns),
                   d_up = matrix(memory.add(dtype, nothing(kRows * width)), kRows, width),
                   d_weights = matrix(memory.add(DType::f32, nothing(kRows)), kRows, 1);
        memory.run(RowKernel{RowOperation::gated_activation, {of_up, of_weights}, {y}, {}, rule});
        memory.run(RowKernel{RowOperation::gated_activation_backward,
                             {of_up, of_weights, of_dy},
                             {d_up, d_weights},
                             {},
                             rule});
        const Values both = joined({up, weights});
        expect_near(memory.values(y.buffer), f(both), dtype, "y");
        EXPECT_GT(limited, 0);
        const Values expected = differences(f, both, dy);
        expect_gradient(memory.values(d_up.buffer), part(expected, 0, up.size()), dtype, "d up");
        expect_gradient(memory.values(d_weights.buffer), part(expected, up.size(), kRows), DType::f32,
                        "d weights");
      }
    }
  }
}

// Two groups of three rows; with weights, and without.
TEST(RowBiases, OfGroupsAreThoseOfTheDefinition) {
  constexpr std::int64_t kGroups = 2, kRows = 6, kColumns = 5, kAll = kRows * kColumns;
  for (const DType dtype : kFloating) {
    for (const bool weighted : {false, true}) {
      const Values y = any_values(kAll, dtype), biases = any_values(kGroups * kColumns, dtype, 2),
                   weights = any_values(kRows, DType::f32, 3), dy = any_values(kAll, dtype, 4),
                   d_weights = any_values(kRows, DType::f32, 5);
      KernelMemory memory;
      const View of_y = matrix(memory.add(dtype, y), kRows, kColumns),
                 of_biases = matrix(memory.add(dtype, biases), kGroups, kColumns),
                 of_weights = matrix(memory.add(DType::f32, weights), kRows, 1),
                 of_dy = matrix(memory.add(dtype, dy), kRows, kColumns),
                 d_biases = matrix(memory.add(dtype, nothing(kGroups * kColumns)), kGroups, kColumns),
                 d_of_weights = matrix(memory.add(DType::f32, d_weights), kRows, 1);
      std::vector<View> reads{of_biases}, d_reads{of_dy}, updates;
      if (weighted)
        reads.push_back(of_weights), d_reads.push_back(of_biases), d_reads.push_back(of_weights),
            updates.push_back(d_of_weights);
      memory.run(RowKernel{RowOperation::group_bias, reads, {}, {of_y}});
      memory.run(RowKernel{RowOperation::group_bias_backward, d_reads, {d_biases}, updates});
      Values sums = y, d_sums(kGroups * kColumns, 0), of_rows = d_weights;
      for (std::size_t i = 0; i < kAll; ++i) {
        const std::size_t row = i / kColumns, bias = row / 3 * kColumns + i % kColumns;
        const double weight = weighted ? weights[row] : 1;
        sums[i] += weight * biases[bias], d_sums[bias] += weight * dy[i];
        of_rows[row] += dy[i] * biases[bias];
      }
      expect_near(memory.values(of_y.buffer), sums, dtype, "with biases");
      expect_near(memory.values(d_biases.buffer), d_sums, dtype, "d biases");
      if (weighted) expect_near(memory.values(d_of_weights.buffer), of_rows, DType::f32, "d weights, added");
      if (dtype != DType::f32) continue;
      // Added to what is there, which 16 bits would round twice.
      d_reads.resize(weighted ? 3 : 1), updates.insert(updates.begin(), d_biases);
      memory.run(RowKernel{RowOperation::group_bias_backward, d_reads, {}, updates});
      Values twice = memory.values(d_biases.buffer);
      for (std::size_t i = 0; i < twice.size(); ++i) twice[i] -= d_sums[i];
      expect_near(twice, d_sums, dtype, "d biases, added");
    }
  }
}

TEST(RowGates, AndBiasesAreThoseOfTheDefinition) {
  constexpr std::int64_t kRows = 3, kColumns = 5, kAll = kRows * kColumns;
  for (const DType dtype : kFloating) {
    const Values x = any_values(kAll, dtype), gates = any_values(kAll, dtype, 2),
                 dy = any_values(kAll, dtype, 3), bias = any_values(kColumns, dtype, 4);
    KernelMemory memory;
    const auto rows = [&](const Values& values) {
      return matrix(memory.add(dtype, values), kRows, kColumns);
    };
    const View of_x = rows(x), of_gates = rows(gates), of_dy = rows(dy), y = rows(nothing(kAll)),
               dx = rows(nothing(kAll)), d_gates = rows(nothing(kAll)),
               of_bias = flat_view(memory.add(dtype, bias), 0, kColumns),
               d_bias = flat_view(memory.add(dtype, bias), 0, kColumns);
    memory.run(RowKernel{RowOperation::output_gate, {of_x, of_gates}, {y}, {}});
    memory.run(RowKernel{RowOperation::output_gate_backward, {of_dy, of_x, of_gates}, {dx, d_gates}, {}});
    const Function f = [&](const Values& in) {
      Values out;
      for (std::size_t i = 0; i < kAll; ++i) out.push_back(in[i] / (1 + std::exp(-in[kAll + i])));
      return out;
    };
    const Values both = joined({x, gates}), expected = differences(f, both, dy);
    expect_near(memory.values(y.buffer), f(both), dtype, "gated");
    expect_gradient(memory.values(dx.buffer), part(expected, 0, kAll), dtype, "dx");
    expect_gradient(memory.values(d_gates.buffer), part(expected, kAll, kAll), dtype, "d gates");
    memory.run(RowKernel{RowOperation::add_bias, {of_bias}, {}, {of_x}});
    memory.run(RowKernel{RowOperation::add_bias, {of_dy}, {}, {d_bias}});
    Values sums = x, d_sums = bias;
    for (std::size_t i = 0; i < kAll; ++i) sums[i] += bias[i % kColumns], d_sums[i % kColumns] += dy[i];
    expect_near(memory.values(of_x.buffer), sums, dtype, "with bias");
    expect_near(memory.values(d_bias.buffer), d_sums, dtype, "d bias, added");
  }
}

// ---- both ends ----

TEST(RowEmbedding, LooksUpItsPartOfTheVocabulary) {
  constexpr std::int64_t kTokens = 6, kColumns = 3;
  VocabularyRule rule;
  rule.first = 4, rule.count = 3, rule.scale = 2;  // of a table of 4 rows, the last of which is no token
  for (const DType dtype : kFloating) {
    const Values table = any_values(4 * kColumns, dtype), dx = any_values(kTokens * kColumns, dtype, 2);
    KernelMemory memory;
    const std::vector<double> tokens{5, 3, 4, 5, 7, 5};
    const View ids = flat_view(memory.add(DType::i32, tokens), 0, kTokens),
               of_table = matrix(memory.add(dtype, table), 4, kColumns),
               x = matrix(memory.add(dtype, nothing(kTokens * kColumns)), kTokens, kColumns),
               of_dx = matrix(memory.add(dtype, dx), kTokens, kColumns),
               d_table = matrix(memory.add(DType::f32, Values(4 * kColumns, 1)), 4, kColumns);
    memory.run(RowKernel{RowOperation::embed, {ids, of_table}, {x}, {}, rule});
    memory.run(RowKernel{RowOperation::embed_backward, {ids, of_dx}, {}, {d_table}, rule});
    Values rows, gradient(4 * kColumns, 1);
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t i = 0; i < kColumns; ++i) {
        const bool own = tokens[t] >= 4 && tokens[t] < 7;
        const std::size_t at = own ? static_cast<std::size_t>(tokens[t] - 4) * kColumns + i : 0;
        rows.push_back(own ? 2 * table[at] : 0);
        if (own) gradient[at] += 2 * dx[t * kColumns + i];
      }
    }
    expect_near(memory.values(x.buffer), rows, dtype, "x");
    expect_near(memory.values(d_table.buffer), gradient, DType::f32, "d table");
  }
}

// 11 tokens on one rank; or on two, 6 and 5 of them, of which the second one's logits have a column of no
// token.
TEST(RowLoss, IsThatOfTheWholeVocabulary) {
  constexpr std::int64_t kRows = 5, kVocabulary = 11;
  constexpr float kWeight = 0.25;
  const std::vector<double> labels{3, -100, 10, 6, 0};
  for (const DType dtype : kFloating) {
    for (const auto& [cap, scale] :
         std::vector<std::pair<double, double>>{{0, 1}, {2, 1}, {0, 0.25}, {2, 3}}) {
      Values logits = any_values(kRows * kVocabulary, dtype);
      logits[4] = 300;  // exp() of it is no number; 6.5e4 is the largest of f16
      const Function losses = [&, cap = cap, scale = scale](const Values& all) {
        Values each;
        for (std::size_t row = 0; row < kRows; ++row) {
          Values own = part(all, row * kVocabulary, kVocabulary);
          for (double& value : own) value = cap == 0 ? scale * value : cap * std::tanh(scale * value / cap);
          const double most = *std::max_element(own.begin(), own.end());
          double sum = 0;
          for (const double value : own) sum += std::exp(value - most);
          each.push_back(labels[row] < 0 ? 0
                                         : std::log(sum) + most - own[static_cast<std::size_t>(labels[row])]);
        }
        return each;
      };
      const Values d_expected = differences(losses, logits, Values(kRows, kWeight));
      for (const std::int64_t ranks : {1, 2}) {
        KernelMemory memory;
        const std::int64_t width = ranks == 1 ? kVocabulary : 6;
        const View of_labels = flat_view(memory.add(DType::i32, labels), 0, kRows),
                   weight = flat_view(memory.add(DType::f32, {kWeight}), 0, 1);
        std::vector<View> own, maxima, sums;
        std::vector<VocabularyRule> rules;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          VocabularyRule& rule = rules.emplace_back();
          rule.first = rank * width, rule.count = std::min(width, kVocabulary - rule.first),
          rule.softcap = cap, rule.logit_scale = scale;
          Values of_rank;
          for (std::size_t row = 0; row < kRows; ++row) {
            for (std::int64_t i = 0; i < width; ++i)
              of_rank.push_back(i < rule.count ? logits[row * kVocabulary + idx(rule.first + i)] : 1e4);
          }
          own.push_back(matrix(memory.add(dtype, of_rank), kRows, width));
          maxima.push_back(matrix(memory.add(DType::f32, nothing(kRows)), kRows, 1));
          sums.push_back(matrix(memory.add(DType::f32, nothing(2 * kRows)), kRows, 2));
          if (ranks == 1)
            memory.run(
                RowKernel{RowOperation::cross_entropy, {own[0], of_labels}, {maxima[0], sums[0]}, {}, rule});
          else
            memory.run(RowKernel{RowOperation::cross_entropy, {own.back()}, {maxima.back()}, {}, rule});
        }
        const auto all_reduce = [&](ReduceOp op, const std::vector<View>& views) {
          if (ranks == 1) return;
          memory.run(Accumulate{op, views[0], views[1]});
          memory.run(Copy{views[1], views[0]});
        };
        all_reduce(ReduceOp::max, maxima);
        for (std::size_t rank = 0; ranks > 1 && rank < 2; ++rank)
          memory.run(RowKernel{RowOperation::cross_entropy,
                               {own[rank], maxima[rank], of_labels},
                               {sums[rank]},
                               {},
                               rules[rank]});
        all_reduce(ReduceOp::sum, sums);
        for (std::size_t rank = 0; rank < idx(ranks); ++rank) {
          const View d = matrix(memory.add(dtype, nothing(kRows * width)), kRows, width),
                     each = flat_view(memory.add(DType::f32, nothing(kRows)), 0, kRows);
          memory.run(RowKernel{RowOperation::cross_entropy_backward,
                               {own[rank], maxima[rank], sums[rank], of_labels, weight},
                               {d, each},
                               {},
                               rules[rank]});
          expect_near(memory.values(each.buffer), losses(logits), DType::f32, "losses");
          Values expected;
          for (std::size_t row = 0; row < kRows; ++row) {
            for (std::int64_t i = 0; i < width; ++i)
              expected.push_back(
                  i < rules[rank].count ? d_expected[row * kVocabulary + idx(rules[rank].first + i)] : 0);
          }
          expect_gradient(memory.values(d.buffer), expected, dtype, "d logits");
        }
      }
    }
  }
}

// ---- experts ----

// The weights of the chosen experts, and the choice itself, of one row.
struct Route {
  std::vector<std::size_t> experts;
  Values weights;
};
// Without a correction it is zeros.
Route routed(const RouterRule& rule, std::size_t top_k, const Values& logits, const Values& correction) {
  Values scores, corrected;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (const double logit : logits)
    scores.push_back(rule.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit) / sum);
  for (std::size_t expert = 0; expert < scores.size(); ++expert)
    corrected.push_back(scores[expert] + correction[expert]);
  const std::size_t each = scores.size() / idx(rule.groups);
  // The best groups, one after the other.
  std::vector<bool> open(idx(rule.groups), false);
  for (std::int64_t n = 0; n < rule.top_groups; ++n) {
    std::size_t best = open.size();
    double most = -HUGE_VAL;
    for (std::size_t group = 0; group < open.size(); ++group) {
      Values own = part(corrected, group * each, each);
      std::sort(own.rbegin(), own.rend());
      const double value = rule.sigmoid && each > 1 ? own[0] + own[1] : own[0];
      if (!open[group] && value > most) best = group, most = value;
    }
    open[best] = true;
  }
  Route route;
  std::vector<bool> taken(scores.size(), false);
  double chosen = 0;
  for (std::size_t k = 0; k < top_k; ++k) {
    std::size_t best = scores.size();
    for (std::size_t expert = 0; expert < scores.size(); ++expert) {
      if (!taken[expert] && open[expert / each] &&
          (best == scores.size() || corrected[expert] > corrected[best]))
        best = expert;
    }
    taken[best] = true, route.experts.push_back(best), chosen += scores[best];
  }
  for (const std::size_t expert : route.experts)
    route.weights.push_back(rule.scale * scores[expert] / (rule.normalized ? chosen : 1));
  return route;
}

TEST(RowRouter, IsThatOfTheDefinition) {
  constexpr std::int64_t kRows = 5, kExperts = 6, kTopK = 2;
  for (const DType dtype : kFloating) {
    for (const RouterRule& rule : {RouterRule{false, 1, 1, true, 1, 1}, RouterRule{false, 1, 1, false, 2, 1},
                                   RouterRule{false, 3, 2, true, 1, 1}, RouterRule{true, 1, 1, true, 2.5, 1},
                                   RouterRule{true, 2, 1, false, 1, 2}}) {
      const Values logits = any_values(kRows * kExperts, dtype), none(kExperts, 0);
      const Function f = [&](const Values& all) {
        Values weights;
        for (std::size_t row = 0; row < kRows; ++row)
          weights = joined({weights, routed(rule, kTopK, part(all, row * kExperts, kExperts), none).weights});
        return weights;
      };
      KernelMemory memory;
      const View of_logits = matrix(memory.add(dtype, logits), kRows, kExperts),
                 weights = matrix(memory.add(DType::f32, nothing(kRows * kTopK)), kRows, kTopK),
                 experts = matrix(memory.add(DType::i32, Values(kRows * kTopK, -1)), kRows, kTopK);
      memory.run(RowKernel{RowOperation::route, {of_logits}, {weights, experts}, {}, rule});
      expect_near(memory.values(weights.buffer), f(logits), DType::f32, "weights");
      // Gradients lie in slots: 5 for each expert, so that no choice is dropped, in the order of the rows.
      const std::int64_t capacity = kExperts * kRows * rule.ranks;
      const Values d = any_values(kRows * kTopK, DType::f32, 2);
      Values in_slots = nothing(capacity);
      std::vector<std::size_t> used(kExperts, 0);
      for (std::size_t row = 0; row < kRows; ++row) {
        const Route route = routed(rule, kTopK, part(logits, row * kExperts, kExperts), none);
        for (std::size_t k = 0; k < kTopK; ++k) {
          EXPECT_EQ(memory.values(experts.buffer)[row * kTopK + k], static_cast<double>(route.experts[k]));
          in_slots[route.experts[k] * kRows + used[route.experts[k]]++ +
                   // Of each rank's block a rank fills as much of an expert's rows as any other one.
                   (rule.ranks == 1 ? 0 : route.experts[k] / 3 * 15)] = d[row * kTopK + k];
        }
      }
      if (rule.ranks > 1) continue;  // where their slots are is the next tests' matter
      const View of_slots = matrix(memory.add(DType::f32, in_slots), capacity, 1),
                 d_logits = matrix(memory.add(dtype, nothing(kRows * kExperts)), kRows, kExperts);
      memory.run(
          RowKernel{RowOperation::route_backward, {of_logits, experts, of_slots}, {d_logits}, {}, rule});
      expect_gradient(memory.values(d_logits.buffer), differences(f, logits, d), dtype, "d logits");
    }
  }
}

// One expert of each group is corrected, by a whole number that no other group has. So corrected scores, and
// sums of two, are equal or apart by more than roundings, as those of logits are; some are below 0, and
// choose groups and experts that scores alone do not.
RC_GTEST_PROP(RowRouter, CorrectionsChooseAndWeighNothing, ()) {
  RouterRule rule;
  rule.sigmoid = pick("sigmoids", rc::gen::arbitrary<bool>());
  rule.normalized = pick("normalized", rc::gen::arbitrary<bool>());
  rule.scale = pick("scale", rc::gen::element(1.0, 2.5));
  rule.groups = pick("groups", rc::gen::inRange<std::int64_t>(1, 4));
  rule.top_groups = pick("of these", rc::gen::inRange<std::int64_t>(1, rule.groups + 1));
  const auto each = pick("experts of a group", rc::gen::inRange<std::int64_t>(1, 5)),
             rows = pick("rows", rc::gen::inRange<std::int64_t>(1, 4)), experts = rule.groups * each,
             top_k = pick("chosen", rc::gen::inRange<std::int64_t>(1, rule.top_groups * each + 1));
  const auto of_halves = rc::gen::container<Values>(
      idx(rows * experts), rc::gen::map(rc::gen::inRange(0, 9), [](int half) { return half / 2.0; }));
  const Values logits = pick("logits", of_halves);
  Values correction(idx(experts), 0);
  for (std::int64_t group = 0; group < rule.groups; ++group) {
    const auto expert = pick("corrected expert", rc::gen::inRange<std::int64_t>(0, each));
    const double sign = pick("sign", rc::gen::element(-1.0, 1.0));
    correction[idx(group * each + expert)] = sign * static_cast<double>(group + 1);
  }
  KernelMemory memory;
  const View of_logits = matrix(memory.add(DType::f32, logits), rows, experts),
             of_correction = flat_view(memory.add(DType::f32, correction), 0, experts),
             weights = matrix(memory.add(DType::f32, nothing(rows * top_k)), rows, top_k),
             chosen = matrix(memory.add(DType::i32, Values(idx(rows * top_k), -1)), rows, top_k);
  const View loads = flat_view(memory.add(DType::f32, Values(idx(experts), 5)), 0, experts);
  memory.run(RowKernel{RowOperation::route, {of_logits, of_correction}, {weights, chosen}, {loads}, rule});
  Values expected_weights, expected, expected_loads(idx(experts), 5);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Route route = routed(rule, idx(top_k), part(logits, idx(row * experts), idx(experts)), correction);
    expected_weights = joined({expected_weights, route.weights});
    for (const std::size_t expert : route.experts)
      expected.push_back(static_cast<double>(expert)), ++expected_loads[expert];
  }
  RC_ASSERT(memory.values(chosen.buffer) == expected);
  RC_ASSERT(memory.values(loads.buffer) == expected_loads);
  expect_near(memory.values(weights.buffer), expected_weights, DType::f32, "weights");
}

// Two ranks with two experts each. What both send, exchanged and sorted, lies in its expert's region; and
// what comes back is each token's sum over its choices that were not dropped.
RC_GTEST_PROP(RowExperts, RowsReachTheirExpertsAndComeBack, ()) {
  constexpr std::int64_t kRanks = 2, kOwn = 2, kExperts = kRanks * kOwn, kTopK = 2, kColumns = 3;
  const auto tokens = pick("tokens", rc::gen::inRange<std::int64_t>(0, 9)),
             block = pick("slots of a block", rc::gen::inRange<std::int64_t>(1, 10));
  const std::int64_t capacity = kRanks * block;
  const SlotsRule rule{kExperts, kRanks};
  KernelMemory memory;
  std::vector<Values> chosen(kRanks);
  std::vector<View> sent, weights, in, choice;
  const auto rows = [&](const Values& values, std::int64_t count, std::int64_t width,
                        DType dtype = DType::f32) {
    return matrix(memory.add(dtype, values.empty() ? Values{0} : values), count, width);
  };
  const auto value_of = [](std::int64_t rank, std::int64_t token, std::int64_t column) {
    return static_cast<double>(1000 * rank + 10 * token + column + 1);
  };
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    Values x, w;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const int first = pick("first expert", rc::gen::inRange(0, 4)),
                second = (first + pick("second expert behind it", rc::gen::inRange(1, 4))) % 4;
      chosen[idx(rank)].insert(chosen[idx(rank)].end(), {1.0 * first, 1.0 * second});
      for (std::int64_t i = 0; i < kColumns; ++i) x.push_back(value_of(rank, token, i));
      w.insert(w.end(), {value_of(rank, token, 0) + 0.25, value_of(rank, token, 0) + 0.5});
    }
    in.push_back(rows(x, tokens, kColumns));
    choice.push_back(rows(chosen[idx(rank)], tokens, kTopK, DType::i32));
    sent.push_back(rows(nothing(capacity * kColumns), capacity, kColumns));
    weights.push_back(rows(nothing(capacity), capacity, 1));
    memory.run(RowKernel{RowOperation::dispatch,
                         {in.back(), rows(w, tokens, kTopK), choice.back()},
                         {sent.back(), weights.back()},
                         {},
                         rule});
  }
  // As an AllToAll does.
  const auto exchange = [&](const std::vector<View>& from) {
    std::vector<View> to;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      const std::int64_t width = from[0].shape[1];
      View& arrived = to.emplace_back(rows(nothing(capacity * width), capacity, width));
      for (std::int64_t source = 0; source < kRanks; ++source)
        memory.run(Copy{dense_view(from[idx(source)].buffer, rank * block * width, {block, width}),
                        dense_view(arrived.buffer, source * block * width, {block, width})});
    }
    return to;
  };
  std::vector<View> back;
  const std::int64_t each = (capacity + kOwn - 1) / kOwn;
  std::vector<std::vector<Values>> at_experts(kExperts);  // rows with the weight behind
  const std::vector<View> arrived = exchange(sent), with = exchange(weights);
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const View sorted = rows(nothing(capacity * kColumns), capacity, kColumns),
               factors = rows(nothing(capacity), capacity, 1);
    memory.run(RowKernel{RowOperation::dispatch, {arrived[idx(rank)]}, {sorted}, {}, rule});
    memory.run(RowKernel{RowOperation::dispatch, {with[idx(rank)]}, {factors}, {}, rule});
    const Values all = memory.values(sorted.buffer), factor = memory.values(factors.buffer);
    for (std::int64_t slot = 0; slot < capacity; ++slot) {
      Values row = part(all, idx(slot * kColumns), kColumns);
      RC_ASSERT((row[0] == 0) == (factor[idx(slot)] == 0));
      row.push_back(factor[idx(slot)]);
      if (row[0] != 0) at_experts[idx(rank * kOwn + slot / each)].push_back(row);
    }
    View& leaving = back.emplace_back(rows(nothing(capacity * kColumns), capacity, kColumns));
    memory.run(RowKernel{RowOperation::combine, {sorted}, {leaving}, {}, rule});
  }
  const std::vector<View> returned = exchange(back);
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const View y = rows(nothing(tokens * kColumns), tokens, kColumns);
    memory.run(RowKernel{RowOperation::combine, {returned[idx(rank)], choice[idx(rank)]}, {y}, {}, rule});
    const Values got = memory.values(y.buffer);
    // Of an expert's region a rank may fill half.
    std::vector<std::int64_t> left;
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      const std::int64_t e = expert % kOwn;
      left.push_back((std::min(capacity, (e + 1) * each) - std::min(capacity, e * each)) / kRanks);
    }
    for (std::int64_t token = 0; token < tokens; ++token) {
      double kept = 0;
      for (std::int64_t k = 0; k < kTopK; ++k) {
        const auto expert = static_cast<std::size_t>(chosen[idx(rank)][idx(token * kTopK + k)]);
        if (left[expert]-- <= 0) continue;
        ++kept;
        const Values row{value_of(rank, token, 0), value_of(rank, token, 1), value_of(rank, token, 2),
                         value_of(rank, token, 0) + (k == 0 ? 0.25 : 0.5)};
        const auto found = std::find(at_experts[expert].begin(), at_experts[expert].end(), row);
        RC_ASSERT(found != at_experts[expert].end());
        at_experts[expert].erase(found);
      }
      for (std::int64_t i = 0; i < kColumns; ++i)
        RC_ASSERT(got[idx(token * kColumns + i)] == kept * value_of(rank, token, i));
    }
  }
  for (const std::vector<Values>& rest : at_experts) RC_ASSERT(rest.empty());
}

// ---- update ----

TEST(RowOptimizer, TakesTheNormOverWhatIsHeldOnce) {
  KernelMemory memory;
  const BufferId a = memory.add(DType::f32, {3, 4, 100, 1}), b = memory.add(DType::bf16, {2, 2}),
                 norm = memory.add(DType::f32, {kNan});
  memory.run(RowKernel{RowOperation::squared_norm,
                       {View{a, 0, {2, 1}, {3, 1}, {}}, flat_view(a, 1, 1), flat_view(b, 0, 2)},
                       {flat_view(norm, 0, 1)},
                       {},
                       SquaredNormRule{{1, 4, 2}}});
  EXPECT_EQ(memory.values(norm), Values{9 + 1 + 16 * 0.25 + 8 * 0.5});
}

// Numbers of torch.optim.AdamW and SGD's formulas, worked out here in f64, over three steps.
TEST(RowOptimizer, IsThatOfTheFormulas) {
  constexpr std::int64_t kNumel = 5;
  for (const std::int64_t states : {2, 1, 0}) {
    for (const bool clips : {true, false}) {
      const OptimizerRule rule{states, 0.9, 0.95, 1e-8, 0.1, clips ? 0.5 : 0};
      Values p = any_values(kNumel), m(kNumel, 0), v(kNumel, 0);
      KernelMemory memory;
      const BufferId parameters = memory.add(DType::f32, p),
                     state = memory.add(DType::f32, Values(idx(2 * kNumel), 0)),
                     computed = memory.add(DType::bf16, nothing(kNumel));
      for (int t = 1; t <= 3; ++t) {
        const Values gradient = any_values(kNumel, DType::bf16, static_cast<unsigned>(10 + t));
        const double norm = 4, lr = 0.125 / t, clip = clips ? 0.5 / (2 + 1e-6) : 1;
        std::vector<View> updates{flat_view(parameters, 0, kNumel)};
        if (states > 0) updates.push_back(flat_view(state, 0, states * kNumel));
        memory.run(RowKernel{RowOperation::optimizer,
                             {flat_view(memory.add(DType::bf16, gradient), 0, kNumel),
                              flat_view(memory.add(DType::f32, {norm}), 0, 1),
                              flat_view(memory.add(DType::f32, {lr, 1.0 * t}), 0, 2)},
                             {flat_view(computed, 0, kNumel)},
                             updates,
                             rule});
        for (std::size_t i = 0; i < kNumel; ++i) {
          double g = gradient[i] * clip;
          if (states == 2) {
            p[i] -= lr * 0.1 * p[i];
            m[i] = 0.9 * m[i] + 0.1 * g, v[i] = 0.95 * v[i] + 0.05 * g * g;
            p[i] -= lr * (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
          } else {
            g += 0.1 * p[i];
            m[i] = 0.9 * m[i] + g;
            p[i] -= lr * (states == 1 ? m[i] : g);
          }
        }
        expect_near(memory.values(parameters), p, DType::f32, "parameters");
        expect_near(memory.values(computed), p, DType::bf16, "computed");
      }
      if (states > 0) expect_near(part(memory.values(state), 0, kNumel), m, DType::f32, "first state");
      if (states == 2) expect_near(part(memory.values(state), kNumel, kNumel), v, DType::f32, "second state");
    }
  }
}

// A rank without rows writes zero gradients.
TEST(RowKernels, TakeNoRows) {
  KernelMemory memory;
  const BufferId none = memory.add(DType::f32, {0}), w = memory.add(DType::f32, {1, 2}),
                 dw = memory.add(DType::f32, {7, 7});
  const View rows = matrix(none, 0, 2);
  NormRule rule;
  rule.width = 2;
  memory.run(RowKernel{RowOperation::rms_norm_backward,
                       {rows, flat_view(w, 0, 2), rows},
                       {rows, flat_view(dw, 0, 2)},
                       {},
                       rule});
  EXPECT_EQ(memory.values(dw), (Values{0, 0}));
  memory.run(RowKernel{RowOperation::add_bias, {rows}, {flat_view(w, 0, 2)}, {}});
  EXPECT_EQ(memory.values(w), (Values{0, 0}));
}

}  // namespace
}  // namespace cp::testing
