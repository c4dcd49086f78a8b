// Runs: errors cancel them, fabrics outlive them, traces record them, at any number of ranks.
#include <atomic>
#include <chrono>
#include <memory>
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

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// ---- errors ---------------------------------------------------------------------------------------------------------

class Runs : public testing::TestWithParam<Schedule> {
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

// Members share the work of large collectives: one that is cancelled must not free what others still read.
TEST_P(Runs, ACancelledRankKeepsItsMemoryWhileOthersReadIt) {
  constexpr std::int64_t kNumel = 40'000;
  Fabric fabric(4, options());
  const auto plans = plans_of(4, [&](PlanBuilder& b, Rank rank) {
    if (rank == 3) return;
    const BufferId in = b.input("in", DType::f32, kNumel), out = b.output("out", DType::f32, 3 * kNumel);
    b.begin_repeat(50);
    b.add(b.stream("gather"),
          AllGather{b.group("gather", {0, 1, 2}), flat_view(in, 0, kNumel), flat_view(out, 0, 3 * kNumel)});
    add_all_reduce(b, "reduce", {2, 0, 1}, kNumel, "reduce");
    b.end_repeat();
  });
  for (int repetition = 0; repetition < 40; ++repetition) {
    EXPECT_EQ(message_of<std::out_of_range>([&] {
                fabric.run([&](Rank rank, Device& device) {
                  if (rank == 3) {
                    const auto until =
                        std::chrono::steady_clock::now() + std::chrono::microseconds(100 * repetition);
                    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
                    throw std::out_of_range("enough");
                  }
                  std::vector<float> in(kNumel, 1.0F), out(3 * kNumel);
                  execute(plans[static_cast<std::size_t>(rank)], device,
                          {{.buffer = 0, .data = in.data(), .size_bytes = 4 * kNumel},
                           {.buffer = 1, .data = out.data(), .size_bytes = 12 * kNumel}});
                });
              }),
              "enough");
  }
  execute_all(fabric, good_plans(4));
}

TEST_P(Runs, ABodySynchronizesWhatItEnqueues) {
  Fabric fabric(1, options());
  const auto plans = good_plans(1);
  EXPECT_THAT(
      message_of<InvalidInput>([&] { fabric.run([&](Rank, Device& device) { enqueue(plans[0], device); }); }),
      HasSubstr("without synchronize"));
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
  EXPECT_THAT(refusal(fabric, swapped), HasSubstr("on the device of rank"));
}

TEST_P(Runs, DeviceCallsOutOfOrderAreRefused) {
  Fabric fabric(1, options());
  const auto plans = good_plans(1);
  const Step& step = std::get<Step>(plans[0].segments[0]);
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

// ---- traces ---------------------------------------------------------------------------------------------------------

TEST_P(Runs, SequenceNumbersGoOnUntilTheTracesAreCleared) {
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
class CorruptingDevice final : public Device {
 public:
  using Corrupt = std::function<void(Collective&)>;
  CorruptingDevice(Device& device, Corrupt corrupt) : device_(device), corrupt_(std::move(corrupt)) {}

  Rank rank() const override { return device_.rank(); }
  void prepare(const Plan& plan, const Bindings& bindings) override { device_.prepare(plan, bindings); }
  void launch(const Step& step, std::int64_t iteration) override {
    Step& changed = *steps_.emplace_back(std::make_unique<Step>(step));
    corrupt_(std::get<Collective>(changed.work));
    device_.launch(changed, iteration);
  }
  EventId record(StreamId stream) override { return device_.record(stream); }
  void wait(StreamId stream, EventId event) override { device_.wait(stream, event); }
  void synchronize() override { device_.synchronize(); }
  void upload(BufferId buffer, std::span<const std::byte> host) override { device_.upload(buffer, host); }
  void download(BufferId buffer, std::span<std::byte> host) override { device_.download(buffer, host); }

 private:
  Device& device_;
  Corrupt corrupt_;
  std::vector<std::unique_ptr<Step>> steps_;
};

TEST_P(Runs, ObservedRecordsTellWhatWasDoneNotWhatWasAsked) {
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

TEST(FabricTraces, AreNotKeptWhenTurnedOff) {
  Fabric fabric(2, {.record_traces = false});
  execute_all(fabric, good_plans(2));
  EXPECT_TRUE(fabric.traces()[0].observed.empty());
}

std::string schedule_name(const testing::TestParamInfo<Schedule>& info) {
  return info.param == Schedule::parallel ? "Parallel" : "Baton";
}
INSTANTIATE_TEST_SUITE_P(Schedules, Runs, testing::Values(Schedule::parallel, Schedule::baton),
                         schedule_name);

// ---- size -----------------------------------------------------------------------------------------------------------

// Each rank's number goes around a ring, then all sum what they received.
void expect_ring_and_sum(int world_size, Schedule schedule) {
  std::vector<Count> counts;
  for (std::int32_t i = 0; i < world_size; ++i) counts.push_back({i, (i + 1) % world_size, 1});
  const Digest digest = counts_digest(counts);
  const std::vector<Rank> all = ranks_up_to(world_size);
  const auto plans = plans_of(world_size, [&](PlanBuilder& b, Rank rank) {
    const BufferId own = b.input("own", DType::i64, 1), received = b.inout("received", DType::i64, 1);
    const BufferId sum = b.output("sum", DType::i64, 1);
    const auto view = [](BufferId buffer) { return flat_view(buffer, 0, 1); };
    const GroupId group = b.group("world", all);
    const StreamId s = b.stream("s");
    b.add(s, Exchange{group,
                      {{(rank + 1) % world_size, view(own)}},
                      {{(rank + world_size - 1) % world_size, view(received)}},
                      digest});
    b.add(s, AllReduce{group, ReduceOp::sum, view(received), view(sum)});
  });
  Fabric fabric(world_size, {.schedule = schedule});
  std::vector<std::int64_t> received(all.size()), sums(all.size());
  fabric.run([&](Rank rank, Device& device) {
    const auto at = static_cast<std::size_t>(rank);
    std::int64_t own = rank;
    execute(plans[at], device,
            {{.buffer = 0, .data = &own, .size_bytes = 8},
             {.buffer = 1, .data = &received[at], .size_bytes = 8},
             {.buffer = 2, .data = &sums[at], .size_bytes = 8}});
  });
  for (const Rank rank : all) {
    EXPECT_EQ(received[static_cast<std::size_t>(rank)], (rank + world_size - 1) % world_size);
    EXPECT_EQ(sums[static_cast<std::size_t>(rank)], std::int64_t{world_size} * (world_size - 1) / 2);
  }
}

TEST(FabricSize, OneRank) { EXPECT_NO_THROW(execute_all(*std::make_unique<Fabric>(1), good_plans(1))); }
TEST(FabricSize, AThousandRanksInParallel) { expect_ring_and_sum(1024, Schedule::parallel); }
TEST(FabricSize, AThousandRanksWithABaton) { expect_ring_and_sum(1024, Schedule::baton); }
TEST(FabricSize, NoRanksAreRefused) { EXPECT_THROW(Fabric(0), InvalidInput); }

// Large enough that the members share the work: every operation, sizes that do not divide.
TEST(FabricSize, LargeCollectivesAreSplitAmongTheMembers) {
  constexpr std::int64_t kNumel = 100'003;
  constexpr int kRanks = 3;
  const auto value = [](Rank rank, std::int64_t i) { return (rank + 1) * 1000 + i % 977; };
  const auto plans = plans_of(kRanks, [&](PlanBuilder& b, Rank) {
    const BufferId in = b.input("in", DType::i64, kRanks * kNumel),
                   sum = b.output("sum", DType::i64, kRanks * kNumel);
    const BufferId block = b.output("block", DType::i64, kNumel),
                   all = b.output("all", DType::i64, kRanks * kNumel);
    const BufferId turned = b.output("turned", DType::i64, kRanks * kNumel),
                   copy = b.output("copy", DType::i64, kNumel);
    const GroupId group = b.group("g", ranks_up_to(kRanks));
    const StreamId s = b.stream("s");
    const auto whole = [&](BufferId id) { return flat_view(id, 0, kRanks * kNumel); };
    const auto one = [&](BufferId id) { return flat_view(id, 0, kNumel); };
    b.add(s, AllReduce{group, ReduceOp::sum, whole(in), whole(sum)});
    b.add(s, ReduceScatter{group, ReduceOp::max, whole(in), one(block)});
    b.add(s, AllGather{group, one(in), whole(all)});
    b.add(s, AllToAll{group, whole(in), whole(turned)});
    b.add(s, Broadcast{group, 1, one(in), one(copy)});
  });
  Fabric fabric(kRanks);
  fabric.run([&](Rank rank, Device& device) {
    const Plan& plan = plans[static_cast<std::size_t>(rank)];
    device.prepare(plan, {});
    std::vector<std::int64_t> data(kRanks * kNumel);
    for (std::int64_t i = 0; i < kRanks * kNumel; ++i) data[static_cast<std::size_t>(i)] = value(rank, i);
    device.upload(0, std::as_bytes(std::span(data)));
    for (int repetition = 0; repetition < 3; ++repetition) enqueue_steps(plan, device);
    device.synchronize();
    const auto expect = [&](BufferId id, std::int64_t numel,
                            const std::function<std::int64_t(std::int64_t)>& expected) {
      std::vector<std::int64_t> got(static_cast<std::size_t>(numel));
      device.download(id, std::as_writable_bytes(std::span(got)));
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < numel; ++i) wrong += got[static_cast<std::size_t>(i)] != expected(i);
      EXPECT_EQ(wrong, 0) << plan.buffers[static_cast<std::size_t>(id)].name << " of rank " << rank;
    };
    expect(1, kRanks * kNumel, [&](std::int64_t i) { return value(0, i) + value(1, i) + value(2, i); });
    expect(2, kNumel, [&](std::int64_t i) { return value(2, rank * kNumel + i); });
    expect(3, kRanks * kNumel,
           [&](std::int64_t i) { return value(static_cast<Rank>(i / kNumel), i % kNumel); });
    expect(4, kRanks * kNumel,
           [&](std::int64_t i) { return value(static_cast<Rank>(i / kNumel), rank * kNumel + i % kNumel); });
    expect(5, kNumel, [&](std::int64_t i) { return value(1, i); });
  });
}

}  // namespace
}  // namespace cp::sim
