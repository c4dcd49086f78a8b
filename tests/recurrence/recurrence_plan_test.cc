// The plans of recurrences: what they send, in how many hops, and that every strategy gives one device's
// results.
#include "shared/recurrence/recurrence_plan.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "shared/recurrence/chunks.h"
#include "shared/recurrence/halo.h"
#include "sim/proof/run/recurrence_run.h"
#include "tests/recurrence/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using ::testing::HasSubstr;

using testing::ranks_to;

RecurrenceProblem delta_of(std::int64_t seq_len) {
  RecurrenceProblem problem;
  problem.seq_len = seq_len;
  problem.key_heads = 2, problem.value_heads = 4, problem.key_dim = 4, problem.value_dim = 6;
  return problem;
}

std::string findings_of(const sim::RecurrenceRun& run) {
  std::string text;
  for (const sim::Verdict& verdict : run.verdicts)
    text += verdict.holds ? "" : verdict.name + ": " + verdict.finding + "\n";
  for (const sim::TensorError& error : run.errors)
    text += error.holds() ? "" : error.tensor + ": " + error.finding + "\n";
  return text;
}

sim::RecurrenceRun run_of(const RecurrenceRequest& request) {
  sim::RecurrenceRunOptions options;
  options.backward = true;
  return sim::run_recurrence(sim::RecurrenceTestData(request.problem, 5), request, options);
}

int exchanges_of(const Plan& plan) {
  int count = 0;
  for (const StepRef& ref : steps_of(plan)) count += is_collective(*ref.step) ? 1 : 0;
  return count;
}

TEST(RecurrencePlan, EveryStrategyEqualsOneDevice) {
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    for (const char* const balance : {"contiguous", "head_tail"}) {
      for (const StateScan scan : state_scans()) {
        RecurrenceProblem problem = delta_of(53);
        problem.rule = rule;
        if (scan == StateScan::heads) problem.key_heads = problem.value_heads = 4;
        const RecurrenceRequest request{problem, ranks_to(4), {scan, parse_balance(balance)}, true};
        EXPECT_EQ(findings_of(run_of(request)), "") << to_string(request.strategy);
      }
    }
  }
}

RC_GTEST_PROP(RecurrencePlan, AnyProblemAndStrategyEqualsOneDevice, ()) {
  const RecurrenceRequest request = testing::any_request(testing::any_recurrence());
  RC_LOG() << to_string(request.problem) << " documents " << join(request.problem.cu_seqlens, "/") << " on "
           << join(request.ranks) << " by " << to_string(request.strategy) << "\n";
  const std::string findings = findings_of(run_of(request));
  if (!findings.empty()) RC_LOG() << findings;
  RC_ASSERT(findings.empty());
}

RC_GTEST_PROP(RecurrencePlan, ArePureAndEqualOneByOne, ()) {
  const RecurrenceRequest request = testing::any_request(testing::any_recurrence(30));
  for (const RecurrencePass pass : {RecurrencePass::forward, RecurrencePass::backward}) {
    const std::vector<Plan> plans = recurrence_plans(request, pass);
    check(plans);
    for (const Plan& plan : plans) RC_ASSERT(recurrence_plan(request, pass, plan.self) == plan);
  }
}

