// The bounds of recurrent layers: what the host kernels compute is within them, in one piece and in chunks,
// and what is wrong is not.
#include "sim/proof/run/recurrence_tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "tests/proof/chunked_recurrence.h"
#include "tests/recurrence/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

using Scan = ChunkedRecurrence::Scan;

struct RecurrenceTensor {
  const char* name;
  const std::vector<double>&found, &expected;
  const sim::TensorTolerance& tolerance;

  std::size_t width() const { return expected.size() / tolerance.rows.size(); }
  // The largest error, in tolerances of the element; and the largest tolerance, in largest values.
  double worst() const {
    double most = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      most = std::max(most, std::abs(found[i] - expected[i]) / tolerance.at(i / width(), expected[i]));
    return most;
  }
  double relative() const {
    double tolerated = 0, value = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      tolerated = std::max(tolerated, tolerance.at(i / width(), expected[i]));
      value = std::max(value, std::abs(expected[i]));
    }
    return tolerated / value;
  }
  // Where the result is not within the tolerance; empty if nowhere.
  std::string finding() const {
    if (found.size() != expected.size()) return str(name, " has ", found.size(), " elements");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (tolerance.holds(i / width(), expected[i], found[i])) continue;
      return str(name, "[", i, "] is ", found[i], " and not ", expected[i], " within ",
                 tolerance.at(i / width(), expected[i]));
    }
    return "";
  }
};

std::vector<RecurrenceTensor> tensors_of(const sim::RecurrenceTestData& data,
                                         const RecurrenceResults& results,
                                         const sim::RecurrenceTolerances& tolerances) {
  return {{"out", results.out, data.out(), tolerances.out},
          {"dq", results.dq, data.dq(), tolerances.dq},
          {"dk", results.dk, data.dk(), tolerances.dk},
          {"dv", results.dv, data.dv(), tolerances.dv},
          {"dlog_decay", results.dlog_decay, data.dlog_decay(), tolerances.dlog_decay},
          {"dbeta", results.dbeta, data.dbeta(), tolerances.dbeta}};
}

std::string findings(const sim::RecurrenceTestData& data, ChunkedRecurrence run, int ranks) {
  const RecurrenceResults results = run.run();
  const sim::RecurrenceTolerances tolerances = sim::recurrence_tolerances(data, ranks, true);
  std::string all;
  for (const RecurrenceTensor& tensor : tensors_of(data, results, tolerances)) all += tensor.finding();
  return all;
}

RC_GTEST_PROP(RecurrenceTolerances, HoldForTheHostKernels, ()) {
  const sim::RecurrenceTestData data(any_recurrence(), pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  RC_ASSERT(findings(data, {data, {0}, Scan::sequential}, 1) == "");
}

// Up to two chunks of a document for each rank.
RC_GTEST_PROP(RecurrenceTolerances, HoldForScansOfChunks, ()) {
  const sim::RecurrenceTestData data(any_recurrence(), pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  const int ranks = pick("ranks", rc::gen::inRange(2, 5));
  std::vector<std::int64_t> begins(1);
  for (int i = 1; i < 2 * ranks; ++i)
    begins.push_back(pick("begin", rc::gen::inRange<std::int64_t>(0, data.problem().seq_len)));
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  for (const Scan scan : {Scan::sequential, Scan::doubling})
    RC_ASSERT(findings(data, {data, begins, scan}, ranks) == "");
}

// What is drawn is kind to errors; these are not. Rows that erase more than there is let them grow; where all
// rows decay alike, the exponential is off by the same amount in each; and what decays at once leaves states
// of many sizes.
RC_GTEST_PROP(RecurrenceTolerances, HoldForInputsOfOtherKinds, ()) {
  RecurrenceProblem problem = any_recurrence();
  problem.dtype = DType::f32;  // what grows stays within its range
  sim::RecurrenceValues values =
      sim::RecurrenceTestData(problem, pick("seed", rc::gen::arbitrary<std::uint64_t>())).inputs();
  const std::string kind = pick("kind", rc::gen::element<std::string>("erasing", "alike", "decaying"));
  if (kind == "erasing") {
    for (double& beta : values.beta) beta *= 3;
  } else if (kind == "alike") {
    std::fill(values.log_decay.begin(), values.log_decay.end(), -0.003);
    std::fill(values.beta.begin(), values.beta.end(), 0.3);
  } else {
    for (double& log_decay : values.log_decay) log_decay *= 300;
  }
  const sim::RecurrenceTestData data(problem, values);
  RC_ASSERT(findings(data, {data, {0}, Scan::sequential}, 1) == "");
}

RecurrenceProblem three_hundred_rows(RecurrenceRule rule) {
  RecurrenceProblem problem;
  problem.rule = rule;
  problem.seq_len = 300;
  problem.key_heads = 1, problem.value_heads = 2;
  problem.key_dim = 16, problem.value_dim = 8;
  return problem;
}

std::vector<std::int64_t> equal_chunks(std::int64_t rows, std::int64_t chunks) {
  std::vector<std::int64_t> begins;
  for (std::int64_t c = 0; c < chunks; ++c) begins.push_back(rows * c / chunks);
  return begins;
}

// Products of transitions round most where there are many dims.
TEST(RecurrenceTolerances, HoldForJoinsOfLargeTransitions) {
  RecurrenceProblem problem = three_hundred_rows(RecurrenceRule::delta);
  problem.key_dim = 48;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const sim::RecurrenceTestData data(problem, seed);
    for (const std::int64_t chunks : {2, 5, 16})
      EXPECT_EQ(findings(data, {data, equal_chunks(300, chunks), Scan::doubling}, 8), "") << chunks;
  }
}

// Bounds are far below the values, and not too far above the errors.
TEST(RecurrenceTolerances, AreOfUse) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    for (const int ranks : {1, 4}) {
      const sim::RecurrenceTestData data(three_hundred_rows(rule), 1);
      ChunkedRecurrence run(data, equal_chunks(300, ranks == 1 ? 1 : 2 * ranks), Scan::doubling);
      const RecurrenceResults results = run.run();
      const sim::RecurrenceTolerances tolerances = sim::recurrence_tolerances(data, ranks, true);
      for (const RecurrenceTensor& tensor : tensors_of(data, results, tolerances)) {
        const std::string which = str(tensor.name, " with ", name(rule), " on ", ranks);
        EXPECT_LT(tensor.relative(), 1e-3) << which;
        EXPECT_GT(tensor.worst(), 1e-3) << which << ": the bounds are a thousand times what happens";
        EXPECT_LT(tensor.worst(), 0.5) << which;
      }
    }
  }
}

