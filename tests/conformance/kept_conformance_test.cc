// Plans that a device keeps, and runs of them (PreparedPlan).
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/prepared_plans.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kElements = 4;
constexpr std::int64_t kBytes = 16;

std::vector<Rank> every_rank() { return {0, 1, 2, 3}; }

// out = factor * the sum of all ranks' `in`. The sum is on one stream and the product on another, so that a
// run which begins before the one before has ended overwrites what that one still reads.
struct ScaledSum {
  BufferId in = 0, out = 1;
  Plan plan;

  ScaledSum(Rank rank, const Target& target, const std::string& group, double factor,
            std::int64_t elements = kElements) {
    PlanBuilder b(rank, target);
    in = b.input("in", DType::f32, elements);
    out = b.output("out", DType::f32, elements);
    const BufferId sum = b.temporary("sum", DType::f32, elements);
    const StreamId compute = b.stream("compute"), comm = b.stream("comm");
    const GroupId all = b.group(group, every_rank());
    const auto all_of = [&](BufferId buffer) { return flat_view(buffer, 0, elements); };
    b.add(comm, AllReduce{.group = all, .op = ReduceOp::sum, .in = all_of(in), .out = all_of(sum)});
    b.add(compute, Copy{all_of(sum), all_of(out)});
    b.add(compute, Scale{all_of(out), factor});
    plan = std::move(b).build({});
  }
};

std::vector<std::byte> floats(double value, std::int64_t elements = kElements) {
  return to_bytes(DType::f32, Values(static_cast<std::size_t>(elements), value));
}

Values contents(PreparedPlan& plan, BufferId buffer, std::int64_t elements = kElements) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(4 * elements));
  plan.download(buffer, bytes);
  return to_values(DType::f32, bytes);
}

Values all(double value, std::int64_t elements = kElements) {
  return Values(static_cast<std::size_t>(elements), value);
}

TEST_P(DeviceConformance, KeptPlansRunInTurnAndAgain) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    const ScaledSum twice(rank, GetParam().target, "all", 2), half(rank, GetParam().target, "all", 0.5);
    PreparedPlan first(device, twice.plan), second(device, half.plan);
    for (int round = 1; round <= 3; ++round) {
      first.upload(twice.in, floats(round));
      second.upload(half.in, floats(10 * round));
      first.run();
      second.run();
      first.run().wait();
      EXPECT_TRUE(first.last_run().has_ended());
      EXPECT_EQ(contents(first, twice.out), all(8 * round));
      EXPECT_EQ(contents(second, half.out), all(20 * round));
    }
  });
}

// A plan that needs a greater arena than the lane has moves those that were kept before, while they run.
TEST_P(DeviceConformance, KeptPlansMoveIntoAGreaterArena) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    const ScaledSum small(rank, GetParam().target, "all", 2),
        great(rank, GetParam().target, "all", 0.5, 1000 * kElements);
    PreparedPlan first(device, small.plan);
    first.upload(small.in, floats(1));
    for (int run = 0; run < 5; ++run) first.run();
    PreparedPlan second(device, great.plan);
    second.upload(great.in, floats(3, 1000 * kElements));
    second.run();
    first.run();
    second.run();
    EXPECT_EQ(contents(first, small.out), all(8));
    EXPECT_EQ(contents(second, great.out, 1000 * kElements), all(6, 1000 * kElements));
  });
}

TEST_P(DeviceConformance, PlansOfTwoLanesRunBesideOneAnother) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    const ScaledSum one(rank, GetParam().target, "one", 1), other(rank, GetParam().target, "other", 3);
    PreparedPlan first(device, one.plan, {}, 0), second(device, other.plan, {}, 1);
    first.upload(one.in, floats(1));
    second.upload(other.in, floats(1));
    for (int i = 0; i < 5; ++i) first.run(), second.run();
    device.synchronize();
    EXPECT_EQ(contents(first, one.out), all(4));
    EXPECT_EQ(contents(second, other.out), all(12));
  });
}

