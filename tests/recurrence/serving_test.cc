// Serving: a prompt that is read in one or several steps, and tokens that are written behind it one by one,
// give what one device's recurrence over the whole sequence gives.
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/plan/operations.h"
#include "shared/recurrence/halo.h"
#include "shared/recurrence/recurrence_plan.h"
#include "shared/transformer/parallel_layout.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/ledger/recurrence_ledger.h"
#include "sim/proof/run/recurrence_shards.h"
#include "tests/recurrence/problem_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

// Ranks that serve the requests of a problem, whose rows come in steps: each rank keeps the states of the
// steps before.
class Server {
 public:
  Server(const sim::RecurrenceTestData& data, std::vector<Rank> ranks, const RecurrenceStrategy& strategy)
      : data_(data), ranks_(std::move(ranks)), strategy_(strategy), fabric_(static_cast<int>(ranks_.size())) {
    for (const Rank rank : ranks_) {
      const std::int64_t numel = cached_state_numel(request_of(1), index_of(rank));
      states_.emplace_back(idx(numel * size_bytes(DType::f32)), std::byte{0});
    }
  }

  RecurrenceRequest request_of(std::int64_t rows) const {
    RecurrenceProblem problem = data_.problem();
    problem.seq_len = rows, problem.cached_state = true;
    return {problem, ranks_, strategy_, false};
  }

  // Reads the next rows: what does not hold of their plans and outputs.
  std::string serve(std::int64_t rows, const sim::RecurrenceTolerances& tolerances) {
    const RecurrenceRequest request = request_of(rows);
    const std::vector<Plan> plans = recurrence_plans(request, RecurrencePass::forward);
    check(plans);
    const sim::RecurrenceLedger ledger = sim::keep_ledger(request, RecurrencePass::forward, plans);
    const sim::RecurrenceShards shards(data_, request, first_row_);
    std::vector<std::string> findings(plans.size());
    fabric_.run([&](Rank rank, Device& device) {
      const Plan& plan = plans[idx(rank)];
      sim::RankBuffers buffers;
      std::vector<std::byte>& state = states_[idx(index_of(rank))];
      buffers["state"] = state;
      execute(plan, device, shards.bind(plan, buffers), nullptr);
      state = buffers["state"];
      for (const auto& [tensor, error] : shards.compare(plan, buffers, tolerances))
        findings[idx(rank)] += error.finding;
    });
    const std::int64_t first = std::exchange(first_row_, first_row_ + rows);
    std::string all = str(ledger.states.summary(), ledger.bytes.summary());
    for (const std::string& finding : findings) all += finding;
    return all.empty() ? "" : str("rows from ", first, " on: ", all);
  }

 private:
  int index_of(Rank rank) const {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }

  const sim::RecurrenceTestData& data_;
  const std::vector<Rank> ranks_;
  const RecurrenceStrategy strategy_;
  sim::Fabric fabric_;
  std::vector<std::vector<std::byte>> states_;  // by index among the cp ranks
  std::int64_t first_row_ = 0;
};

// Serves all rows of the problem: a step for each of the numbers of rows. On several ranks a step's scan
// joins the states of as many chunks as ranks have, which the bound counts for all steps of several rows.
std::string findings_of(const sim::RecurrenceTestData& data, const std::vector<Rank>& ranks,
                        const RecurrenceStrategy& strategy, const std::vector<std::int64_t>& steps) {
  const auto scans = std::count_if(steps.begin(), steps.end(), [](std::int64_t rows) { return rows > 1; });
  const int joined =
      ranks.size() == 1 ? 1 : static_cast<int>(std::ssize(ranks) * std::max<std::ptrdiff_t>(1, scans));
  const sim::RecurrenceTolerances tolerances = sim::recurrence_tolerances(data, joined, false);
  Server server(data, ranks, strategy);
  std::string findings;
  for (const std::int64_t rows : steps) findings += server.serve(rows, tolerances);
  return findings;
}

