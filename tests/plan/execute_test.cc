#include "shared/plan/execute.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "tests/plan/plan_model.h"
#include "tests/plan/random_plan.h"

namespace cp {
namespace {

using Calls = std::vector<std::string>;

// Writes down what it is asked for; an event is named after the work that it marks, "step.iteration".
class FakeDevice : public Device {
 public:
  Calls calls;
  // What has finished, by instance in launch order, before each launch starts.
  std::vector<std::vector<bool>> before;

  Rank rank() const override { return 0; }
  const Target& target() const override { return host_target(); }
  void prepare(const Plan& plan, const Bindings&) override {
    calls.push_back("prepare");
    steps_.clear();
    for (const StepRef& ref : steps_of(plan)) steps_.push_back(ref.step);
    heads_.resize(plan.streams.size());
    names_.resize(plan.streams.size());
  }
  void launch(const StepRef& step, std::int64_t iteration) override {
    EXPECT_EQ(step.step, steps_.at(static_cast<std::size_t>(step.id)));
    const auto stream = static_cast<std::size_t>(step.step->stream);
    names_[stream] = str(step.id, ".", iteration);
    calls.push_back("launch " + names_[stream]);
    before.push_back(heads_[stream]);
    heads_[stream].resize(before.size());
    heads_[stream].back() = true;
  }
  EventId record(StreamId stream) override {
    calls.push_back("record " + names_[static_cast<std::size_t>(stream)]);
    events_.push_back({names_[static_cast<std::size_t>(stream)], heads_[static_cast<std::size_t>(stream)]});
    return static_cast<EventId>(events_.size() - 1);
  }
  void wait(StreamId stream, EventId event) override {
    const auto& [name, done] = events_.at(static_cast<std::size_t>(event));
    calls.push_back(str("wait ", stream, " ", name));
    auto& head = heads_[static_cast<std::size_t>(stream)];
    head.resize(std::max(head.size(), done.size()));
    for (std::size_t i = 0; i < done.size(); ++i) head[i] = head[i] || done[i];
  }
  void synchronize() override { calls.push_back("synchronize"); }
  void upload(BufferId, std::span<const std::byte>) override {}
  void download(BufferId, std::span<std::byte>) override {}

