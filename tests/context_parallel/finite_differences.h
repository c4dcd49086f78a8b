// Central differences of the loss <out, dout> along one row of q, k or v, or along one sink, with a bound on
// their error.
//
// Along q or k all scores of a query are linear in the step t, so its share of the loss is the mean of x_j =
// dout v_j under weights ~ exp(s_j + t c_j). Its third derivative is a joint cumulant, E[x~ c~^3] - 3 E[x~
// c~] E[c~^2] with x~ = x - E x: at most 7 X C^3 where |x| <= X and |c| <= C, whatever t. So the difference
// is off by at most 7/6 step^2 X C^3 a query, and by the errors of both forwards over 2 step. Along v the
// loss is linear.
//
// A sink is one more x of 0, and dropout makes X larger. Along a sink it alone moves, by c = 1, and no cap
// bends it. Under a cap c the scores are c tanh(. / c), whose
// second and third derivatives are at most 0.77 / c C^2 and 2 / c^2 C^3: the cumulants 3 of x, the first and
// the second, and of x and the third, add (24 * 0.77 / c + 2 / c^2) X C^3 to the 7.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include <rapidcheck.h>

#include "shared/context_parallel/problem.h"
#include "sim/proof/ledger/mask_rule.h"
#include "sim/proof/run/attention_run.h"
#include "tests/support/values.h"

namespace cp::testing {

// Multiples of 1/64 below 1: exact in every dtype, and still in f32 after a step of 2^-17 or more.
inline sim::AttentionValues small_inputs(const AttentionProblem& problem, std::uint64_t seed) {
  const std::int64_t queries = problem.batch * problem.q_heads * problem.q_len;
  const std::int64_t keys = problem.batch * problem.kv_heads * problem.kv_len;
  return {small_fractions(queries * problem.head_dim, 4 * seed),
          small_fractions(keys * problem.head_dim, 4 * seed + 1),
          small_fractions(keys * problem.v_head_dim, 4 * seed + 2),
          small_fractions(queries * problem.v_head_dim, 4 * seed + 3),
          small_fractions(problem.sinks ? problem.q_heads : 0, 4 * seed + 4)};
}

enum class Input : std::uint8_t { q, k, v, sink };

// One row of an input, a row of [batch, heads, seq], and a sign for each of its elements; or the sink of the
// query head `row`.
struct Direction {
  Input input = Input::q;
  std::int64_t row = 0;
  std::vector<double> signs;
};
inline void showValue(const Direction& direction, std::ostream& out) {
  out << "row " << direction.row << " of "
      << "qkvs"[static_cast<int>(direction.input)];
}

// The input must have a row.
inline rc::Gen<Direction> any_direction(const AttentionProblem& problem, Input input) {
  return rc::gen::exec([problem, input] {
    if (input == Input::sink)
      return Direction{input, *rc::gen::inRange<std::int64_t>(0, problem.q_heads), {1}};
    const std::int64_t heads = input == Input::q ? problem.q_heads : problem.kv_heads;
    const std::int64_t seq_len = input == Input::q ? problem.q_len : problem.kv_len;
    Direction direction{input, *rc::gen::inRange<std::int64_t>(0, problem.batch * heads * seq_len), {}};
    direction.signs.resize(
        static_cast<std::size_t>(input == Input::v ? problem.v_head_dim : problem.head_dim));
    for (double& sign : direction.signs) sign = *rc::gen::element(-1.0, 1.0);
    return direction;
  });
}

template <class Values>  // const or not
auto& tensor_of(Values& values, Input input) {
  return input == Input::q   ? values.q
         : input == Input::k ? values.k
         : input == Input::v ? values.v
                             : values.sinks;
}

inline sim::AttentionValues stepped(sim::AttentionValues values, const Direction& direction, double step) {
  const std::size_t begin = static_cast<std::size_t>(direction.row) * direction.signs.size();
  for (std::size_t i = 0; i < direction.signs.size(); ++i) {
    tensor_of(values, direction.input)[begin + i] += step * direction.signs[i];
  }
  return values;
}

// Rows of out that depend on the row of the input.
inline std::vector<std::int64_t> rows_that_see(const AttentionProblem& problem, const Direction& direction) {
  if (direction.input == Input::q) return {direction.row};
  if (direction.input == Input::sink) {
    std::vector<std::int64_t> rows;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t i = 0; i < problem.q_len; ++i)
        rows.push_back((b * problem.q_heads + direction.row) * problem.q_len + i);
    }
    return rows;
  }
  const std::int64_t key = direction.row % problem.kv_len, head = direction.row / problem.kv_len;
  std::vector<std::int64_t> rows;
  for (std::int64_t h = 0; h < problem.heads_per_kv(); ++h) {
    for (std::int64_t i = 0; i < problem.q_len; ++i) {
      const KeyInterval seen = sim::visible_keys(problem, head / problem.kv_heads, i);
      if (seen.begin <= key && key < seen.end)
        rows.push_back((head * problem.heads_per_kv() + h) * problem.q_len + i);
    }
  }
  return rows;
}

