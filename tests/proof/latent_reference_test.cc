// Latent rows in float64: what they expand to against the words of shared/context_parallel/problem.h, and
// their gradients against differences of the outputs.
#include "sim/proof/run/latent_reference.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

using Values = std::vector<double>;

// Multiples of 1/64 below 1, as small_inputs() has them.
sim::AttentionValues small_latent_inputs(const AttentionProblem& p, std::uint64_t seed) {
  const std::int64_t queries = p.batch * p.q_heads * p.q_len;
  return {small_fractions(queries * p.head_dim, 6 * seed),
          {},
          {},
          small_fractions(queries * p.v_head_dim, 6 * seed + 1),
          small_fractions(p.sinks ? p.q_heads : 0, 6 * seed + 2),
          small_fractions(p.batch * p.kv_len * p.latent.dim(), 6 * seed + 3),
          small_fractions(p.kv_heads * p.up_rows() * p.latent.rank, 6 * seed + 4)};
}

double dot_of(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double largest_norm(const Values& rows, std::int64_t dim) {
  double most = 0;
  for (std::size_t begin = 0; begin < rows.size(); begin += idx(dim)) {
    double norm = 0;
    for (std::size_t i = 0; i < idx(dim); ++i) norm += rows[begin + i] * rows[begin + i];
    most = std::max(most, norm);
  }
  return std::sqrt(most);
}

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> rows(idx(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Some of the elements become 1 or -1.
void sign(Values& values, std::int64_t begin, std::int64_t count) {
  for (std::int64_t i = begin; i < begin + count; ++i) values[idx(i)] = *rc::gen::element(-1.0, 1.0);
}

TEST(LatentReference, ExpandsEachHeadByItsRowsAndAppendsTheRotatedPart) {
  AttentionProblem p;
  p.batch = 2, p.kv_len = p.q_len = 3, p.q_heads = p.kv_heads = 2, p.head_dim = 5, p.v_head_dim = 2;
  p.latent = {.rank = 4, .rope_dim = 2};
  const sim::AttentionTestData data(p, 7);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t j = 0; j < 3; ++j) {
        const double* const row = data.latent().data() + (b * 3 + j) * 6;
        const auto product = [&](std::int64_t up) {
          double sum = 0;
          for (std::int64_t r = 0; r < 4; ++r) sum += data.kv_up()[idx((h * 5 + up) * 4 + r)] * row[r];
          return sum;
        };
        for (std::int64_t d = 0; d < 5; ++d) {
          const double key = data.k()[idx(((b * 2 + h) * 3 + j) * 5 + d)];
          EXPECT_NEAR(key, d < 3 ? product(d) : row[4 + d - 3], 0x1p-45) << b << h << j << d;
        }
        for (std::int64_t d = 0; d < 2; ++d)
          EXPECT_NEAR(data.v()[idx(((b * 2 + h) * 3 + j) * 2 + d)], product(3 + d), 0x1p-45)
              << b << h << j << d;
      }
    }
  }
}

