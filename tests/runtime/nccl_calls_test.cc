// The calls of NCCL that the hand-written plans become.
#include "runtime/nccl/nccl_calls.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "tests/support/golden.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

using runtime::nccl_calls;
using runtime::NcclCall;
using runtime::observed_records;
using testing::PlanCase;
using testing::UnevenReduce;
using Function = NcclCall::Function;

class NcclCalls : public ::testing::TestWithParam<int> {};

TEST(NcclCallsText, OfTheHandPlansIsAsBefore) {
  for (const PlanCase& plan_case :
       {testing::ring_backward(2, DType::bf16), testing::ring_backward(4, DType::bf16),
        testing::uneven_reduce(4, 13, UnevenReduce::reduce_scatter, DType::f32),
        testing::uneven_reduce(4, 13, UnevenReduce::exchange, DType::f32),
        testing::prefetched_blocks(2, 3)}) {
    std::string text;
    for (const Plan& plan : plan_case.plans) {
      text += str("# rank ", plan.self, "\n", to_text(nccl_calls(plan), plan), "\n");
    }
    EXPECT_EQ(testing::compare_with_golden("nccl_calls/" + plan_case.name + ".txt", text), "")
        << plan_case.name;
  }
}

// The bytes to and from each peer, summed over a launch's calls, are those that volume() gives for its step.
TEST_P(NcclCalls, CarryTheVolumesOfTheSteps) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    for (const Plan& plan : plan_case.plans) {
      std::vector<Volume> expected;
      for (const Segment& segment : plan.segments) {
        const Repeat* repeat = std::get_if<Repeat>(&segment);
        const std::vector<Step> steps = repeat ? repeat->steps : std::vector<Step>{std::get<Step>(segment)};
        for (std::int64_t i = 0; i < (repeat ? repeat->count : 1); ++i) {
          for (const Step& step : steps) {
            if (is_collective(step)) expected.push_back(volume(std::get<Collective>(step.work), plan));
          }
        }
      }
      std::vector<Volume> actual;
      for (const OpRecord& record : observed_records(nccl_calls(plan), plan)) {
        actual.push_back({record.sent, record.received});
      }
      EXPECT_EQ(actual, expected) << plan_case.name << ", rank " << plan.self;
    }
  }
}

// The same traces as those of the fabric, in everything.
TEST_P(NcclCalls, AmountToWhatTheFabricObserves) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    sim::Fabric fabric(GetParam());
    fabric.run([&](Rank rank, Device& device) {
      run_plan_case(plan_case, rank, device, &fabric.traces()[static_cast<std::size_t>(rank)]);
    });
    std::vector<RankTrace> traces;
    for (const Plan& plan : plan_case.plans) {
      traces.push_back(fabric.traces()[static_cast<std::size_t>(plan.self)]);
      traces.back().observed = observed_records(nccl_calls(plan), plan);
    }
    EXPECT_EQ(first_difference(traces, fabric.traces()), std::nullopt) << plan_case.name;
  }
}

// Sends and receives stand in groups, one communicator to a group; groups do not nest; nothing is sent in
// vain.
TEST_P(NcclCalls, KeepTheRulesOfGroups) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    for (const Plan& plan : plan_case.plans) {
      const std::vector<NcclCall> calls = nccl_calls(plan);
      const NcclCall* group = nullptr;  // the open one
      for (const NcclCall& call : calls) {
        const bool is_transfer = call.function == Function::send || call.function == Function::recv;
        ASSERT_EQ(is_transfer || call.function == Function::group_end, group != nullptr);
        if (is_transfer) {
          EXPECT_EQ(call.comm, group->comm);
          EXPECT_EQ(call.stream, group->stream);
          EXPECT_GT(call.count, 0);
        }
        if (call.function == Function::group_start) group = &call;
        if (call.function == Function::group_end) group = nullptr;
      }
      EXPECT_EQ(group, nullptr);
    }
  }
}