// Values, and how far each may be from what it should be.
struct Bounded {
  std::vector<double> values, bounds;
};

struct Difference {
  double value = 0, bound = 0;
};

// forward: AttentionValues -> Bounded out. The step is a power of two for which both errors are about as
// large.
template <class Forward>
Difference central_difference(const AttentionProblem& problem, const sim::AttentionValues& values,
                              const Direction& direction, const Forward& forward) {
  const auto dim = static_cast<std::size_t>(problem.v_head_dim);
  const auto norm = [](const double* row, std::size_t size) {
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += row[i] * row[i];
    return std::sqrt(sum);
  };
  const auto largest_norm = [&](const std::vector<double>& rows, std::size_t width) {
    double most = 0;
    for (std::size_t i = 0; i < rows.size(); i += width) most = std::max(most, norm(rows.data() + i, width));
    return most;
  };
  const auto head_dim = static_cast<std::size_t>(problem.head_dim);
  const std::vector<std::int64_t> rows = rows_that_see(problem, direction);
  const double signs = norm(direction.signs.data(), direction.signs.size()),
               scale = std::abs(problem.scale());
  const bool of_sink = direction.input == Input::sink;
  const double kept = 1 / (1 - problem.dropout.probability), cap = problem.softcap,
               bend = cap == 0 || of_sink ? 0 : 24 * 0.77 / cap + 2 / (cap * cap);
  double truncation = 0;  // over step^2
  for (const std::int64_t row : rows) {
    const std::size_t i = static_cast<std::size_t>(row);
    const double x = kept * norm(values.dout.data() + i * dim, dim) * largest_norm(values.v, dim);
    const double other = direction.input == Input::q ? largest_norm(values.k, head_dim)
                                                     : norm(values.q.data() + i * head_dim, head_dim);
    const double c = of_sink ? 1 : scale * signs * other;
    if (direction.input != Input::v) truncation += (7 + bend) / 6 * x * c * c * c;
  }
  const auto noise_of = [&](const Bounded& out) {
    double noise = 0;
    for (const std::int64_t row : rows) {
      for (std::size_t e = static_cast<std::size_t>(row) * dim; e < (static_cast<std::size_t>(row) + 1) * dim;
           ++e)
        noise += std::abs(values.dout[e]) * out.bounds[e];
    }
    return noise;
  };
  const double noise = noise_of(forward(values));
  double step = 0.5;
  while (step > 0x1p-17 && truncation * step * step > noise / step) step /= 2;
  const Bounded after = forward(stepped(values, direction, step)),
                before = forward(stepped(values, direction, -step));
  Difference difference;
  for (const std::int64_t row : rows) {
    for (std::size_t e = static_cast<std::size_t>(row) * dim; e < (static_cast<std::size_t>(row) + 1) * dim;
         ++e)
      difference.value += values.dout[e] * (after.values[e] - before.values[e]) / (2 * step);
  }
  difference.bound = truncation * step * step + (noise_of(after) + noise_of(before)) / (2 * step);
  return difference;
}

// The gradient along the direction.
inline Difference along(const Direction& direction, const Bounded& gradient) {
  const std::size_t begin = static_cast<std::size_t>(direction.row) * direction.signs.size();
  Difference sum;
  for (std::size_t i = 0; i < direction.signs.size(); ++i) {
    sum.value += direction.signs[i] * gradient.values[begin + i];
    sum.bound += gradient.bounds[begin + i];
  }
  return sum;
}

}  // namespace cp::testing