// Where rows are, by hand: all else is derived from it, the ledger's pieces too.
TEST(RowLayout, PlacesRowsAsTheBalanceSays) {
  const auto rows_of = [](const char* balance, Rank rank, std::vector<std::int64_t> documents) {
    RecurrenceProblem problem = delta_of(11);
    problem.cu_seqlens = std::move(documents);
    const RecurrenceRequest request{problem, ranks_to(2), {StateScan::heads, parse_balance(balance)}, true};
    const IndexSet set = indices(row_layout(request, 4, 6, DType::f32), 1, rank);
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < size(set); ++i) rows.push_back(to_global(set, i));
    return rows;
  };
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(rows_of("contiguous", 0, {}), Rows({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(rows_of("contiguous", 1, {}), Rows({6, 7, 8, 9, 10}));
  EXPECT_EQ(rows_of("head_tail", 0, {}), Rows({0, 1, 2, 9, 10}));  // parts of 3, 3, 3 and 2
  EXPECT_EQ(rows_of("head_tail", 1, {}), Rows({3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(rows_of("striped:2", 1, {}), Rows({2, 3, 6, 7, 10}));
  EXPECT_EQ(rows_of("per_document:contiguous", 0, {0, 4, 11}), Rows({0, 1, 4, 5, 6, 7}));
}

TEST(Chunks, KnowWhatComesInAndWhatGoesOn) {
  RecurrenceProblem problem = delta_of(12);
  problem.cu_seqlens = {0, 5, 5, 8, 12};
  // The first rank has [0, 3) and [9, 12), the second one [3, 9), where two documents begin.
  const std::vector<Chunk> chunks =
      chunks_of(problem.document_starts(), {{{0, 3, 3, 1}, {9, 3, 3, 1}}, {{3, 6, 6, 1}}});
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(std::tuple(chunks[0].begin, chunks[0].rows, chunks[0].index), std::tuple(0, 3, 0));
  EXPECT_FALSE(chunks[0].comes_in);
  EXPECT_TRUE(chunks[0].goes_on);
  EXPECT_EQ(chunks[1].starts, std::vector<std::int64_t>({2, 5}));
  EXPECT_TRUE(chunks[1].comes_in && chunks[1].goes_on);
  EXPECT_FALSE(chunks[1].hands_on());
  EXPECT_EQ(chunks[1].head_rows(), 2);
  EXPECT_EQ(chunks[1].tail_begin(), 5);
  EXPECT_EQ(chunks[2].local_row, 3);
  EXPECT_TRUE(chunks[2].comes_in);
  EXPECT_FALSE(chunks[2].goes_on);
}

// So refuse() need not list them. Row by row: runs of one document on a rank.
RC_GTEST_PROP(Chunks, OfContiguousRowsAndOfTheirHalvesAreAtMostTwoOfADocument, ()) {
  const RecurrenceProblem problem = testing::any_recurrence();
  const RecurrenceRequest request = testing::any_request(problem);
  const Balance& balance = request.strategy.balance;
  RC_PRE(balance.kind != Balance::Kind::striped && !balance.per_document);
  std::vector<int> rank_of(static_cast<std::size_t>(problem.seq_len));
  for (const Chunk& chunk : chunks_of(request))
    std::fill_n(rank_of.begin() + chunk.begin, chunk.rows, chunk.index);
  std::vector<std::int64_t> starts = problem.document_starts();
  starts.push_back(problem.seq_len);
  for (std::size_t document = 0; document + 1 < starts.size(); ++document) {
    std::map<int, int> runs;
    for (std::int64_t row = starts[document]; row < starts[document + 1]; ++row) {
      const int rank = rank_of[static_cast<std::size_t>(row)];
      if (row == starts[document] || rank_of[static_cast<std::size_t>(row) - 1] != rank) ++runs[rank];
    }
    for (const auto& [rank, count] : runs) RC_ASSERT(count <= 2);
  }
}

TEST(Halo, ComesFromAsManyChunksAsItReaches) {
  RecurrenceProblem problem = delta_of(10);
  // Chunks of 4, 1, 2 and 3 rows, on ranks 0, 1, 0 and 1.
  const std::vector<Chunk> chunks =
      chunks_of(problem.document_starts(), {{{0, 4, 4, 1}, {5, 2, 2, 1}}, {{4, 1, 1, 1}, {7, 3, 3, 1}}});
  const std::vector<HaloPart> parts = halo_parts(chunks, 3);
  EXPECT_EQ(parts, std::vector<HaloPart>({{0, 1, 1, 0, 3},     // rows 1 to 3 before row 4
                                          {0, 0, 2, 0, 2},     // rows 2 and 3 before row 5,
                                          {1, 0, 0, 2, 1},     // and row 4
                                          {1, 1, 0, 3, 1},     // row 4 before row 7,
                                          {0, 1, 4, 4, 2}}));  // and rows 5 and 6
  EXPECT_EQ(halo_rows(parts, 0), 3);
  EXPECT_EQ(halo_rows(parts, 1), 6);
  EXPECT_TRUE(halo_parts(chunks, 0).empty());
}

// Row by row: what a chunk's halo has are the rows before it, in order, as far as its document goes.
RC_GTEST_PROP(Halo, IsTheRowsBeforeEachChunk, ()) {
  const RecurrenceProblem problem = testing::any_recurrence();
  const RecurrenceRequest request = testing::any_request(problem);
  const auto reach = pick("reach", rc::gen::inRange<std::int64_t>(0, 5));
  const std::vector<Chunk> chunks = chunks_of(request);
  std::vector<std::vector<std::int64_t>> rows(request.ranks.size()), halos(request.ranks.size());
  for (const Chunk& chunk : chunks) {
    std::vector<std::int64_t>& own = rows[static_cast<std::size_t>(chunk.index)];
    own.resize(std::max(own.size(), static_cast<std::size_t>(chunk.local_row + chunk.rows)));
    for (std::int64_t i = 0; i < chunk.rows; ++i)
      own[static_cast<std::size_t>(chunk.local_row + i)] = chunk.begin + i;
  }
  const std::vector<std::int64_t> starts = problem.document_starts();
  std::vector<std::vector<std::int64_t>> expected(request.ranks.size());
  for (const Chunk& chunk : chunks) {
    const std::int64_t document = *std::prev(std::upper_bound(starts.begin(), starts.end(), chunk.begin));
    for (std::int64_t row = std::max(document, chunk.begin - reach); row < chunk.begin; ++row)
      expected[static_cast<std::size_t>(chunk.index)].push_back(row);
    if (chunk.comes_in)
      RC_ASSERT(halo_rows_before(problem.document_starts(), chunk, reach) ==
                chunk.begin - std::max(document, chunk.begin - reach));
  }
  for (const HaloPart& part : halo_parts(chunks, reach)) {
    std::vector<std::int64_t>& halo = halos[static_cast<std::size_t>(part.to)];
    RC_ASSERT(part.halo_row == static_cast<std::int64_t>(halo.size()));
    for (std::int64_t i = 0; i < part.rows; ++i)
      halo.push_back(rows[static_cast<std::size_t>(part.from)][static_cast<std::size_t>(part.from_row + i)]);
  }
  RC_ASSERT(halos == expected);
}

// Nine chunks, of which eight send.
TEST(RecurrencePlan, ScansTakeAsManyHopsAsTheyMust) {
  const auto hops = [](StateScan scan, int ranks) {
    return exchanges_of(
        recurrence_plan({delta_of(90), ranks_to(ranks), {scan, {}}, true}, RecurrencePass::forward, 0));
  };
  EXPECT_EQ(hops(StateScan::sequential, 9), 8);
  EXPECT_EQ(hops(StateScan::recursive_doubling, 9), 4);  // pairs of 1, 2 and 4 chunks; then the states
  EXPECT_EQ(hops(StateScan::recursive_doubling, 3), 2);
  EXPECT_EQ(hops(StateScan::all_gather, 9), 1);
  EXPECT_EQ(hops(StateScan::all_gather, 1), 0);
}

// The state of a document that ends at a rank's last row is nobody's.
TEST(RecurrencePlan, SendsNothingBetweenDocuments) {
  RecurrenceProblem problem = delta_of(40);
  problem.cu_seqlens = {0, 10, 20, 30, 40};
  for (const StateScan scan : {StateScan::sequential, StateScan::recursive_doubling, StateScan::all_gather}) {
    const RecurrenceRequest request{problem, ranks_to(4), {scan, {}}, true};
    for (const Plan& plan : recurrence_plans(request, RecurrencePass::forward)) {
      EXPECT_EQ(exchanges_of(plan), 0);
      EXPECT_EQ(steps_of(plan).size(), 1U);
    }
  }
}

// Of two documents of two ranks each, both states go in one hop.
TEST(RecurrencePlan, ChainsOfDocumentsGoSideBySide) {
  RecurrenceProblem problem = delta_of(40);
  problem.cu_seqlens = {0, 20, 40};
  const RecurrenceRequest request{problem, ranks_to(4), {StateScan::sequential, {}}, true};
  EXPECT_EQ(exchanges_of(recurrence_plan(request, RecurrencePass::forward, 3)), 1);
  EXPECT_EQ(findings_of(run_of(request)), "");
}

TEST(RecurrencePlan, BytesAreThoseOfTheStates) {
  const RecurrenceProblem problem = delta_of(64);
  constexpr std::int64_t kState = 384, kTransition = 256;  // 4 bytes, 4 heads of 4 x 6 and of 4 x 4
  const auto received = [&](StateScan scan) {
    return run_of({problem, ranks_to(4), {scan, {}}, true}).forward.received;
  };
  EXPECT_EQ(received(StateScan::sequential), (sim::StateBytes{3 * kState, 0, 0}));
  // Chunk 0's pair goes to three ranks, that of 1 to two, that of 2 to one; 0 has no transition to send.
  EXPECT_EQ(received(StateScan::all_gather), (sim::StateBytes{6 * kState, 3 * kTransition, 0}));
  // Pairs of 1 chunk to chunks 1 and 2, of which that of chunk 1 has a transition, and that of 2 chunks, 0
  // and 1, which is complete, to chunk 2; then three states.
  EXPECT_EQ(received(StateScan::recursive_doubling), (sim::StateBytes{6 * kState, kTransition, 0}));
}

TEST(RecurrencePlan, RefusesWithWhatWorks) {
  const auto reason = [](const RecurrenceProblem& problem, int cp, const RecurrenceStrategy& strategy) {
    const auto refusal = refuse(problem, cp, strategy);
    if (!refusal) return std::string("legal");
    EXPECT_FALSE(refuse(problem, cp, refusal->strategy)) << "the alternative is refused, too";
    return refusal->reason;
  };
  const RecurrenceProblem problem = delta_of(64);
  EXPECT_THAT(reason(problem, 4, {StateScan::heads, {}}), HasSubstr("use cp=2, or strategy all_gather"));
  EXPECT_EQ(reason(problem, 2, {StateScan::heads, parse_balance("striped:4")}), "legal");
  EXPECT_THAT(reason(problem, 2, {StateScan::sequential, parse_balance("striped:4")}),
              HasSubstr("a rank has 8 chunks of one document"));
  EXPECT_THAT(reason(problem, 2, {StateScan::all_gather, parse_balance("cost:4")}),
              HasSubstr("use contiguous"));
  RecurrenceProblem endless = delta_of(std::int64_t{1} << 40);
  EXPECT_THAT(reason(endless, 2, {StateScan::all_gather, parse_balance("striped:1")}),
              HasSubstr("a rank has 549755813888 chunks of one document"));
  RecurrenceProblem long_keys = problem;
  long_keys.key_dim = 1100;
  EXPECT_THAT(refuse(long_keys, 2, {}, gpu_target("sm90")).value_or(RecurrenceRefusal{}).reason,
              HasSubstr("is more than the 1024"));
  EXPECT_THAT(reason(problem, 3, {StateScan::all_gather, parse_balance("striped:4")}),
              HasSubstr("use balance contiguous or head_tail"));
}

TEST(RecurrenceProblem, RefusesWhatMakesNoSense) {
  const auto error = [](auto change) {
    RecurrenceProblem problem = delta_of(64);
    change(problem);
    try {
      validate_problem(problem);
    } catch (const InvalidInput& refused) {
      return std::string(refused.what());
    }
    return std::string("legal");
  };
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.key_heads = 3; }), HasSubstr("use key_heads=2"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.value_dim = 0; }), HasSubstr("v_head_dim=0"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.dtype = DType::i32; }), HasSubstr("use f32, f16 or bf16"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.cu_seqlens = {0, 30}; }), HasSubstr("end at 64"));
  EXPECT_THAT(error([](RecurrenceProblem& p) {
                p.cu_seqlens = {0, 40, 30, 64};
              }),
              HasSubstr("do not descend"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.key_dim = p.value_dim = std::int64_t{1} << 40; }),
              HasSubstr("2^63 bytes"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.scale = INFINITY; }), HasSubstr("no number"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.scale = 1e39; }), HasSubstr("no number of f32"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.value_heads = 4000000007, p.key_heads = 4000000006; }),
              HasSubstr("use key_heads=1"));
  EXPECT_THAT(error([](RecurrenceProblem& p) { p.key_dim = p.value_dim = std::int64_t{1} << 29; }),
              HasSubstr("what the backward pass keeps"));
}

}  // namespace
}  // namespace cp
