// The ledger finds what reaches a row that must not, whatever the numbers say.
#include "sim/proof/ledger/recurrence_ledger.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/plan/operations.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;

RecurrenceRequest request_of(StateScan scan, std::int64_t seq_len = 40) {
  RecurrenceProblem problem;
  problem.seq_len = seq_len;
  problem.key_heads = 2, problem.value_heads = 2, problem.key_dim = 3, problem.value_dim = 4;
  return {problem, {0, 1, 2, 3}, {scan, {}}, true};
}

// What the ledger says of plans of which one step of a rank was changed: the first of its kind.
template <class Op>
std::string found(StateScan scan, RecurrencePass pass, Rank rank, const std::function<void(Op&)>& change) {
  const RecurrenceRequest request = request_of(scan);
  std::vector<Plan> plans = recurrence_plans(request, pass);
  for (Segment& segment : plans[static_cast<std::size_t>(rank)].segments) {
    auto* kernel = std::get_if<Kernel>(&std::get<Step>(segment).work);
    auto* op = kernel == nullptr ? nullptr : std::get_if<Op>(kernel);
    if (op == nullptr) continue;
    change(*op);
    return keep_ledger(request, pass, plans).states.summary();
  }
  return "no such step";
}

TEST(RecurrenceLedger, PassesThePlans) {
  for (const StateScan scan : state_scans()) {
    RecurrenceRequest request = request_of(scan);
    if (scan == StateScan::heads) request.problem.key_heads = request.problem.value_heads = 4;
    for (const RecurrencePass pass : {RecurrencePass::forward, RecurrencePass::backward}) {
      const RecurrenceLedger ledger = keep_ledger(request, pass, recurrence_plans(request, pass));
      EXPECT_TRUE(ledger.states.empty()) << ledger.states.summary();
      EXPECT_TRUE(ledger.bytes.empty()) << ledger.bytes.summary();
    }
  }
}

TEST(RecurrenceLedger, FindsAStateThatIsNotUsed) {
  EXPECT_THAT((found<RecurrenceForward>(StateScan::all_gather, RecurrencePass::forward, 2,
                                        [](RecurrenceForward& op) { op.state = View{}; })),
              HasSubstr("of rows [20, 30) begins with nothing, not with the state of rows [0, 20)"));
}

TEST(RecurrenceLedger, FindsAJoinThatIsMissing) {
  // Rank 2 takes what came in for what its own rows made of it.
  EXPECT_THAT((found<RecurrenceJoin>(StateScan::sequential, RecurrencePass::forward, 1,
                                     [](RecurrenceJoin& op) { op.in = op.out; })),
              HasSubstr("adds the state of rows [10, 20) by the transition of rows [10, 20)"));
}

TEST(RecurrenceLedger, FindsRowsThatAreLeftOut) {
  EXPECT_THAT((found<RecurrenceSummary>(StateScan::all_gather, RecurrencePass::forward, 1,
                                        [](RecurrenceSummary& op) {
                                          for (View* view : {&op.k, &op.v, &op.log_decay, &op.beta})
                                            --view->shape[1];
                                        })),
              HasSubstr("the transition of rows [10, 19)"));
}

TEST(RecurrenceLedger, FindsOperandsOfDifferentRows) {
  EXPECT_THAT(
      (found<RecurrenceBackward>(StateScan::all_gather, RecurrencePass::backward, 0,
                                 [](RecurrenceBackward& op) { op.dbeta.offset += op.dbeta.strides[1]; })),
      HasSubstr("works on different rows of its operands"));
}

TEST(RecurrenceLedger, FindsAGradientOfTheWrongChunk) {
  EXPECT_THAT((found<RecurrenceBackward>(StateScan::all_gather, RecurrencePass::backward, 1,
                                         [](RecurrenceBackward& op) { op.dstate = View{}; })),
              HasSubstr("begins with nothing, not with the gradient of rows [20, 40)"));
}

TEST(RecurrenceLedger, FindsADocumentThatIsNotStarted) {
  RecurrenceRequest request = request_of(StateScan::all_gather);
  std::vector<Plan> plans = recurrence_plans(request, RecurrencePass::forward);
  request.problem.cu_seqlens = {0, 15, 40};
  EXPECT_THAT(keep_ledger(request, RecurrencePass::forward, plans).states.summary(),
              HasSubstr("several documents"));
  request.problem.cu_seqlens = {0, 35, 40};  // among the last rank's rows, which sends nothing
  EXPECT_THAT(keep_ledger(request, RecurrencePass::forward, plans).states.summary(),
              HasSubstr("starts documents at rows  where they begin at 5"));
}

TEST(RecurrenceLedger, FindsBytesThatNobodyNeeds) {
  const RecurrenceRequest asked = request_of(StateScan::sequential);
  RecurrenceRequest sent = asked;
  sent.strategy.scan = StateScan::all_gather;
  const RecurrenceLedger ledger =
      keep_ledger(asked, RecurrencePass::forward, recurrence_plans(sent, RecurrencePass::forward));
  EXPECT_THAT(ledger.bytes.summary(), HasSubstr("bytes of states where"));
}

}  // namespace
}  // namespace cp::sim
