// Runs: errors cancel them, fabrics outlive them, and what does not fit is refused.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// ---- errors ---------------------------------------------------------------------------------------------------------

class Runs : public ::testing::TestWithParam<Schedule> {
 protected:
  FabricOptions options() const { return {.schedule = GetParam(), .seed = 3}; }
};

TEST_P(Runs, TheFirstErrorIsRethrownAndCancelsTheOthers) {
  Fabric fabric(4, options());
  const auto plans = good_plans(4);
  for (int repetition = 0; repetition < 100; ++repetition) {
    std::atomic<int> cancelled = 0;
    const auto run = [&] {
      fabric.run([&](Rank rank, Device& device) {
        if (rank == 1) throw std::out_of_range("rank 1 has had enough");
        EXPECT_THAT(message_of<Cancelled>([&] { execute(plans[static_cast<std::size_t>(rank)], device); }),
                    AllOf(HasSubstr("rank 1"), HasSubstr("has had enough")));
        EXPECT_THROW(device.synchronize(), Cancelled);  // for the rest of the run
        ++cancelled;
      });
    };
    EXPECT_EQ(message_of<std::out_of_range>(run), "rank 1 has had enough");
    EXPECT_EQ(cancelled, 3);
    execute_all(fabric, plans);
  }
}

TEST_P(Runs, ARankThatCatchesItsErrorStillFailsTheRun) {
  Fabric fabric(2, options());
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) { add_all_reduce(b, "g", {0, 1}, 4 + rank); });
  const auto run = [&] {
    fabric.run([&](Rank rank, Device& device) {
      EXPECT_ANY_THROW(execute(plans[static_cast<std::size_t>(rank)], device));
    });
  };
  EXPECT_THAT(message_of<CollectiveMismatch>(run), HasSubstr("tie"));
}

TEST_P(Runs, EveryRankMayFailAtOnce) {
  Fabric fabric(8, options());
  for (int repetition = 0; repetition < 50; ++repetition) {
    EXPECT_THAT(message_of<std::runtime_error>([&] {
                  fabric.run([](Rank rank, Device&) { throw std::runtime_error(str("rank ", rank)); });
                }),
                HasSubstr("rank "));
  }
  execute_all(fabric, good_plans(8));
}

TEST_P(Runs, ABodySynchronizesWhatItEnqueues) {
  Fabric fabric(1, options());
  const auto plans = good_plans(1);
  EXPECT_THAT(
      message_of<InvalidInput>([&] { fabric.run([&](Rank, Device& device) { enqueue(plans[0], device); }); }),
      HasSubstr("without synchronize"));
}

TEST_P(Runs, APlanWithAKernelThatTheHostLacksIsRefusedByName) {
  Fabric fabric(1, options());
  PlanBuilder builder(0, shape_target());
  const BufferId x = builder.inout("x", DType::f32, 4);
  builder.add(builder.stream("s"), RowKernel{RowOperation::gated_norm, {}, {}, {flat_view(x, 0, 4)}});
  const Plan plan = std::move(builder).build({});
  EXPECT_THAT(
      message_of<InvalidInput>([&] { fabric.run([&](Rank, Device& device) { device.prepare(plan, {}); }); }),
      HasSubstr("the fabric device of rank 0 has no operation gated_norm without a rule (step 0 \"\"); its "
                "target host has "
                "accumulate, "));
}

TEST_P(Runs, APreparedPlanOutlivesARunButNotAFailure) {
  Fabric fabric(2, options());
  const auto plans = good_plans(2);
  const auto plan_of = [&](Rank rank) -> const Plan& { return plans[static_cast<std::size_t>(rank)]; };
  const std::vector<std::byte> zeros(32);
  fabric.run([&](Rank rank, Device& device) {
    device.prepare(plan_of(rank), {});
    std::vector<std::byte> data(32);
    for (std::int64_t i = 0; i < 4; ++i) store_element(DType::i64, data.data(), i, rank + 1);
    device.upload(0, data);
  });
  const auto again = [&] {
    fabric.run([&](Rank rank, Device& device) {
      enqueue_steps(plan_of(rank), device);
      device.synchronize();
    });
  };
  again();
  again();
  fabric.run([&](Rank, Device& device) {
    std::vector<std::byte> data(32);
    device.download(0, data);
    EXPECT_EQ(load_element(DType::i64, data.data(), 0), 6);  // (1 + 2) twice
  });
  EXPECT_ANY_THROW(fabric.run([](Rank, Device&) { throw InvalidInput("for the test"); }));
  EXPECT_THAT(message_of<InvalidInput>(again), HasSubstr("call prepare first"));
}

// ---- refusals -------------------------------------------------------------------------------------------------------