// Which of the results that are not within their bounds.
std::vector<std::string> wrong_tensors(const sim::RecurrenceTestData& data, ChunkedRecurrence run,
                                       int ranks) {
  const RecurrenceResults results = run.run();
  const sim::RecurrenceTolerances tolerances = sim::recurrence_tolerances(data, ranks, true);
  std::vector<std::string> wrong;
  for (const RecurrenceTensor& tensor : tensors_of(data, results, tolerances)) {
    if (!tensor.finding().empty()) wrong.emplace_back(tensor.name);
  }
  return wrong;
}

// A state, or a gradient, that a chunk does not get shows in all that depends on it.
TEST(RecurrenceTolerances, FindAChunkThatGetsNoState) {
  using Names = std::vector<std::string>;
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    const sim::RecurrenceTestData data(three_hundred_rows(rule), 1);
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{15}}) {
      ChunkedRecurrence no_state(data, equal_chunks(300, 16), Scan::sequential);
      no_state.lose_state(chunk);
      EXPECT_EQ(wrong_tensors(data, no_state, 8), rule == RecurrenceRule::decay
                                                      ? Names({"out", "dq", "dlog_decay"})
                                                      : Names({"out", "dq", "dk", "dlog_decay", "dbeta"}))
          << chunk << ", " << name(rule);
      ChunkedRecurrence no_gradient(data, equal_chunks(300, 16), Scan::sequential);
      no_gradient.lose_gradient(chunk - 1);
      EXPECT_EQ(wrong_tensors(data, no_gradient, 8), Names({"dk", "dv", "dlog_decay", "dbeta"}))
          << chunk - 1 << ", " << name(rule);
    }
  }
}

TEST(RecurrenceTolerances, GrowWithTheRanksAndWithTheRoundingOfResults) {
  RecurrenceProblem problem = three_hundred_rows(RecurrenceRule::delta);
  const sim::RecurrenceTestData data(problem, 1);
  const sim::RecurrenceTolerances of_one = sim::recurrence_tolerances(data, 1, false),
                                  of_four = sim::recurrence_tolerances(data, 4, false);
  EXPECT_TRUE(of_one.dq.rows.empty());
  EXPECT_EQ(of_one.out.relative, 0);
  for (std::size_t row = 2; row < of_one.out.rows.size(); ++row)
    EXPECT_LT(of_one.out.rows[row], of_four.out.rows[row]) << row;
  problem.dtype = DType::bf16;
  EXPECT_EQ(sim::recurrence_tolerances(sim::RecurrenceTestData(problem, 1), 1, false).out.relative, 0x1p-8);
}

// What a document computes depends on no other, and nor do its bounds.
TEST(RecurrenceTolerances, BeginAnewWithEachDocument) {
  RecurrenceProblem problem = three_hundred_rows(RecurrenceRule::delta);
  problem.cu_seqlens = {0, 150, 300};
  sim::RecurrenceValues values = sim::RecurrenceTestData(problem, 1).inputs();
  for (std::vector<double>* tensor :
       {&values.q, &values.k, &values.v, &values.dout, &values.log_decay, &values.beta})
    std::copy_n(tensor->begin(), tensor->size() / 2,
                tensor->begin() + static_cast<std::ptrdiff_t>(tensor->size() / 2));
  const sim::RecurrenceTestData data(problem, values);
  const sim::RecurrenceTolerances t = sim::recurrence_tolerances(data, 3, true);
  for (const sim::TensorTolerance* tensor : {&t.out, &t.dq, &t.dk, &t.dv, &t.dlog_decay, &t.dbeta}) {
    for (std::size_t row = 0; row < tensor->rows.size() / 2; ++row)
      ASSERT_EQ(tensor->rows[row], tensor->rows[row + tensor->rows.size() / 2]);
  }
}

}  // namespace
}  // namespace cp::testing
