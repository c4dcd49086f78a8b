// The fabric's speed: collectives a second with small messages, beside a bare barrier, and large copies
// beside memcpy.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/futex.h"

namespace cp::sim {
namespace {

std::vector<Rank> all_ranks(int world_size) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}

using AddSteps = std::function<void(PlanBuilder&, GroupId)>;

std::vector<Plan> plans_for_all(int world_size, const AddSteps& add_steps) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < world_size; ++rank) {
    PlanBuilder builder(rank, host_target());
    add_steps(builder, builder.group("world", all_ranks(world_size)));
    plans.push_back(std::move(builder).build({}));
  }
  return plans;
}

void execute_all(Fabric& fabric, const std::vector<Plan>& plans) {
  fabric.run([&](Rank rank, Device& device) { execute(plans[static_cast<std::size_t>(rank)], device); });
}

std::int64_t count_for(std::int64_t rank_collectives, std::int64_t world_size) {
  return std::max<std::int64_t>(1, rank_collectives / world_size);
}

// What the machine allows: ranks that meet again and again at a futex, with one wake-up for all.
void bare_barrier(benchmark::State& state) {
  const auto world_size = static_cast<std::uint32_t>(state.range(0));
  const std::int64_t count = count_for(400'000, state.range(0));
  for (auto _ : state) {
    std::atomic<std::uint32_t> arrived{0};
    FutexWord round{0};
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&] {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::uint32_t now = round.load();
          if (arrived.fetch_add(1) + 1 == world_size) {
            arrived = 0;
            round.fetch_add(1);
            futex_wake_all(round);
          } else {
            while (round.load() == now) futex_wait(round, now);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  state.SetItemsProcessed(state.iterations() * count * state.range(0));
}
BENCHMARK(bare_barrier)->Name("bare_barrier/ranks")->Arg(64)->Arg(1024)->UseRealTime();

// Items: collectives, counted on each rank. With traces recorded, as everybody runs it.
void small_collectives(benchmark::State& state, FabricOptions options) {
  const int world_size = static_cast<int>(state.range(0));
  const std::int64_t numel = 64, count = count_for(400'000, world_size);  // 256 bytes
  const std::vector<Plan> plans = plans_for_all(world_size, [&](PlanBuilder& builder, GroupId world) {
    const StreamId stream = builder.stream("comm");
    const BufferId data = builder.inout("data", DType::f32, numel);
    builder.begin_repeat(count);
    builder.add(stream,
                AllReduce{world, ReduceOp::max, flat_view(data, 0, numel), flat_view(data, 0, numel)});
    builder.end_repeat();
  });
  Fabric fabric(world_size, options);
  for (auto _ : state) {
    execute_all(fabric, plans);
    state.PauseTiming();
    fabric.clear_traces();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * count * world_size);
}
BENCHMARK_CAPTURE(small_collectives, parallel, FabricOptions{})
    ->Name("all_reduce_256B/ranks")
    ->Arg(2)
    ->Arg(8)
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();
BENCHMARK_CAPTURE(small_collectives, baton, FabricOptions{.schedule = Schedule::baton})
    ->Name("all_reduce_256B_baton/ranks")
    ->Arg(64)
    ->UseRealTime();

// Two streams of a rank wait at once, each for its own group.
void two_streams(benchmark::State& state) {
  const int world_size = static_cast<int>(state.range(0));
  const std::int64_t numel = 64, count = count_for(200'000, world_size);
  const std::vector<Plan> plans = plans_for_all(world_size, [&](PlanBuilder& builder, GroupId world) {
    const GroupId other = builder.group("other", all_ranks(world_size));
    const BufferId a = builder.inout("a", DType::f32, numel), b = builder.inout("b", DType::f32, numel);
    const StreamId first = builder.stream("first"), second = builder.stream("second");
    builder.begin_repeat(count);
    builder.add(first, AllReduce{world, ReduceOp::max, flat_view(a, 0, numel), flat_view(a, 0, numel)});
    builder.add(second, AllReduce{other, ReduceOp::max, flat_view(b, 0, numel), flat_view(b, 0, numel)});
    builder.end_repeat();
  });
  Fabric fabric(world_size);
  for (auto _ : state) {
    execute_all(fabric, plans);
    state.PauseTiming();
    fabric.clear_traces();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * 2 * count * world_size);
}
BENCHMARK(two_streams)->Name("all_reduce_256B_two_streams/ranks")->Arg(64)->UseRealTime();

// What `cpsim verify` does a hundred thousand times: prepare and run a tiny plan on 8 ranks. Items: runs.
void tiny_plans(benchmark::State& state) {
  const int world_size = 8;
  const std::vector<Plan> plans = plans_for_all(world_size, [&](PlanBuilder& builder, GroupId world) {
    const StreamId stream = builder.stream("main");
    const BufferId in = builder.input("in", DType::f32, 64), out = builder.output("out", DType::f32, 512);
    const BufferId packed = builder.temporary("packed", DType::f32, 512);
    builder.add(stream, AllGather{world, flat_view(in, 0, 64), flat_view(packed, 0, 512)});
    builder.add(stream, Copy{flat_view(packed, 0, 512), flat_view(out, 0, 512)});
  });
  Fabric fabric(world_size, {.record_traces = false});
  for (auto _ : state) execute_all(fabric, plans);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(tiny_plans)->Name("prepare_and_run_tiny_plan/8")->UseRealTime();

// prepare() alone, on one rank.
void prepare_tiny_plan(benchmark::State& state) {
  const std::vector<Plan> plans = plans_for_all(1, [&](PlanBuilder& builder, GroupId world) {
    const StreamId stream = builder.stream("main");
    const BufferId in = builder.input("in", DType::f32, 64), out = builder.output("out", DType::f32, 64);
    const BufferId packed = builder.temporary("packed", DType::f32, 64);
    builder.add(stream, AllGather{world, flat_view(in, 0, 64), flat_view(packed, 0, 64)});
    builder.add(stream, Copy{flat_view(packed, 0, 64), flat_view(out, 0, 64)});
  });
  Fabric fabric(1);
  fabric.run([&](Rank, Device& device) {
    for (auto _ : state) device.prepare(plans[0], {});
  });
}
BENCHMARK(prepare_tiny_plan);

// ---- large copies ---------------------------------------------------------------------------------------------------

constexpr std::int64_t kGatheredBytes = 64 << 20;  // that each rank ends with

// As many threads as cores, each copying the gathered bytes from one place to another.
double memcpy_bytes_per_second(int threads) {
  const auto size = static_cast<std::size_t>(kGatheredBytes);
  std::vector<std::vector<char>> from, to;
  for (int i = 0; i < threads; ++i) {
    from.emplace_back(size, 'a');
    to.emplace_back(size, 'b');
  }
  double best = 0;
  for (int repetition = 0; repetition < 5; ++repetition) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < from.size(); ++i) {
      running.emplace_back([&, i] { std::memcpy(to[i].data(), from[i].data(), size); });
    }
    for (std::thread& thread : running) thread.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kGatheredBytes) * threads / seconds.count());
  }
  return best;
}

// memcpy_ratio: bytes written a second, against memcpy on all cores.
void large_all_gather(benchmark::State& state) {
  const int world_size = static_cast<int>(state.range(0));
  const std::int64_t numel = kGatheredBytes / 4, block = numel / world_size;
  const std::vector<Plan> plans = plans_for_all(world_size, [&](PlanBuilder& builder, GroupId world) {
    const StreamId stream = builder.stream("comm");
    const BufferId in = builder.input("in", DType::f32, block),
                   out = builder.output("out", DType::f32, block * world_size);
    builder.add(stream, AllGather{world, flat_view(in, 0, block), flat_view(out, 0, block * world_size)});
  });
  Fabric fabric(world_size);
  fabric.run([&](Rank rank, Device& device) { device.prepare(plans[static_cast<std::size_t>(rank)], {}); });
  const double limit =
      memcpy_bytes_per_second(std::min<int>(2, static_cast<int>(std::thread::hardware_concurrency())));
  double seconds = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    fabric.run([&](Rank rank, Device& device) {
      enqueue_steps(plans[static_cast<std::size_t>(rank)], device);
      device.synchronize();
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    seconds += elapsed.count();
    state.SetIterationTime(elapsed.count());
  }
  const double bytes = static_cast<double>(state.iterations() * kGatheredBytes * world_size);
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
  state.counters["memcpy_ratio"] = bytes / seconds / limit;
}
BENCHMARK(large_all_gather)
    ->Name("all_gather_64MiB/ranks")
    ->Arg(2)
    ->Arg(8)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cp::sim
