// Laws that hold for attention whoever computes it, of runs on several ranks: between strategies, between
// problems and between a pass and its derivative. None of them asks the one-device reference for values.
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "sim/proof/run/attention_run.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/context_parallel/finite_differences.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

using Values = std::vector<double>;

// A problem, its results on some ranks, and how far they may be from the right ones.
struct Computed {
  AttentionProblem problem;
  sim::AttentionResults results;
  sim::AttentionTolerances tolerances;
};

struct On {
  int cp = 1;
  Strategy strategy;
  sim::Schedule schedule = sim::Schedule::parallel;
  std::uint64_t schedule_seed = 0;
};

Computed compute(const sim::AttentionTestData& data, const On& on, bool backward = true) {
  std::vector<Rank> ranks(static_cast<std::size_t>(on.cp));
  std::iota(ranks.begin(), ranks.end(), 0);
  const AttentionRequest request{data.problem(), ranks, on.strategy, backward};
  sim::AttentionRunOptions options;
  options.backward = backward;
  options.keep_results = true;
  options.schedule = on.schedule;
  options.seed = on.schedule_seed;
  return {data.problem(), sim::run_attention(data, request, options).results,
          sim::attention_tolerances(data, request, backward)};
}

On any_ranks(const AttentionProblem& problem) {
  On on;
  on.cp = pick("cp", rc::gen::inRange(1, 7));
  on.strategy = *any_strategy(problem, on.cp);
  RC_LOG() << to_string(problem) << " documents " << documents_text(problem) << " on " << on.cp << " by "
           << to_string(on.strategy) << "\n";
  return on;
}

std::uint64_t any_seed() { return pick("seed", rc::gen::inRange<std::uint64_t>(0, 1000)); }

// ---- comparing ----

enum class Of { out, lse, dq, dk, dv };
constexpr Of kAll[] = {Of::out, Of::lse, Of::dq, Of::dk, Of::dv};
constexpr const char* kNames[] = {"out", "lse", "dq", "dk", "dv"};

template <class Five>  // AttentionResults or AttentionTolerances
auto& get(Five& five, Of of) {
  switch (of) {
    case Of::out:
      return five.out;
    case Of::lse:
      return five.lse;
    case Of::dq:
      return five.dq;
    case Of::dk:
      return five.dk;
    default:
      return five.dv;
  }
}

bool of_keys(Of of) { return of == Of::dk || of == Of::dv; }
std::size_t dim_of(const AttentionProblem& p, Of of) {
  return static_cast<std::size_t>(of == Of::lse                  ? 1
                                  : of == Of::dq || of == Of::dk ? p.head_dim
                                                                 : p.v_head_dim);
}

Bounded bounded(const Computed& computed, Of of) {
  Bounded result{get(computed.results, of), {}};
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    result.bounds.push_back(
        get(computed.tolerances, of).at(i / dim_of(computed.problem, of), result.values[i]));
  }
  return result;
}

// Where two computations of the same tensor differ by more than both errors; empty if nowhere.
std::string difference(const char* name, const Bounded& a, const Bounded& b) {
  if (a.values.size() != b.values.size()) return str(name, ": ", a.values.size(), " and ", b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if (a.values[i] == b.values[i]) continue;                                        // also -inf
    if (std::abs(a.values[i] - b.values[i]) <= a.bounds[i] + b.bounds[i]) continue;  // false for NaN
    return str(name, "[", i, "]: ", a.values[i], " and ", b.values[i], ", more than ", a.bounds[i], " + ",
               b.bounds[i], " apart\n");
  }
  return "";
}

std::string difference(const Computed& a, const Computed& b) {
  std::string text;
  for (const Of of : kAll) {
    text += difference(kNames[static_cast<std::size_t>(of)], bounded(a, of), bounded(b, of));
  }
  return text;
}

