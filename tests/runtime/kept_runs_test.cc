// What a run of a kept plan costs the program: no allocation, and no wait.
#ifdef CP_HAVE_GLOO
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/gloo/gloo_device.h"
#include "shared/context_parallel/attention.h"
#endif

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/prepared_plan.h"
#include "tests/runtime/allocations.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(KeptRuns, AreTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

constexpr std::int64_t kRingElements = 8, kRingBytes = 4 * kRingElements;

// Blocks go around once, and are added up on another stream.
Plan ring_of(Rank self, std::int32_t ranks) {
  PlanBuilder b(self, host_target());
  std::vector<Rank> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto whole = [](BufferId buffer) { return flat_view(buffer, 0, kRingElements); };
  const GroupId group = b.group("ring", all);
  const BufferId in = b.input("in", DType::f32, kRingElements),
                 out = b.output("out", DType::f32, kRingElements);
  const StreamId compute = b.stream("compute"), comm = b.stream("comm");
  b.add(compute, Copy{whole(in), whole(out)});
  std::vector<Count> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (std::int32_t from = 0; from < ranks; ++from)
    counts.push_back({.from = from, .to = (from + 1) % ranks, .numel = kRingElements});
  BufferId held = in;
  for (std::int32_t step = 1; step < ranks; ++step) {
    const BufferId next = b.temporary(str("block ", step), DType::f32, kRingElements);
    b.add(comm, Exchange{.group = group,
                         .sends = {{(self + 1) % ranks, whole(held)}},
                         .recvs = {{(self + ranks - 1) % ranks, whole(next)}},
                         .counts = counts_digest(counts)});
    b.add(compute, Accumulate{ReduceOp::sum, whole(next), whole(out)});
    held = next;
  }
  return std::move(b).build({});
}

TEST(KeptRuns, TenThousandAllocateNothing) {
  constexpr int kRuns = 10'000, kWarmUp = 10;
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path(), .traces = false});
    const Plan plan = ring_of(rank, 2);
    PreparedPlan prepared(device, plan);
    std::vector<float> in(kRingElements, 1), first(kRingElements), second(kRingElements);
    const Bindings bindings[2] = {{{0, in.data(), kRingBytes}, {1, first.data(), kRingBytes}},
                                  {{0, in.data(), kRingBytes}, {1, second.data(), kRingBytes}}};
    std::int64_t before = 0;
    for (int run = 0; run < kRuns + kWarmUp; ++run) {
      if (run == kWarmUp) before = testing::allocations_of_this_thread();
      in[0] = static_cast<float>(run);
      prepared.run(bindings[run % 2]).wait();
      const float got = (run % 2 == 0 ? first : second)[0];
      if (got != static_cast<float>(2 * run)) return str("run ", run, " gave ", got);
    }
    // Where they are not counted, this shows that the runs are right.
    const std::int64_t allocations = testing::allocations_of_this_thread() - before;
    return allocations == 0 ? "" : str(allocations, " allocations in ", kRuns, " runs");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// Attention as a program keeps it. What the device's own threads allocate inside of Gloo is not counted.
TEST(KeptRuns, TenThousandOfARingOfAttentionAllocateNothing) {
  constexpr int kRunsOfAPass = 5'000, kWarmUp = 10;
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path(), .traces = false});
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 8;
    problem.q_heads = 2, problem.kv_heads = 1, problem.head_dim = problem.v_head_dim = 4;
    problem.causal = true;
    PlanCache plans;
    ContextParallelAttention attention(device, {0, 1}, named_strategy({"ring", {}, {}}, problem, 2), plans);
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      std::map<std::string, std::vector<float>> memory[2];
      NamedBuffers named[2];
      for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
        for (int i = 0; i < 2; ++i) {
          memory[i][name].assign(static_cast<std::size_t>(bytes) / sizeof(float), 1);
          named[i][name] = memory[i][name].data();
        }
      }
      PreparedAttention prepared(attention, problem, pass, named[0]);
      const Bindings bound[2] = {prepared.bind(named[0]), prepared.bind(named[1])};
      std::int64_t before = 0;
      for (int run = 0; run < kRunsOfAPass + kWarmUp; ++run) {
        if (run == kWarmUp) before = testing::allocations_of_this_thread();
        prepared.run(bound[run % 2]).wait();
      }
      const std::int64_t allocations = testing::allocations_of_this_thread() - before;
      if (allocations != 0) return str(allocations, " allocations in ", kRunsOfAPass, " runs");
      // All values are 1, and so is what attention makes of them.
      const char* const made = pass == AttentionPass::forward ? "out" : "dv";
      if (memory[0][made] != memory[1][made]) return "the two sets of buffers got different results";
      if (pass == AttentionPass::forward && std::abs(memory[1]["out"].front() - 1) > 1e-5)
        return "wrong results";
    }
    return "";
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// A member that has gone is an error of whoever waits, and what was kept can be given back.
TEST(KeptRuns, TellWhoeverWaitsThatAPeerIsLost) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
    const Plan plan = ring_of(rank, 2);
    PreparedPlan prepared(device, plan);
    prepared.run().wait();
    if (rank == 1) return "";
    const PlanRun lost = prepared.run();
    prepared.run();
    for (int twice = 0; twice < 2; ++twice) {
      try {
        lost.wait();
        return "no error";
      } catch (const PeerLost&) {
      }
    }
    return lost.has_ended() ? "it has ended" : "";
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

TEST(KeptRuns, AreCountedAtAll) {
  if (!testing::kCountsAllocations) GTEST_SKIP() << "a sanitizer has its own operators";
  const std::int64_t before = testing::allocations_of_this_thread();
  const std::vector<int> some(1000);
  EXPECT_EQ(some.size(), 1000U);
  EXPECT_GT(testing::allocations_of_this_thread(), before);
}

#endif

}  // namespace
}  // namespace cp