// The scores and the values are linear in the step t along one latent row, or along one row of the weight:
// each query's share of the loss is the mean of x_j + t b_j under weights ~ exp(s_j + t c_j). Its third
// derivative is a joint cumulant of x, c, c, c, at most 7 X C^3 (finite_differences.h), and three of b, c, c,
// each at most 2 B C^2. Forwards in float64 are off by less than those in f32 may be.
RC_GTEST_PROP(LatentReference, GradientsAreDifferencesOfTheOutputs, ()) {
  AttentionProblem p = *any_latent_problem();
  p.dtype = DType::f32, p.softcap = 0;
  RC_PRE(p.q_len > 0 && p.kv_len > 0);
  const sim::AttentionValues values =
      small_latent_inputs(p, pick("seed", rc::gen::inRange<std::uint64_t>(0, 1000)));
  const bool of_weight = pick("of the weight", rc::gen::arbitrary<bool>());
  const std::int64_t dim = of_weight ? p.latent.rank : p.latent.dim();
  const std::int64_t rows =
      static_cast<std::int64_t>((of_weight ? values.kv_up : values.latent).size()) / dim;
  Values direction(idx(rows * dim));
  const std::int64_t row = pick("row", rc::gen::inRange<std::int64_t>(0, rows));
  sign(direction, row * dim, dim);
  const auto stepped = [&](double step) {
    sim::AttentionValues moved = values;
    Values& tensor = of_weight ? moved.kv_up : moved.latent;
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] += step * direction[i];
    return sim::AttentionTestData(p, moved);
  };
  const sim::AttentionTestData data(p, values);
  // How keys and values move: the rotated parts of all rows do not move along the weight.
  Values still = values.latent;
  for (std::size_t i = 0; i < still.size(); ++i) {
    if (static_cast<std::int64_t>(i) % p.latent.dim() >= p.latent.rank) still[i] = 0;
  }
  const sim::ExpandedKeys moves =
      sim::reference_expand({p, of_weight ? still : direction, of_weight ? direction : values.kv_up});
  const double kept = 1 / (1 - p.dropout.probability), dout = kept * largest_norm(values.dout, p.v_head_dim);
  const double c = std::abs(p.scale()) * largest_norm(values.q, p.head_dim) *
                   largest_norm(moves.k, p.head_dim),
               b = dout * largest_norm(moves.v, p.v_head_dim);
  const auto queries = static_cast<double>(p.batch * p.q_heads * p.q_len);
  const auto noise_of = [&](const sim::AttentionTestData& of) {
    const sim::AttentionTolerances t =
        sim::attention_tolerances(of, {p, first_ranks(1), {}, false, {}}, false);
    double noise = 0;
    for (std::size_t i = 0; i < of.out().size(); ++i)
      noise += std::abs(values.dout[i]) * t.out.at(i / idx(p.v_head_dim), of.out()[i]);
    return noise;
  };
  const auto truncation = [&](double step) {
    const double x = dout * largest_norm(data.v(), p.v_head_dim) + step * b;
    return step * step / 6 * queries * (7 * x * c * c * c + 6 * b * c * c);
  };
  const double noise = noise_of(data);
  double step = 0.5;
  while (step > 0x1p-17 && truncation(step) > noise / step) step /= 2;
  const sim::AttentionTestData after = stepped(step), before = stepped(-step);
  const double difference =
                   (dot_of(after.out(), values.dout) - dot_of(before.out(), values.dout)) / (2 * step),
               bound = truncation(step) + (noise_of(after) + noise_of(before)) / (2 * step);
  const sim::LatentInputs inputs{p, data.latent(), data.kv_up()};
  const Values of_keys =
      sim::reference_dkv_up_of_keys(inputs, data.backward(), {all_of(p.kv_len), 0, p.q_heads});
  const double gradient = of_weight ? dot_of(of_keys, direction) : dot_of(data.dlatent(), direction);
  RC_LOG() << "difference " << difference << " +- " << bound << ", gradient " << gradient << "\n";
  RC_ASSERT(std::abs(difference - gradient) <= bound);
  // By queries it is the same sum in another order: products of at most so many terms below 1 in float64.
  const Values of_queries = sim::reference_dkv_up_of_queries(inputs, data.backward(), {data.q(), data.dout()},
                                                             {all_of(p.q_len), 0, p.q_heads});
  const sim::AttentionTolerances t = sim::attention_tolerances(data, {p, first_ranks(1), {}, true, {}}, true);
  for (std::size_t i = 0; i < of_keys.size(); ++i)
    RC_ASSERT(std::abs(of_keys[i] - of_queries[i]) <= t.dkv_up[i / idx(p.up_rows() * p.latent.rank)]);
}

}  // namespace
}  // namespace cp::testing