RecurrenceProblem problem_of(RecurrenceRule rule, std::int64_t rows) {
  RecurrenceProblem problem;
  problem.rule = rule, problem.batch = 3, problem.seq_len = rows;
  problem.key_heads = 4, problem.value_heads = 8, problem.key_dim = 5, problem.value_dim = 6;
  return problem;
}

TEST(ServedRecurrence, APromptAndItsTokensEqualOneDevicesSequence) {
  const std::vector<std::int64_t> steps = {17, 6, 1, 1, 1, 1, 1};
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    const sim::RecurrenceTestData data(problem_of(rule, 28), 7);
    for (const char* const balance : {"contiguous", "head_tail"}) {
      for (const StateScan scan : state_scans()) {
        for (const int cp : {1, 2, 3, 4}) {
          if (scan == StateScan::heads && cp == 3) continue;  // does not divide 4 key heads
          const RecurrenceStrategy strategy{scan, parse_balance(balance)};
          EXPECT_EQ(findings_of(data, ranks_to(cp), strategy, steps), "")
              << name(rule) << " on " << cp << " by " << to_string(strategy);
        }
      }
    }
  }
}

// The heads of a tp rank: its part of each row.
sim::RecurrenceTestData of_tp_rank(const sim::RecurrenceTestData& all, int rank, int tp) {
  RecurrenceProblem problem = all.problem();
  const std::size_t rows = idx(problem.batch * problem.seq_len);
  const auto part = [&](const std::vector<double>& tensor) {
    const std::size_t width = tensor.size() / rows, own = width / idx(tp);
    std::vector<double> values;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(row * width + idx(rank) * own);
      values.insert(values.end(), begin, begin + static_cast<std::ptrdiff_t>(own));
    }
    return values;
  };
  problem.key_heads /= tp, problem.value_heads /= tp;
  sim::RecurrenceTestData data(problem, {part(all.q()), part(all.k()), part(all.v()), part(all.dout()),
                                         part(all.log_decay()), part(all.beta())});
  EXPECT_EQ(data.out(), part(all.out()));  // its heads are those of one device
  return data;
}

