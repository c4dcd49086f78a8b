// The host kernels of recurrences against one another and against the formulas; their results against one
// device's in float64 are tests of whole runs (tests/proof, tests/recurrence).
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/recurrence_rules.h"
#include "tests/kernels/kernel_memory.h"

namespace cp {
namespace {

using testing::KernelMemory;

// Whole numbers of eighths below 1 have exact products and sums here.
std::vector<double> eighths(std::size_t count, int salt) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<double>((static_cast<int>(i) * 37 + salt * 11) % 13 - 6) / 8;
  return values;
}

struct Sizes {
  std::int64_t batch = 1, rows = 6, key_heads = 1, value_heads = 2, keys = 3, values = 4;
  std::size_t count(std::initializer_list<std::int64_t> sizes) const {
    return static_cast<std::size_t>(
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()));
  }
};

// The tensors of rows in memory, and views of some of them.
struct Tensors {
  Sizes s;
  KernelMemory memory;
  BufferId q, k, v, log_decay, beta;

  explicit Tensors(const Sizes& sizes) : s(sizes) {
    q = memory.add(DType::f32, eighths(s.count({s.batch, s.rows, s.key_heads, s.keys}), 1));
    k = memory.add(DType::f32, eighths(s.count({s.batch, s.rows, s.key_heads, s.keys}), 2));
    v = memory.add(DType::f32, eighths(s.count({s.batch, s.rows, s.value_heads, s.values}), 3));
    std::vector<double> decays = eighths(s.count({s.batch, s.rows, s.value_heads}), 4);
    for (double& decay : decays) decay = -std::abs(decay);
    log_decay = memory.add(DType::f32, decays);
    beta = memory.add(DType::f32, eighths(s.count({s.batch, s.rows, s.value_heads}), 5));
  }
  View rows(BufferId buffer, Shape of_row, std::int64_t begin, std::int64_t count) const {
    Shape shape = {s.batch, s.rows};
    shape.insert(shape.end(), of_row.begin(), of_row.end());
    View view = dense_view(buffer, 0, shape);
    view.offset = begin * view.strides[1], view.shape[1] = count;
    return view;
  }
  View keys(BufferId buffer, std::int64_t begin, std::int64_t count) const {
    return rows(buffer, {s.key_heads, s.keys}, begin, count);
  }
  View values(BufferId buffer, std::int64_t begin, std::int64_t count) const {
    return rows(buffer, {s.value_heads, s.values}, begin, count);
  }
  View numbers(BufferId buffer, std::int64_t begin, std::int64_t count) const {
    return rows(buffer, {s.value_heads}, begin, count);
  }
  View state() {
    const Shape shape = {s.batch, s.value_heads, s.keys, s.values};
    return dense_view(memory.add(DType::f32, std::vector<double>(static_cast<std::size_t>(numel(shape)))), 0,
                      shape);
  }
  View transition(RecurrenceRule rule) {
    const std::int64_t n = rule == RecurrenceRule::decay ? 1 : s.keys;
    const Shape shape = {s.batch, s.value_heads, n, n};
    return dense_view(memory.add(DType::f32, std::vector<double>(static_cast<std::size_t>(numel(shape)))), 0,
                      shape);
  }
  BufferId outputs() {
    return memory.add(DType::f32,
                      std::vector<double>(s.count({s.batch, s.rows, s.value_heads, s.values}), NAN));
  }
  RecurrenceForward forward(RecurrenceRule rule, const View& state, BufferId out, std::int64_t begin,
                            std::int64_t count) const {
    return {keys(q, begin, count),
            keys(k, begin, count),
            values(v, begin, count),
            numbers(log_decay, begin, count),
            numbers(beta, begin, count),
            state,
            values(out, begin, count),
            {},
            0.5,
            rule};
  }
  RecurrenceSummary summary(RecurrenceRule rule, const View& state, const View& transition,
                            std::int64_t begin, std::int64_t count) const {
    return {keys(k, begin, count),
            values(v, begin, count),
            numbers(log_decay, begin, count),
            numbers(beta, begin, count),
            state,
            transition,
            rule};
  }
};

void expect_values_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