std::string refusal(Fabric& fabric, const std::vector<Plan>& plans) {
  const std::string message = message_of<InvalidInput>([&] { execute_all(fabric, plans); });
  execute_all(fabric, good_plans(fabric.world_size()));
  return message;
}

TEST_P(Runs, PlansThatDoNotFitAreRefused) {
  Fabric fabric(2, options());
  EXPECT_THAT(refusal(fabric, plans_of(2,
                                       [](PlanBuilder& b, Rank) {
                                         add_all_reduce(b, "g", {0, 1, 2});
                                       })),
              AllOf(HasSubstr("g[0,1,2] has rank 2"), HasSubstr("ranks 0 to 1")));
  auto streams = plans_of(2, [](PlanBuilder& b, Rank) {
    add_all_reduce(b, "g", {0, 1});
    add_all_reduce(b, "g", {0, 1});
  });
  for (Plan& plan : streams) {
    plan.streams.push_back("second");
    std::get<Step>(plan.segments[1]).stream = 1;
  }
  EXPECT_THAT(refusal(fabric, streams), AllOf(HasSubstr("g[0,1]"), HasSubstr("one stream for each group")));
  auto twice = good_plans(2);
  for (Plan& plan : twice) plan.groups[0].ranks = {0, 1, 0};
  EXPECT_THAT(refusal(fabric, twice), HasSubstr("world[0,1,0] has rank 0 twice"));
  auto swapped = good_plans(2);
  std::swap(swapped[0].self, swapped[1].self);
  EXPECT_THAT(refusal(fabric, swapped), HasSubstr("on the fabric device of rank"));
}

TEST_P(Runs, DeviceCallsOutOfOrderAreRefused) {
  Fabric fabric(1, options());
  const auto plans = good_plans(1);
  const StepRef step = steps_of(plans[0])[0];
  const auto refused = [&](const std::function<void(Device&)>& body) {
    return message_of<InvalidInput>([&] { fabric.run([&](Rank, Device& device) { body(device); }); });
  };
  std::vector<std::byte> bytes(32);
  EXPECT_THAT(refused([&](Device& device) { device.launch(step, 0); }), HasSubstr("call prepare first"));
  EXPECT_THAT(refused([&](Device& device) { enqueue(plans[0], device), device.download(0, bytes); }),
              HasSubstr("call synchronize first"));
  EXPECT_THAT(refused([&](Device& device) { enqueue(plans[0], device), device.prepare(plans[0], {}); }),
              HasSubstr("call synchronize first"));
  EXPECT_THAT(refused([&](Device& device) { device.prepare(plans[0], {}), device.wait(0, 5); }),
              HasSubstr("never recorded"));
  EXPECT_THAT(refused([&](Device& device) { device.prepare(plans[0], {}), device.record(9); }),
              HasSubstr("stream 9"));
}

// Members share the work of large collectives: one that is cancelled must not free what others still read.
// (The address sanitizer tells.)
TEST(RunsInParallel, ACancelledRankKeepsItsMemoryWhileOthersReadIt) {
  constexpr std::int64_t kNumel = 300'000;
  Fabric fabric(4);
  const auto plans = plans_of(4, [&](PlanBuilder& b, Rank rank) {
    if (rank == 3) return;
    const BufferId in = b.input("in", DType::f32, kNumel), out = b.output("out", DType::f32, 3 * kNumel);
    b.begin_repeat(20);
    b.add(b.stream("gather"),
          AllGather{b.group("gather", {0, 1, 2}), flat_view(in, 0, kNumel), flat_view(out, 0, 3 * kNumel)});
    add_all_reduce(b, "reduce", {2, 0, 1}, kNumel, "reduce");
    b.end_repeat();
  });
  for (int repetition = 0; repetition < 40; ++repetition) {
    std::atomic<int> enqueued = 0;
    const auto body = [&](Rank rank, Device& device) {
      if (rank == 3) {
        while (enqueued < 3) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(100 * repetition));
        throw std::out_of_range("enough");
      }
      std::vector<float> in(kNumel, 1.0F), out(3 * kNumel);
      enqueue(plans[static_cast<std::size_t>(rank)], device,
              {{.buffer = 0, .data = in.data(), .size_bytes = 4 * kNumel},
               {.buffer = 1, .data = out.data(), .size_bytes = 12 * kNumel}});
      ++enqueued;
      device.synchronize();
    };
    EXPECT_EQ(message_of<std::out_of_range>([&] { fabric.run(body); }), "enough");
  }
  execute_all(fabric, good_plans(4));
}

INSTANTIATE_TEST_SUITE_P(Schedules, Runs, ::testing::Values(Schedule::parallel, Schedule::baton),
                         schedule_name);

}  // namespace
}  // namespace cp::sim