// Each of two lanes reads what the other one has written, and writes over what the other one has read. The
// runs take long enough for one that does not wait to be seen.
TEST_P(DeviceConformance, ARunWaitsForRunsOfOtherLanes) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  if (!GetParam().host_memory) GTEST_SKIP() << "buffers of the host cannot be bound";
  constexpr std::int64_t kMany = 100'000, kTurns = 6;
  constexpr auto kManyBytes = static_cast<std::int64_t>(4 * kMany);
  world().run([&](Rank rank, Device& device) {
    const ScaledSum one(rank, GetParam().target, "one", 0.5, kMany),
        other(rank, GetParam().target, "other", 0.5, kMany);
    PreparedPlan first(device, one.plan, {}, 0), second(device, other.plan, {}, 1);
    std::vector<std::byte> there = floats(1, kMany), back = floats(-1, kMany);
    PlanRun last;
    for (std::int64_t turn = 0; turn < kTurns; ++turn) {
      const PlanRun run = first.run_after(
          {&last, 1}, {{one.in, there.data(), kManyBytes}, {one.out, back.data(), kManyBytes}});
      last = second.run_after({&run, 1},
                              {{other.in, back.data(), kManyBytes}, {other.out, there.data(), kManyBytes}});
    }
    last.wait();
    // The sum of four equal ones, halved, twice in each round.
    EXPECT_EQ(to_values(DType::f32, there), all(4096, kMany));
    EXPECT_EQ(to_values(DType::f32, back), all(2048, kMany));
  });
}

// What two lanes leave in traces: streams of their own, so that the order of each is that of its lane.
TEST_P(DeviceConformance, LanesHaveStreamsOfTheirOwnInTraces) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().clear_traces();
  std::vector<ScaledSum> plans;  // times are of their steps until they are taken
  for (const Rank rank : every_rank()) {
    plans.emplace_back(rank, GetParam().target, "one", 1);
    plans.emplace_back(rank, GetParam().target, "other", 1);
  }
  world().run([&](Rank rank, Device& device) {
    const auto at = static_cast<std::size_t>(rank);
    RankTrace trace;
    PreparedPlan first(device, plans[2 * at].plan, {}, 0), second(device, plans[2 * at + 1].plan, {}, 3);
    first.run({}, nullptr, &trace);
    second.run_after({}, {}, &trace);
    device.synchronize();
    std::vector<StreamId> streams;
    for (const OpRecord& record : trace.issued) streams.push_back(record.stream);
    EXPECT_THAT(streams, ::testing::ElementsAre(1, 0, 0, 3001, 3000, 3000));
  });
  for (const RankTrace& trace : world().traces()) {
    if (trace.observed.empty()) continue;  // of another process
    std::vector<StreamId> streams;
    for (const OpRecord& record : trace.observed) streams.push_back(record.stream);
    EXPECT_THAT(streams, ::testing::UnorderedElementsAre(1, 3001));
  }
}

TEST_P(DeviceConformance, AKeptPlanStaysBesidePlansThatAreNot) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    const ScaledSum kept(rank, GetParam().target, "all", 1), once(rank, GetParam().target, "all", 5);
    auto plan = std::make_unique<PreparedPlan>(device, kept.plan);
    plan->upload(kept.in, floats(2));
    device.prepare(once.plan, {});
    device.upload(once.in, floats(1));
    enqueue_steps(once.plan, device);
    device.synchronize();
    std::vector<std::byte> bytes(kBytes);
    device.download(once.out, bytes);
    EXPECT_EQ(to_values(DType::f32, bytes), all(20));
    plan->run();
    EXPECT_EQ(contents(*plan, kept.out), all(8));
    plan.reset();  // and its place is free for the next
    PreparedPlan again(device, kept.plan);
    again.upload(kept.in, floats(1));
    again.run();
    EXPECT_EQ(contents(again, kept.out), all(4));
  });
}

// Runs that are under way keep the addresses that they began with.
TEST_P(DeviceConformance, EachRunHasTheBuffersThatItWasGiven) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  if (!GetParam().host_memory) GTEST_SKIP() << "buffers of the host cannot be bound";
  constexpr int kRuns = 20;
  world().run([&](Rank rank, Device& device) {
    const ScaledSum plan(rank, GetParam().target, "all", 1);
    PreparedPlan prepared(device, plan.plan);
    std::vector<std::vector<std::byte>> ins, outs(kRuns, std::vector<std::byte>(kBytes));
    for (int run = 0; run < kRuns; ++run) ins.push_back(floats(run + 1));
    for (int run = 0; run < kRuns; ++run) {
      const auto at = static_cast<std::size_t>(run);
      prepared.run({{plan.in, ins[at].data(), kBytes}, {plan.out, outs[at].data(), kBytes}});
    }
    prepared.last_run().wait();
    for (int run = 0; run < kRuns; ++run)
      EXPECT_EQ(to_values(DType::f32, outs[static_cast<std::size_t>(run)]), all(4 * (run + 1))) << run;
    // A binding that is wrong is refused before anything runs.
    std::vector<std::byte> small(8);
    EXPECT_THROW(prepared.run({{plan.out, small.data(), 8}}), InvalidInput);
    EXPECT_EQ(contents(prepared, plan.out), all(4 * kRuns));
  });
}