// Where the values differ at all.
std::string inequality(const sim::AttentionResults& a, const sim::AttentionResults& b) {
  for (const Of of : kAll) {
    const Values &left = get(a, of), &right = get(b, of);
    if (left.size() != right.size()) return str(kNames[static_cast<std::size_t>(of)], " differs in size");
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] != right[i])
        return str(kNames[static_cast<std::size_t>(of)], "[", i, "]: ", left[i], " and ", right[i]);
    }
  }
  return "";
}

// ---- between strategies ----

RC_GTEST_PROP(AttentionProperties, AnyTwoStrategiesAgree, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const sim::AttentionTestData data(problem, any_seed());
  const On one = any_ranks(problem), other = any_ranks(problem);
  RC_ASSERT(difference(compute(data, one), compute(data, other)) == "");
}

// Backward, and where queries rotate, blocks take the direction of fewer bytes, and sums the order that comes
// of it.
RC_GTEST_PROP(AttentionProperties, SendingMoreThanIsNeededChangesNoBitOfTheForward, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const sim::AttentionTestData data(problem, any_seed());
  On on = any_ranks(problem);
  RC_PRE(on.strategy.core != Core::pass_q);
  on.strategy.send_empty = false;
  const Computed frugal = compute(data, on, false);
  on.strategy.send_empty = true;
  RC_ASSERT(inequality(frugal.results, compute(data, on, false).results) == "");
}

RC_GTEST_PROP(AttentionProperties, WhoRunsFirstChangesNoBit, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const sim::AttentionTestData data(problem, any_seed());
  const On on = any_ranks(problem);
  On by_turns = on;
  by_turns.schedule = sim::Schedule::baton;
  by_turns.schedule_seed = any_seed();
  RC_ASSERT(inequality(compute(data, on).results, compute(data, by_turns).results) == "");
}

// ---- between problems ----

// Rows of [batch, heads, seq, dim] in another order: row i of the result is row order[i].
Values in_order(const Values& tensor, const std::vector<std::size_t>& order, std::size_t dim) {
  Values result;
  result.reserve(tensor.size());
  for (std::size_t head = 0; head < tensor.size(); head += order.size() * dim) {
    for (const std::size_t row : order) {
      const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(head + row * dim);
      result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(dim));
    }
  }
  return result;
}

RC_GTEST_PROP(AttentionProperties, PermutedDocumentsHavePermutedResults, ()) {
  AttentionProblem problem = *any_problem();
  RC_PRE(!problem.cu_seqlens.empty());
  problem.q_len = problem.kv_len;
  problem.query_offset.reset(), problem.chunk.reset(), problem.dropout = {};  // which ask where rows stand
  const std::size_t documents = problem.cu_seqlens.size() - 1;
  std::vector<std::size_t> sequence(documents);
  std::iota(sequence.begin(), sequence.end(), 0u);
  for (std::size_t i = documents; i > 1; --i)
    std::swap(sequence[i - 1],
              sequence[pick("document that changes places", rc::gen::inRange<std::size_t>(0, i))]);
  AttentionProblem permuted = problem;
  permuted.cu_seqlens = {0};
  std::vector<std::size_t> order;  // of rows; padding stays
  for (const std::size_t d : sequence) {
    for (std::int64_t row = problem.cu_seqlens[d]; row < problem.cu_seqlens[d + 1]; ++row)
      order.push_back(static_cast<std::size_t>(row));
    permuted.cu_seqlens.push_back(static_cast<std::int64_t>(order.size()));
  }
  for (std::int64_t row = problem.cu_seqlens.back(); row < problem.kv_len; ++row)
    order.push_back(static_cast<std::size_t>(row));
  RC_PRE(!order.empty());

  const sim::AttentionTestData data(problem, any_seed());
  const auto head_dim = static_cast<std::size_t>(problem.head_dim),
             v_dim = static_cast<std::size_t>(problem.v_head_dim);
  const sim::AttentionTestData permuted_data(
      permuted, {in_order(data.q(), order, head_dim), in_order(data.k(), order, head_dim),
                 in_order(data.v(), order, v_dim), in_order(data.dout(), order, v_dim), data.sinks()});
  const Computed before = compute(data, any_ranks(problem)),
                 after = compute(permuted_data, any_ranks(permuted));
  for (const Of of : kAll) {
    Bounded expected = bounded(before, of);
    expected.values = in_order(expected.values, order, dim_of(problem, of));
    expected.bounds = in_order(expected.bounds, order, dim_of(problem, of));
    RC_ASSERT(difference(kNames[static_cast<std::size_t>(of)], bounded(after, of), expected) == "");
  }
}