// Every wait is for an event that was recorded before it, as CUDA needs: a wait for one that was not does
// nothing.
TEST_P(NcclCalls, WaitOnlyForWhatWasRecorded) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    for (const Plan& plan : plan_case.plans) {
      EventId recorded = 0;
      for (const NcclCall& call : nccl_calls(plan)) {
        if (call.function == Function::event_record) {
          EXPECT_EQ(call.event, recorded++);
        }
        if (call.function == Function::stream_wait_event) {
          EXPECT_LT(call.event, recorded);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCalls, ::testing::Values(1, 2, 4), ::testing::PrintToStringParamName());

TEST(NcclCalls, EachCollectiveBecomesItsCalls) {
  PlanBuilder b(1, host_target());
  const StreamId stream = b.stream("main");
  const GroupId g = b.group("g", {0, 1});
  const BufferId x = b.input("x", DType::f16, 8), y = b.output("y", DType::f16, 8);
  const View x8 = flat_view(x, 0, 8), y8 = flat_view(y, 0, 8), x4 = flat_view(x, 4, 4),
             y4 = flat_view(y, 4, 4);
  b.add(stream, AllGather{g, x4, y8});
  b.add(stream, ReduceScatter{g, ReduceOp::avg, x8, y4});
  b.add(stream, AllReduce{g, ReduceOp::product, x8, y8});
  b.add(stream, Broadcast{g, 0, x4, y4});
  b.add(stream, Broadcast{g, 1, x4, y4});
  b.add(stream, AllToAll{g, x8, y8});
  b.add(stream, Exchange{g, {{0, x4}}, {}, counts_digest({{1, 0, 4}})});
  b.add(stream, Exchange{g, {}, {}, counts_digest({})});
  const Plan plan = std::move(b).build({});
  EXPECT_EQ(to_text(nccl_calls(plan), plan),
            "ncclAllGather(x+4, y+0, 4, ncclFloat16, g, main)\n"
            "ncclReduceScatter(x+0, y+4, 4, ncclFloat16, ncclAvg, g, main)\n"
            "ncclAllReduce(x+0, y+0, 8, ncclFloat16, ncclProd, g, main)\n"
            "ncclBroadcast(nullptr, y+4, 4, ncclFloat16, 0, g, main)\n"
            "ncclBroadcast(x+4, y+4, 4, ncclFloat16, 1, g, main)\n"
            "ncclGroupStart()\n"
            "  ncclSend(x+0, 4, ncclFloat16, 0, g, main)\n"
            "  ncclRecv(y+0, 4, ncclFloat16, 0, g, main)\n"
            "  ncclSend(x+4, 4, ncclFloat16, 1, g, main)\n"
            "  ncclRecv(y+4, 4, ncclFloat16, 1, g, main)\n"
            "ncclGroupEnd()\n"
            "ncclGroupStart()\n"
            "  ncclSend(x+4, 4, ncclFloat16, 0, g, main)\n"
            "ncclGroupEnd()\n"
            "ncclGroupStart()\n"
            "ncclGroupEnd()\n");
  RankTrace issued;
  class Nothing : public Device {
   public:
    Rank rank() const override { return 1; }
    const Target& target() const override { return host_target(); }
    void prepare(const Plan&, const Bindings&) override {}
    void launch(const StepRef&, std::int64_t) override {}
    EventId record(StreamId) override { return 0; }
    void wait(StreamId, EventId) override {}
    void synchronize() override {}
    void upload(BufferId, std::span<const std::byte>) override {}
    void download(BufferId, std::span<std::byte>) override {}
  } nothing;
  enqueue_steps(plan, nothing, &issued);
  EXPECT_EQ(observed_records(nccl_calls(plan), plan), issued.issued);
}

// A record made of calls of which one argument is another one is another record.
TEST(NcclCalls, ACorruptedArgumentShowsInTheRecords) {
  const Plan plan = testing::ring_backward(2, DType::bf16).plans[0];
  const std::vector<NcclCall> calls = nccl_calls(plan);
  const std::vector<OpRecord> records = observed_records(calls, plan);
  const auto send = std::find_if(calls.begin(), calls.end(),
                                 [](const NcclCall& call) { return call.function == Function::send; });
  ASSERT_NE(send, calls.end());
  const auto differs = [&](auto corrupt) {
    std::vector<NcclCall> corrupted = calls;
    corrupt(corrupted[static_cast<std::size_t>(send - calls.begin())]);
    return observed_records(corrupted, plan) != records;
  };
  EXPECT_TRUE(differs([](NcclCall& call) { ++call.count; }));
  EXPECT_TRUE(differs([](NcclCall& call) { call.dtype = DType::f16; }));
  EXPECT_TRUE(differs([](NcclCall& call) { call.peer = 0; }));
  EXPECT_TRUE(differs([](NcclCall& call) { call.function = Function::recv; }));
  EXPECT_TRUE(differs([](NcclCall& call) { call.reduction = ReduceOp::sum; }));
}

}  // namespace
}  // namespace cp