// What a layout's recurrent layers do of a prompt and of the tokens behind it, on every tp rank.
TEST(ServedRecurrence, TheRanksOfALayoutEqualOneDevice) {
  for (const char* const text :
       {"tp=2,cp=3,strategy=pass_q,micro_batch=3", "tp=4,cp=2,strategy=ring,balance=head_tail,micro_batch=3",
        "tp=2,cp=2,strategy=pass_q,scan=heads,micro_batch=3"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    const sim::RecurrenceTestData all(problem_of(RecurrenceRule::delta, 23), 7);
    Transformer model;
    model.recurrence = Recurrence{RecurrenceRule::delta, 4, 8, 5, 6, 4, false};
    Workload workload;
    workload.dtype = DType::f32, workload.phase = Phase::prefill, workload.seq_len = 19;
    const RecurrenceProblem prompt = recurrence_problem(model, workload, layout);
    workload.phase = Phase::decode, workload.seq_len = 20, workload.cached = 19, workload.new_tokens = 4;
    const RecurrenceProblem token = recurrence_problem(model, workload, layout);
    for (int rank = 0; rank < layout.tp; ++rank) {
      const sim::RecurrenceTestData data = of_tp_rank(all, rank, layout.tp);
      const Server server(data, ranks_to(layout.cp), recurrence_strategy(layout));
      EXPECT_EQ(server.request_of(19).problem, prompt) << text;
      EXPECT_EQ(server.request_of(1).problem, token) << text;
      EXPECT_EQ(findings_of(data, ranks_to(layout.cp), recurrence_strategy(layout), {19, 1, 1, 1, 1}), "")
          << text << ", tp rank " << rank;
    }
  }
}

RC_GTEST_PROP(ServedRecurrence, AnySequenceInAnyStepsEqualsOneDevices, ()) {
  RecurrenceProblem problem = any_recurrence(60);
  problem.cu_seqlens = {};
  RecurrenceRequest request = any_request(problem, 4);
  // Whatever is legal for all rows is for fewer: a rank has no more chunks then.
  std::vector<std::int64_t> steps;
  for (std::int64_t left = problem.seq_len; left > 0; left -= steps.back())
    steps.push_back(std::min(left, pick("rows", rc::gen::element<std::int64_t>(1, 1, 2, 5, 40))));
  std::vector<Rank> ranks = request.ranks;
  const Rank least = *std::min_element(ranks.begin(), ranks.end());
  for (Rank& rank : ranks) rank -= least;
  const std::string findings =
      findings_of(sim::RecurrenceTestData(problem, 7), ranks, request.strategy, steps);
  RC_LOG() << to_string(problem) << " on " << join(ranks) << " by " << to_string(request.strategy)
           << " in steps of " << join(steps) << ": " << findings << "\n";
  RC_ASSERT(findings.empty());
}

// A token's row is one chunk, on the rank that holds the state: nothing moves, and the state is updated in
// place. With heads each rank takes its heads' part.
TEST(ServedRecurrence, ATokenUpdatesTheStateWhereItLies) {
  RecurrenceProblem problem = problem_of(RecurrenceRule::delta, 1);
  problem.cached_state = true;
  const auto steps = [&](StateScan scan, Rank rank) {
    const Plan plan =
        recurrence_plan({problem, ranks_to(4), {scan, {}}, false}, RecurrencePass::forward, rank);
    return steps_of(plan).size();
  };
  EXPECT_EQ(steps(StateScan::all_gather, 0), 1U);
  EXPECT_EQ(steps(StateScan::all_gather, 2), 0U);
  const Plan plan =
      recurrence_plan({problem, ranks_to(4), {StateScan::all_gather, {}}, false}, RecurrencePass::forward, 0);
  const auto& kernel = std::get<RecurrenceForward>(std::get<Kernel>(steps_of(plan).front().step->work));
  EXPECT_EQ(kernel.state, kernel.final_state);
  EXPECT_EQ(kernel.state.numel(), 3 * 8 * 5 * 6);
  for (const int index : {0, 1, 2, 3}) {
    EXPECT_EQ(cached_state_numel({problem, ranks_to(4), {StateScan::heads, {}}, false}, index),
              3 * 2 * 5 * 6);
    EXPECT_EQ(cached_state_numel({problem, ranks_to(4), {StateScan::sequential, {}}, false}, index),
              index == 0 ? 3 * 8 * 5 * 6 : 0);
  }
}

// Contiguous rows end on the last rank, and those of head_tail where they begin.
TEST(ServedRecurrence, TheFinalStateTravelsOnceIfItMust) {
  RecurrenceProblem problem = problem_of(RecurrenceRule::decay, 40);
  problem.cached_state = true;
  const auto sent = [&](const char* balance) {
    const RecurrenceRequest request{
        problem, ranks_to(4), {StateScan::sequential, parse_balance(balance)}, false};
    std::int64_t count = 0;
    const Plan plan = recurrence_plan(request, RecurrencePass::forward, 3);
    for (const StepRef& ref : steps_of(plan)) count += ref.step->label == "final state" ? 1 : 0;
    return count;
  };
  EXPECT_EQ(sent("contiguous"), 1);
  EXPECT_EQ(sent("head_tail"), 0);
}

// What the ledger says of plans of which one rank's first step of a kind was changed.
template <class Op, class Change>
std::string found(Rank rank, const Change& change) {
  RecurrenceProblem problem = problem_of(RecurrenceRule::delta, 40);
  problem.cached_state = true;
  const RecurrenceRequest request{problem, ranks_to(4), {StateScan::sequential, {}}, false};
  std::vector<Plan> plans = recurrence_plans(request, RecurrencePass::forward);
  for (Segment& segment : plans[idx(rank)].segments) {
    auto* kernel = std::get_if<Kernel>(&std::get<Step>(segment).work);
    auto* op = kernel == nullptr ? nullptr : std::get_if<Op>(kernel);
    if (op == nullptr) continue;
    change(*op);
    return sim::keep_ledger(request, RecurrencePass::forward, plans).states.summary();
  }
  return "no such step";
}

TEST(ServedRecurrence, TheLedgerFindsACachedStateThatIsNotReadOrWritten) {
  EXPECT_THAT((found<RecurrenceForward>(0, [](RecurrenceForward& op) { op.state = View{}; })),
              HasSubstr("of rows [0, 10) begins with nothing, not with the state of rows [-1, 0)"));
  EXPECT_THAT((found<RecurrenceForward>(3, [](RecurrenceForward& op) { op.final_state = View{}; })),
              HasSubstr("rank 0: caches the state of rows [-1, 0) where the state of rows [-1, 40) belongs"));
}

TEST(ServedRecurrence, RefusesWhatIsNotServed) {
  RecurrenceProblem problem = problem_of(RecurrenceRule::delta, 40);
  problem.cached_state = true;
  EXPECT_THAT(message_of<InvalidInput>([&] {
                recurrence_plans({problem, ranks_to(2), {}, false}, RecurrencePass::backward);
              }),
              HasSubstr("has no backward pass"));
  problem.cu_seqlens = {0, 10, 40};
  EXPECT_THAT(message_of<InvalidInput>([&] { validate_problem(problem); }),
              HasSubstr("give each request a batch entry"));
}

// ---- the rows that a convolution sees ----

// Row by row, with `reach` rows cached before row 0: halos are the rows before each chunk, and what is cached
// then are the last rows, of the sequence and of the cache.
RC_GTEST_PROP(ServedHalo, IsTheRowsBeforeEachChunkAndTheLastOnes, ()) {
  RecurrenceProblem problem = any_recurrence(pick("most", rc::gen::element<std::int64_t>(6, 90)));
  problem.cu_seqlens = {};
  const RecurrenceRequest request = any_request(problem);
  const auto reach = pick("reach", rc::gen::inRange<std::int64_t>(0, 5));
  const std::vector<Chunk> chunks = chunks_of(request);
  const int home = chunks.front().index;
  std::vector<std::vector<std::int64_t>> rows(request.ranks.size()), expected(rows), halos(rows);
  for (const Chunk& chunk : chunks) {
    std::vector<std::int64_t>& own = rows[idx(chunk.index)];
    own.resize(std::max(own.size(), idx(chunk.local_row + chunk.rows)));
    std::iota(own.begin() + chunk.local_row, own.begin() + chunk.local_row + chunk.rows, chunk.begin);
    for (std::int64_t row = chunk.begin - reach; row < chunk.begin; ++row)
      expected[idx(chunk.index)].push_back(row);
  }
  for (std::int64_t row = -reach; row < 0; ++row) halos[idx(home)].push_back(row);
  const auto row_of = [&](const HaloPart& part, std::int64_t i) {
    return part.cached ? halos[idx(home)][idx(part.from_row + i)]
                       : rows[idx(part.from)][idx(part.from_row + i)];
  };
  for (const HaloPart& part : halo_parts_behind_cache(chunks, reach)) {
    RC_ASSERT(!part.cached || part.from == home);
    RC_ASSERT(part.halo_row == std::ssize(halos[idx(part.to)]));
    for (std::int64_t i = 0; i < part.rows; ++i) halos[idx(part.to)].push_back(row_of(part, i));
  }
  RC_ASSERT(halos == expected);
  std::vector<std::int64_t> cached, last;
  for (const HaloPart& part : parts_to_cache(chunks, reach)) {
    RC_ASSERT(part.to == home && part.halo_row == std::ssize(cached));
    for (std::int64_t i = 0; i < part.rows; ++i) cached.push_back(row_of(part, i));
  }
  for (std::int64_t row = problem.seq_len - reach; row < problem.seq_len; ++row) last.push_back(row);
  RC_ASSERT(cached == last);
}

}  // namespace
}  // namespace cp::testing