// sum p v and sum p ds do not change when all scores of a query do, and ds sums to 0.
RC_GTEST_PROP(AttentionProperties, AVectorAddedToAllKeysMovesLseAlone, ()) {
  AttentionProblem problem = *any_problem();
  problem.softcap = 0, problem.sinks = false;  // a cap bends scores, and sinks stay where they are
  const sim::AttentionValues values = small_inputs(problem, any_seed());
  sim::AttentionValues shifted = values;
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  const Values shift = small_fractions(problem.head_dim, any_seed());
  for (std::size_t i = 0; i < shifted.k.size(); ++i) shifted.k[i] += shift[i % dim];
  const On on = any_ranks(problem);
  const Computed before = compute(sim::AttentionTestData(problem, values), on),
                 after = compute(sim::AttentionTestData(problem, shifted), on);
  for (const Of of : kAll) {
    Bounded expected = bounded(before, of);
    if (of == Of::lse) {
      for (std::size_t row = 0; row < expected.values.size(); ++row) {
        for (std::size_t d = 0; d < dim; ++d)
          expected.values[row] += problem.scale() * values.q[row * dim + d] * shift[d];
      }
    }
    RC_ASSERT(difference(kNames[static_cast<std::size_t>(of)], bounded(after, of), expected) == "");
  }
}

// Powers of two are exact where nothing falls below the normal numbers, as it may in f16.
RC_GTEST_PROP(AttentionProperties, DoubledValuesDoubleResultsBitForBit, ()) {
  const AttentionProblem problem = *any_problem();
  RC_PRE(problem.dtype != DType::f16);
  const sim::AttentionTestData data(problem, any_seed());
  sim::AttentionValues doubled = data.inputs();
  for (double& value : doubled.v) value *= 2;
  for (double& value : doubled.dout) value *= 4;
  const On on = any_ranks(problem);
  sim::AttentionResults expected = compute(data, on).results;
  for (double& value : expected.out) value *= 2;
  for (double& value : expected.dq) value *= 8;
  for (double& value : expected.dk) value *= 8;
  for (double& value : expected.dv) value *= 4;
  RC_ASSERT(
      inequality(compute(sim::AttentionTestData(problem, doubled, data.seed()), on).results, expected) == "");
}

