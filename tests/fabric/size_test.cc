// From one rank to a thousand, from one element to many.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/session.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

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

TEST(FabricSize, OneRank) {
  Fabric fabric(1);
  execute_all(fabric, good_plans(1));
  EXPECT_EQ(fabric.traces()[0].observed.size(), 1u);
}
TEST(FabricSize, TwoRanks) { expect_ring_and_sum(2, Schedule::parallel); }
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
    const BufferId odd = b.output("odd", DType::i64, kNumel);  // elements that no three ranks share evenly
    const GroupId group = b.group("g", ranks_up_to(kRanks));
    const StreamId s = b.stream("s");
    const auto whole = [&](BufferId id) { return flat_view(id, 0, kRanks * kNumel); };
    const auto one = [&](BufferId id) { return flat_view(id, 0, kNumel); };
    b.add(s, AllReduce{group, ReduceOp::sum, whole(in), whole(sum)});
    b.add(s, ReduceScatter{group, ReduceOp::max, whole(in), one(block)});
    b.add(s, AllGather{group, one(in), whole(all)});
    b.add(s, AllToAll{group, whole(in), whole(turned)});
    b.add(s, Broadcast{group, 1, one(in), one(copy)});
    b.add(s, AllReduce{group, ReduceOp::max, one(in), one(odd)});
  });
  Fabric fabric(kRanks);
  fabric.run([&](Rank rank, Device& device) {
    const Plan& plan = plans[static_cast<std::size_t>(rank)];
    PlanSession session(device, plan);
    std::vector<std::int64_t> data(kRanks * kNumel);
    for (std::int64_t i = 0; i < kRanks * kNumel; ++i) data[static_cast<std::size_t>(i)] = value(rank, i);
    session.upload(0, std::as_bytes(std::span(data)));
    session.run({.iterations = 3});
    const auto expect = [&](BufferId id, std::int64_t numel,
                            const std::function<std::int64_t(std::int64_t)>& expected) {
      std::vector<std::int64_t> got(static_cast<std::size_t>(numel));
      session.download(id, std::as_writable_bytes(std::span(got)));
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
    expect(6, kNumel, [&](std::int64_t i) { return value(2, i); });
  });
}

}  // namespace
}  // namespace cp::sim