// Some tens of sums of numbers below 4 in f32.
constexpr double kClose = 64 * 4 * 0x1p-24;

TEST(RecurrenceKernels, RowsInTwoStepsAreThoseOfOne) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    for (const std::int64_t cut : {1, 3, 5}) {
      Tensors t({2, 6, 2, 4, 3, 4});
      const BufferId whole = t.outputs(), parts = t.outputs();
      t.memory.run(t.forward(rule, View{}, whole, 0, 6));
      const View state = t.state();
      t.memory.run(t.summary(rule, state, View{}, 0, cut));
      t.memory.run(t.forward(rule, View{}, parts, 0, cut));
      t.memory.run(t.forward(rule, state, parts, cut, 6 - cut));
      expect_values_near(t.memory.values(parts), t.memory.values(whole), kClose);
    }
  }
}

// A state that is handed on is that of a summary, in a place of its own and in place.
TEST(RecurrenceKernels, TheFinalStateGoesOnWithTheNextRows) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    Tensors t({2, 6, 2, 4, 3, 4});
    const BufferId whole = t.outputs(), parts = t.outputs();
    const View all = t.state(), state = t.state(), apart = t.state();
    RecurrenceForward once = t.forward(rule, View{}, whole, 0, 6);
    t.memory.run(once);
    const std::vector<double> without = t.memory.values(whole);
    once.final_state = all;
    t.memory.run(once);
    EXPECT_EQ(t.memory.values(whole), without);
    t.memory.run(t.summary(rule, apart, View{}, 0, 6));
    EXPECT_EQ(t.memory.values(all.buffer), t.memory.values(apart.buffer));
    for (std::int64_t row = 0; row < 6; ++row) {
      RecurrenceForward one = t.forward(rule, state, parts, row, 1);
      one.final_state = state;
      t.memory.run(one);
    }
    // The same operations on each row, in the same order.
    EXPECT_EQ(t.memory.values(parts), t.memory.values(whole));
    EXPECT_EQ(t.memory.values(state.buffer), t.memory.values(all.buffer));
  }
}

TEST(RecurrenceKernels, PairsOfTwoPartsJoinToThatOfAll) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    Tensors t({1, 6, 1, 3, 3, 4});
    const View all = t.state(), first = t.state(), second = t.state();
    const View through_all = t.transition(rule), one = t.transition(rule), other = t.transition(rule),
               joined = t.transition(rule);
    t.memory.run(t.summary(rule, all, through_all, 0, 6));
    t.memory.run(t.summary(rule, first, one, 0, 2));
    t.memory.run(t.summary(rule, second, other, 2, 4));
    t.memory.run(RecurrenceJoin{other, first, second, true, false});
    t.memory.run(RecurrenceJoin{other, one, joined, false, false});
    expect_values_near(t.memory.values(second.buffer), t.memory.values(all.buffer), kClose);
    expect_values_near(t.memory.values(joined.buffer), t.memory.values(through_all.buffer), kClose);
  }
}

// <T x, y> = <x, T^t y>, and what the rows' outputs make of a state is linear in it.
TEST(RecurrenceKernels, TheSummaryOfGradientsIsTheTransposeOfOutputs) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    Tensors t({1, 6, 1, 2, 3, 4});
    const BufferId dout = t.memory.add(DType::f32, eighths(t.s.count({1, 6, 2, 4}), 7));
    const View state =
        dense_view(t.memory.add(DType::f32, eighths(t.s.count({1, 2, 3, 4}), 8)), 0, {1, 2, 3, 4});
    const View dstate = t.state();
    const BufferId with = t.outputs(), without = t.outputs();
    t.memory.run(t.forward(rule, state, with, 0, 6)), t.memory.run(t.forward(rule, View{}, without, 0, 6));
    t.memory.run(RecurrenceSummaryGradient{t.keys(t.q, 0, 6), t.keys(t.k, 0, 6), t.numbers(t.log_decay, 0, 6),
                                           t.numbers(t.beta, 0, 6), t.values(dout, 0, 6), dstate, 0.5, rule});
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    std::vector<double> outputs = t.memory.values(with);
    const std::vector<double> of_rows = t.memory.values(without);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] -= of_rows[i];
    EXPECT_NEAR(dot(outputs, t.memory.values(dout)),
                dot(t.memory.values(state.buffer), t.memory.values(dstate.buffer)), 10 * kClose);
  }
}