// What a query does not see it does not feel: neither values that nobody sees, nor those that others see.
RC_GTEST_PROP(AttentionProperties, KeysThatAQueryDoesNotSeeChangeNoBitOfIt, ()) {
  const AttentionProblem problem = *any_problem();
  RC_PRE(problem.kv_len > 0);
  const sim::AttentionTestData data(problem, any_seed());
  sim::AttentionValues changed = data.inputs();
  const std::int64_t key = pick("key", rc::gen::inRange<std::int64_t>(0, problem.kv_len));
  const auto change = [&](Values& tensor, std::int64_t dim) {
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      if (static_cast<std::int64_t>(i) / dim % problem.kv_len == key) tensor[i] = 5 - 3 * tensor[i];
    }
  };
  change(changed.k, problem.head_dim), change(changed.v, problem.v_head_dim);
  const On on = any_ranks(problem);
  sim::AttentionResults before = compute(data, on).results,
                        after = compute(sim::AttentionTestData(problem, changed, data.seed()), on).results;
  // Others may differ: queries that see the key, and keys that these see.
  std::vector<bool> sees(static_cast<std::size_t>(problem.q_len)),
      met(static_cast<std::size_t>(problem.kv_len));
  for (std::int64_t i = 0; i < problem.q_len; ++i) {
    const KeyInterval seen = sim::visible_keys(problem, 0, i);
    if (key < seen.begin || key >= seen.end) continue;
    sees[static_cast<std::size_t>(i)] = true;
    for (std::int64_t j = seen.begin; j < seen.end; ++j) met[static_cast<std::size_t>(j)] = true;
  }
  for (const Of of : kAll) {
    const std::vector<bool>& ignored = of_keys(of) ? met : sees;
    for (sim::AttentionResults* results : {&before, &after}) {
      Values& tensor = get(*results, of);
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        if (ignored[i / dim_of(problem, of) % ignored.size()]) tensor[i] = 0;
      }
    }
  }
  RC_ASSERT(inequality(before, after) == "");
}

// With equal scores and unit vectors as values an output has a number above 0 just where its row sees a key
// that is not dropped, and with unit vectors as gradients that of v has one where the key is not dropped for
// the row: the mask itself, bit for bit, forward and backward.
RC_GTEST_PROP(AttentionProperties, TheSameCellsAreDroppedWhereverTheyAreComputed, ()) {
  AttentionProblem problem;
  problem.batch = 2, problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = 3;
  problem.q_len = problem.kv_len = pick("rows", rc::gen::inRange<std::int64_t>(1, 40));
  problem.v_head_dim = problem.q_len;
  problem.causal = true;
  problem.dropout = {0.5, pick("layer", rc::gen::inRange<std::int64_t>(0, 100))};
  const auto unit_rows = [&](std::int64_t heads) {
    Values rows(static_cast<std::size_t>(problem.batch * heads * problem.q_len * problem.q_len));
    const auto length = static_cast<std::size_t>(problem.q_len);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i % length == i / length % length ? 1 : 0;
    return rows;
  };
  const auto zeros = [&](std::int64_t heads) {
    return Values(static_cast<std::size_t>(problem.batch * heads * problem.q_len * problem.head_dim));
  };
  const sim::AttentionTestData data(problem, {zeros(4), zeros(2), unit_rows(2), unit_rows(4)}, any_seed());
  const auto above_0 = [](const Values& values) {
    std::vector<bool> bits;
    for (const double value : values) bits.push_back(value > 0);
    return bits;
  };
  const sim::AttentionResults results = compute(data, any_ranks(problem)).results;
  RC_ASSERT(above_0(results.out) == above_0(data.out()));
  RC_ASSERT(above_0(results.dv) == above_0(data.dv()));
}

RC_GTEST_PROP(AttentionProperties, BatchesAreIndependent, ()) {
  AttentionProblem problem = *any_problem();
  problem.batch = 3;
  problem.dropout = {};  // which asks for the entry's number
  const sim::AttentionTestData data(problem, any_seed());
  const On on = any_ranks(problem);
  const sim::AttentionResults all = compute(data, on).results;
  AttentionProblem single = problem;
  single.batch = 1;
  for (std::size_t b = 0; b < 3; ++b) {
    const auto of_batch = [&](const Values& tensor) {
      const auto third = static_cast<std::ptrdiff_t>(tensor.size() / 3),
                 begin = static_cast<std::ptrdiff_t>(b);
      return Values(tensor.begin() + begin * third, tensor.begin() + (begin + 1) * third);
    };
    const sim::AttentionTestData alone(single, {of_batch(data.q()), of_batch(data.k()), of_batch(data.v()),
                                                of_batch(data.dout()), data.sinks()});
    RC_ASSERT(inequality(compute(alone, on).results, {of_batch(all.out), of_batch(all.lse), of_batch(all.dq),
                                                      of_batch(all.dk), of_batch(all.dv)}) == "");
  }
}

