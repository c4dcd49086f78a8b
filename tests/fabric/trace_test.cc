// What a run leaves behind: sequence numbers, and records of what was done rather than of what was asked.
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/forwarding_device.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

class FabricTraces : public ::testing::TestWithParam<Schedule> {
 protected:
  FabricOptions options() const { return {.schedule = GetParam(), .seed = 3}; }
};

TEST_P(FabricTraces, SequenceNumbersGoOnUntilTheTracesAreCleared) {
  Fabric fabric(2, options());
  const auto plans = good_plans(2);
  const auto run = [&] {
    fabric.run([&](Rank rank, Device& device) {
      execute(plans[static_cast<std::size_t>(rank)], device, {},
              &fabric.traces()[static_cast<std::size_t>(rank)]);
    });
  };
  for (int round = 0; round < 2; ++round) {
    run();
    run();
    const std::vector<RankTrace>& traces = fabric.traces();
    ASSERT_EQ(traces[1].observed.size(), 2u);
    EXPECT_EQ(traces[1].observed[0].sequence, 0);
    EXPECT_EQ(traces[1].observed[1].sequence, 1);
    EXPECT_EQ(first_difference(traces, traces), std::nullopt);
    fabric.clear_traces();
    EXPECT_TRUE(fabric.traces()[0].observed.empty());
  }
}

// A device that changes each collective before it launches it, the same way on all ranks.
class CorruptingDevice final : public ForwardingDevice {
 public:
  using Corrupt = std::function<void(Collective&)>;
  CorruptingDevice(Device& device, Corrupt corrupt)
      : ForwardingDevice(device), corrupt_(std::move(corrupt)) {}

  void launch(const StepRef& step, std::int64_t iteration) override {
    Step& changed = *steps_.emplace_back(std::make_unique<Step>(*step.step));
    corrupt_(std::get<Collective>(changed.work));
    StepRef ref = step;
    ref.step = &changed;
    ForwardingDevice::launch(ref, iteration);
  }

 private:
  Corrupt corrupt_;
  std::vector<std::unique_ptr<Step>> steps_;
};

TEST_P(FabricTraces, ObservedRecordsTellWhatWasDoneNotWhatWasAsked) {
  const auto differs_after = [&](const AddSteps& add_steps, const CorruptingDevice::Corrupt& corrupt) {
    Fabric fabric(2, options());
    const auto plans = plans_of(2, add_steps);
    fabric.run([&](Rank rank, Device& device) {
      CorruptingDevice corrupting(device, corrupt);
      execute(plans[static_cast<std::size_t>(rank)], corrupting, {},
              &fabric.traces()[static_cast<std::size_t>(rank)]);
    });
    return first_difference(fabric.traces(), fabric.traces()).has_value();
  };
  const auto views = [](PlanBuilder& b, DType dtype) {
    const BufferId small = b.inout("small", dtype, 4), large = b.inout("large", dtype, 8);
    return std::pair(flat_view(small, 0, 4), flat_view(large, 0, 8));
  };
  const auto shorten = [](View& view, std::int64_t numel) {
    view = flat_view(view.buffer, view.offset, numel);
  };

  const AddSteps reduce = [&](PlanBuilder& b, Rank) {
    const auto [small, large] = views(b, DType::f32);
    views(b, DType::i32);
    b.group("other", {1, 0});
    b.add(b.stream("s"), AllReduce{b.group("g", {0, 1}), ReduceOp::sum, small, small});
    b.stream("t");
  };
  EXPECT_FALSE(differs_after(reduce, [](Collective&) {}));
  EXPECT_TRUE(differs_after(reduce, [](Collective& c) { std::get<AllReduce>(c).op = ReduceOp::max; }));
  EXPECT_TRUE(differs_after(reduce, [](Collective& c) { std::get<AllReduce>(c).group = 0; }));
  EXPECT_TRUE(differs_after(reduce, [&](Collective& c) {
    shorten(std::get<AllReduce>(c).in, 3), shorten(std::get<AllReduce>(c).out, 3);
  }));
  EXPECT_TRUE(differs_after(reduce, [&](Collective& c) {
    std::get<AllReduce>(c).in.buffer = std::get<AllReduce>(c).out.buffer = 2;  // of another dtype
  }));
  EXPECT_TRUE(differs_after(reduce, [&](Collective& c) {
    const View view = std::get<AllReduce>(c).in;
    c = Broadcast{std::get<AllReduce>(c).group, 0, view, view};
  }));

  const AddSteps broadcast = [&](PlanBuilder& b, Rank) {
    const auto [small, large] = views(b, DType::f32);
    b.add(b.stream("s"), Broadcast{b.group("g", {0, 1}), 0, small, small});
  };
  EXPECT_FALSE(differs_after(broadcast, [](Collective&) {}));
  EXPECT_TRUE(differs_after(broadcast, [](Collective& c) { std::get<Broadcast>(c).root = 1; }));

  const AddSteps exchange = [&](PlanBuilder& b, Rank rank) {
    const auto [small, large] = views(b, DType::f32);
    const std::int32_t peer = 1 - rank;
    b.add(b.stream("s"), Exchange{b.group("g", {0, 1}),
                                  {{peer, small}},
                                  {{peer, flat_view(large.buffer, 0, 4)}},
                                  counts_digest({{0, 1, 4}, {1, 0, 4}})});
  };
  EXPECT_FALSE(differs_after(exchange, [](Collective&) {}));
  EXPECT_TRUE(differs_after(exchange, [&](Collective& c) {
    shorten(std::get<Exchange>(c).sends[0].view, 2), shorten(std::get<Exchange>(c).recvs[0].view, 2);
  }));
  EXPECT_TRUE(differs_after(exchange, [&](Collective& c) {
    std::get<Exchange>(c).sends.clear(), std::get<Exchange>(c).recvs.clear();
  }));
}

TEST(FabricTracesOff, AreNotKeptWhenTurnedOff) {
  Fabric fabric(2, {.record_traces = false});
  execute_all(fabric, good_plans(2));
  EXPECT_TRUE(fabric.traces()[0].observed.empty());
}

INSTANTIATE_TEST_SUITE_P(Schedules, FabricTraces, ::testing::Values(Schedule::parallel, Schedule::baton),
                         schedule_name);

}  // namespace
}  // namespace cp::sim