 private:
  std::vector<const Step*> steps_;        // of the prepared plan, by StepId
  std::vector<std::string> names_;        // the latest launch, by stream
  std::vector<std::vector<bool>> heads_;  // what has finished when a stream has
  std::vector<std::pair<std::string, std::vector<bool>>> events_;
};

Step step(StreamId stream, std::vector<Edge> after = {}) {
  return {stream, Kernel(Fill{flat_view(0, 0, 1), 0}), std::move(after), {}};
}

Plan plan_of(std::vector<Segment> segments) {
  Plan plan;
  plan.target = host_target();
  plan.streams = {"compute", "comm"};
  plan.buffers = {{.name = "x", .kind = BufferKind::inout, .numel = 1}};
  plan.segments = std::move(segments);
  return plan;
}

Calls calls_of(const Plan& plan) {
  FakeDevice device;
  execute(plan, device);
  return device.calls;
}

TEST(Execute, AnEdgeIsARecordAndAWait) {
  EXPECT_EQ(calls_of(plan_of({step(1), step(1), step(0, {{0, 0}})})),
            (Calls{"prepare", "launch 0.0", "record 0.0", "launch 1.0", "wait 0 0.0", "launch 2.0",
                   "synchronize"}));
}

TEST(Execute, WithoutEdgesThereAreOnlyLaunches) {
  EXPECT_EQ(calls_of(plan_of({step(0), Repeat{2, {step(1), step(0)}}})),
            (Calls{"prepare", "launch 0.0", "launch 1.0", "launch 2.0", "launch 1.1", "launch 2.1",
                   "synchronize"}));
}

TEST(Execute, AnEdgeToAnIterationThatNeverWasIsNothing) {
  // Step 1 waits for step 0 of two iterations ago, step 0 for step 1 of the one before; nobody waits for the
  // last ones.
  const Plan plan = plan_of({Repeat{4, {step(1, {{1, 1}}), step(0, {{0, 2}})}}});
  EXPECT_EQ(calls_of(plan), (Calls{"prepare",    "launch 0.0", "record 0.0", "launch 1.0", "record 1.0",
                                   "wait 1 1.0", "launch 0.1", "record 0.1", "launch 1.1", "record 1.1",
                                   "wait 1 1.1", "launch 0.2", "wait 0 0.0", "launch 1.2", "record 1.2",
                                   "wait 1 1.2", "launch 0.3", "wait 0 0.1", "launch 1.3", "synchronize"}));
}

TEST(Execute, FromAfterARepeatAnEdgeMeansTheLastIteration) {
  const Plan plan = plan_of({Repeat{3, {step(1)}}, step(0, {{0, 0}})});
  EXPECT_EQ(calls_of(plan), (Calls{"prepare", "launch 0.0", "launch 0.1", "launch 0.2", "record 0.2",
                                   "wait 0 0.2", "launch 1.0", "synchronize"}));
}

TEST(Execute, AnEdgeFromInsideToBeforeARepeatIsWaitedForOnce) {
  const Plan plan = plan_of({step(1), Repeat{3, {step(0, {{0, 0}})}}});
  EXPECT_EQ(calls_of(plan), (Calls{"prepare", "launch 0.0", "record 0.0", "wait 0 0.0", "launch 1.0",
                                   "launch 1.1", "launch 1.2", "synchronize"}));
}

TEST(Execute, OneRepeatMayWaitForTheLastIterationOfAnother) {
  const Plan plan = plan_of({Repeat{2, {step(1)}}, Repeat{2, {step(0, {{0, 0}})}}});
  EXPECT_EQ(calls_of(plan), (Calls{"prepare", "launch 0.0", "launch 0.1", "record 0.1", "wait 0 0.1",
                                   "launch 1.0", "launch 1.1", "synchronize"}));
}

// Whatever the plan, the calls order exactly the launches that its edges order.
RC_GTEST_PROP(Execute, OrdersWhatTheEdgesOrder, ()) {
  const Plan plan = test::random_plan();
  FakeDevice device;
  enqueue(plan, device);
  const test::Before expected = test::happens_before(plan, test::instances_of(plan));
  RC_ASSERT(device.before.size() == expected.size());
  for (std::size_t b = 0; b < expected.size(); ++b) {
    device.before[b].resize(expected.size());
    RC_ASSERT(device.before[b] == expected[b]);
  }
}

TEST(Execute, TheTraceHoldsWhatWasIssued) {
  PlanBuilder b(1, host_target());
  const StreamId s = b.stream("s");
  const GroupId g = b.group("g", {0, 1});
  const BufferId x = b.inout("x", DType::f32, 8);
  b.add(s, Fill{flat_view(x, 0, 3), 1});
  b.begin_repeat(2);
  b.add(s, AllReduce{g, ReduceOp::sum, flat_view(x, 0, 8), flat_view(x, 0, 8)});
  b.end_repeat();
  const Plan plan = std::move(b).build({});
  FakeDevice device;
  RankTrace trace;
  execute(plan, device, {}, &trace);
  EXPECT_EQ(trace.rank, 1);
  ASSERT_EQ(trace.issued.size(), 3U);
  EXPECT_EQ(to_string(trace.issued[0]), "fill on stream 0, 12 bytes written");
  EXPECT_EQ(to_string(trace.issued[1]), "all_reduce #0 on g[0,1] f32 sum sent 32/0 received 32/0 bytes");
  EXPECT_EQ(trace.issued[2].sequence, 1);
  enqueue_steps(plan, device, &trace);  // a second run goes on
  ASSERT_EQ(trace.issued.size(), 6U);
  EXPECT_EQ(trace.issued[5].sequence, 3);
}

}  // namespace
}  // namespace cp