// A batch entry with documents of its own is what it would be alone. Rows are split alike for all entries,
// and so otherwise alone.
RC_GTEST_PROP(AttentionProperties, EntriesWithDocumentsOfTheirOwnAreIndependent, ()) {
  AttentionProblem problem = *any_problem_of_entries();
  problem.dropout = {};  // which asks for the entry's number
  const sim::AttentionTestData data(problem, any_seed());
  const Computed all = compute(data, any_ranks(problem));
  AttentionProblem single = problem;
  single.batch = 1;
  single.cu_seqlens_of_entry.clear();
  const auto batch = static_cast<std::size_t>(problem.batch);
  for (std::size_t b = 0; b < batch; ++b) {
    single.cu_seqlens = problem.cu_seqlens_of_entry[b];
    const auto of_batch = [&](const Values& tensor) {
      const std::size_t size = tensor.size() / batch;
      const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(b * size);
      return Values(begin, begin + static_cast<std::ptrdiff_t>(size));
    };
    const sim::AttentionTestData alone(single, {of_batch(data.q()), of_batch(data.k()), of_batch(data.v()),
                                                of_batch(data.dout()), data.sinks()});
    const Computed one = compute(alone, any_ranks(single));
    for (const Of of : kAll) {
      const Bounded together = bounded(all, of);
      RC_ASSERT(difference(kNames[static_cast<std::size_t>(of)], bounded(one, of),
                           {of_batch(together.values), of_batch(together.bounds)}) == "");
    }
  }
}

RC_GTEST_PROP(AttentionProperties, AWindowOfOneGivesEachQueryItsOwnValue, ()) {
  AttentionProblem problem = *any_problem();
  problem.window = 1;
  problem.q_len = problem.kv_len;
  problem.query_offset.reset();
  problem.cu_seqlens.clear();
  problem.sinks = false, problem.dropout = {};
  const sim::AttentionTestData data(problem, any_seed());
  const Values out = compute(data, any_ranks(problem), false).results.out;
  const std::size_t row = static_cast<std::size_t>(problem.kv_len * problem.v_head_dim);
  const auto group = static_cast<std::size_t>(problem.heads_per_kv());
  for (std::size_t i = 0; i < out.size(); ++i) {
    RC_ASSERT(out[i] == data.v()[i / row / group * row + i % row]);
  }
}

// ---- between the passes ----

// In f32, where a step moves the outputs by more than they are rounded.
RC_GTEST_PROP(AttentionProperties, GradientsAreDifferencesOfTheForward, ()) {
  AttentionProblem problem = *any_problem_at_all();
  problem.dtype = DType::f32;
  RC_PRE(problem.q_len > 0 && problem.kv_len > 0);
  const On on = any_ranks(problem);
  const sim::AttentionValues values = small_inputs(problem, any_seed());
  const Computed computed = compute(sim::AttentionTestData(problem, values), on);
  const auto forward = [&](const sim::AttentionValues& at) {
    return bounded(compute(sim::AttentionTestData(problem, at), on, false), Of::out);
  };
  const Input input = pick("input", rc::gen::element(Input::q, Input::k, Input::v));
  const Direction direction = *any_direction(problem, input);
  const Difference found = central_difference(problem, values, direction, forward);
  const Difference gradient = along(direction, bounded(computed, input == Input::q   ? Of::dq
                                                                 : input == Input::k ? Of::dk
                                                                                     : Of::dv));
  RC_LOG() << "difference " << found.value << " +- " << found.bound << ", gradient " << gradient.value
           << " +- " << gradient.bound << "\n";
  RC_ASSERT(std::abs(found.value - gradient.value) <= found.bound + gradient.bound);
}

}  // namespace
}  // namespace cp::testing