// Says which plans a device was asked to keep and to give back, by the number of elements of their first
// buffer.
class KeepingLog : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override {
    const PreparedId id = ForwardingDevice::keep(plan, bindings, lane);
    log.push_back(plan.buffers.front().numel);
    kept[id] = log.back();
    return id;
  }
  void release(PreparedId id) override {
    log.push_back(-kept.at(id));
    ForwardingDevice::release(id);
  }

  std::vector<std::int64_t> log;
  std::map<PreparedId, std::int64_t> kept;
};

// Plans of different sizes by turns share one arena, which only the first and greatest of them fills.
TEST_P(DeviceConformance, PlansByKeyAreKeptUntilOthersTakeTheirPlaces) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    KeepingLog log(device);
    {
      PreparedPlans plans(log, 0, 2);
      for (const std::int64_t elements : {64, 4, 64, 12, 64, 4, 4}) {
        const auto plan = [&] { return ScaledSum(rank, GetParam().target, "all", 2, elements); };
        std::optional<ScaledSum> made;
        PreparedPlan& kept = plans.get(Hasher().add(elements).digest(),
                                       [&]() -> const Plan& { return made.emplace(plan()).plan; }, {});
        kept.upload(0, floats(rank + 1, elements));
        kept.run().wait();
        EXPECT_EQ(contents(kept, 1, elements), all(20, elements)) << elements;
      }
      EXPECT_EQ(plans.size(), 2U);
    }
    EXPECT_THAT(log.log, ::testing::ElementsAre(64, 4, -4, 12, -12, 4, -4, -64));
  });
}

// Plans without this rank have places, too: what is given back is the same on ranks that have a part in all.
TEST_P(DeviceConformance, PlansOfOtherRanksTakePlaces) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    KeepingLog log(device);
    PreparedPlans plans(log, 0, 2);
    const auto key = [](std::int64_t elements) { return Hasher().add(elements).digest(); };
    for (const std::int64_t elements : {4, -1, 4, -2, -1, 4}) {  // negative: of others
      if (elements < 0) {
        plans.pass(key(elements));
        continue;
      }
      const ScaledSum sum(rank, GetParam().target, "all", 2, elements);
      plans.get(key(elements), [&]() -> const Plan& { return sum.plan; }, {}).run().wait();
    }
    EXPECT_THAT(log.log, ::testing::ElementsAre(4, -4, 4));
  });
}

TEST_P(DeviceConformance, AGroupBelongsToOneLane) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  world().run([&](Rank rank, Device& device) {
    const ScaledSum plan(rank, GetParam().target, "all", 1);
    PreparedPlan prepared(device, plan.plan, {}, 0);
    for (const LaneId lane : {1, -1, 99}) {
      try {
        const PreparedPlan refused(device, plan.plan, {}, lane);
        ADD_FAILURE() << "lane " << lane;
      } catch (const InvalidInput& error) {
        EXPECT_THAT(error.what(), HasSubstr(lane == 1 ? "is used by a plan in lane 0" : "there is no lane"));
      }
    }
    prepared.upload(plan.in, floats(1));  // as good as before
    prepared.run();
    EXPECT_EQ(contents(prepared, plan.out), all(4));
  });
}

// What a kept plan leaves in traces is what the same plan leaves when it is executed.
TEST_P(DeviceConformance, TracesOfKeptPlansAreThoseOfExecutedOnes) {
  if (!has("all_reduce")) GTEST_SKIP() << "the device has no all_reduce";
  std::vector<ScaledSum> plans;  // times are of their steps until they are taken
  for (const Rank rank : every_rank()) plans.emplace_back(rank, GetParam().target, "all", 1);
  const auto records_of = [&](bool kept) {
    world().clear_traces();
    world().run([&](Rank rank, Device& device) {
      const ScaledSum& plan = plans[static_cast<std::size_t>(rank)];
      if (!kept) {
        execute(plan.plan, device);
        execute(plan.plan, device);
      } else {
        PreparedPlan prepared(device, plan.plan);
        prepared.run();
        prepared.run().wait();
      }
    });
    std::vector<std::vector<OpRecord>> observed;
    for (const RankTrace& trace : world().traces()) observed.push_back(trace.observed);
    return observed;
  };
  const auto executed = records_of(false);
  EXPECT_EQ(records_of(true), executed);
}

}  // namespace
}  // namespace cp::conformance