TEST(RecurrenceKernels, JoinIsAProductOfEachHead) {
  const std::int64_t n = 3, columns = 5;
  KernelMemory memory;
  const std::vector<double> t = eighths(36, 1), x = eighths(60, 2), y = eighths(60, 3);
  const Shape square = {2, 2, n, n}, wide = {2, 2, n, columns};
  for (const bool transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const BufferId a = memory.add(DType::f32, t), b = memory.add(DType::f32, x),
                     c = memory.add(DType::f32, y);
      memory.run(RecurrenceJoin{dense_view(a, 0, square), dense_view(b, 0, wide), dense_view(c, 0, wide),
                                accumulate, transposed});
      const std::vector<double> found = memory.values(c);
      for (std::size_t lane = 0; lane < 4; ++lane) {
        for (std::size_t i = 0; i < 3; ++i) {
          for (std::size_t j = 0; j < 5; ++j) {
            double sum = accumulate ? y[lane * 15 + i * 5 + j] : 0;
            for (std::size_t k = 0; k < 3; ++k)
              sum += t[lane * 9 + (transposed ? k * 3 + i : i * 3 + k)] * x[lane * 15 + k * 5 + j];
            EXPECT_EQ(found[lane * 15 + i * 5 + j], sum);  // eighths: exact
          }
        }
      }
    }
  }
}

// One row and one head, by hand: S = 0, so that out = scale (q k) beta v.
TEST(RecurrenceKernels, ByHand) {
  KernelMemory memory;
  const auto view = [&](const std::vector<double>& values, Shape shape) {
    return dense_view(memory.add(DType::f32, values), 0, std::move(shape));
  };
  const View q = view({1, 2, 4, 1}, {1, 2, 1, 2}), k = view({1, 0, 0, 1}, {1, 2, 1, 2}),
             v = view({3, 5}, {1, 2, 1, 1}), out = view({0, 0}, {1, 2, 1, 1});
  const View log_decay = view({0, std::log(0.5)}, {1, 2, 1}), beta = view({2, 1}, {1, 2, 1});
  // S = (6, 0); out = 0.5 * 6. Then S = (3, 5): out = 0.5 (12 + 5).
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    memory.run(RecurrenceForward{q, k, v, log_decay, beta, View{}, out, {}, 0.5, rule});
    EXPECT_FLOAT_EQ(static_cast<float>(memory.values(out.buffer)[0]), 3);
    EXPECT_FLOAT_EQ(static_cast<float>(memory.values(out.buffer)[1]), 8.5);
  }
  // With a document at row 1 the first row is forgotten: out = 0.5 (0 + 5).
  memory.run(RecurrenceForward{q, k, v, log_decay, beta, View{}, out, {1}, 0.5, RecurrenceRule::delta});
  EXPECT_FLOAT_EQ(static_cast<float>(memory.values(out.buffer)[1]), 2.5);
  // The same key again takes the place of what it had: S = (3, 0) with k = (1, 0) and beta 1 is 5 k.
  const View again = view({1, 0, 1, 0}, {1, 2, 1, 2});
  memory.run(RecurrenceForward{q, again, v, log_decay, beta, View{}, out, {}, 0.5, RecurrenceRule::delta});
  EXPECT_FLOAT_EQ(static_cast<float>(memory.values(out.buffer)[1]), 10);
}

TEST(RecurrenceRules, WorkspaceIsTwiceTheRootOfTheRows) {
  EXPECT_EQ(recurrence_block_rows(0), 1);
  EXPECT_EQ(recurrence_block_rows(1), 1);
  EXPECT_EQ(recurrence_block_rows(64), 8);
  EXPECT_EQ(recurrence_block_rows(65), 9);
  // 9 rows of a block, 8 blocks, and the two states that go through.
  EXPECT_EQ(recurrence_workspace_numel(65, 2, 3, 4), (9 + 8 + 2) * 2 * 3 * 4);
}

}  // namespace
}  // namespace cp
