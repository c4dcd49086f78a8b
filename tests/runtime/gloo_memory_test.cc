// What plans take of a process's memory over Gloo: what they declare, once.
#ifdef CP_HAVE_GLOO
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/gloo/gloo_device.h"
#include "runtime/gloo/gloo_reduction.h"
#endif

#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooMemory, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
// Of Gloo and of this project for one run, whatever its tensors' sizes: transfers, records, a thread's stack.
constexpr std::int64_t kHousekeepingBytes = 2 * kMiB;
// Above the 32 MiB from which on the C library gives memory back to the system each time.
constexpr std::int64_t kBytes = 48 * kMiB;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasuresOthers = true;  // a sanitizer's shadow of what is touched
#else
constexpr bool kMeasuresOthers = false;
#endif

// "VmRSS" or "VmHWM", the most that it ever was.
std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return 1024 * std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

std::int64_t faulted_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt * sysconf(_SC_PAGESIZE);
}

// One collective of `kBytes` on the side that is larger.
Plan plan_of(const std::string& operation, Rank self, int ranks) {
  PlanBuilder b(self, host_target());
  std::vector<Rank> all;
  for (Rank rank = 0; rank < ranks; ++rank) all.push_back(rank);
  const GroupId group = b.group("all", all);
  const std::int64_t numel = kBytes / 4, block = numel / ranks;
  const bool gathers = operation == "all_gather", scatters = operation == "reduce_scatter";
  const View in = flat_view(b.input("in", DType::f32, gathers ? block : numel), 0, gathers ? block : numel);
  const View out =
      flat_view(b.output("out", DType::f32, scatters ? block : numel), 0, scatters ? block : numel);
  const StreamId stream = b.stream("main");
  if (gathers) b.add(stream, AllGather{group, in, out});
  if (scatters) b.add(stream, ReduceScatter{group, ReduceOp::sum, in, out});
  if (operation == "all_reduce") b.add(stream, AllReduce{group, ReduceOp::sum, in, out});
  if (operation == "all_to_all") b.add(stream, AllToAll{group, in, out});
  if (operation == "broadcast") b.add(stream, Broadcast{group, 0, in, out});
  return std::move(b).build({});
}

// A process for each operation: the most that one ever had stays.
TEST(GlooMemory, ACollectiveTakesWhatItsPlanDeclares) {
  if (kMeasuresOthers) GTEST_SKIP() << "a sanitizer's memory would be measured";
  for (const std::string operation :
       {"reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast"}) {
    const testing::TemporaryDirectory store;
    const auto said = testing::run_processes(3, [&](Rank rank) -> std::string {
      runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
      // Connections and threads are there.
      const Plan nothing = [&] {
        PlanBuilder b(rank, host_target());
        b.group("all", {0, 1, 2});
        b.stream("main");
        return std::move(b).build({});
      }();
      execute(nothing, device);
      const Plan plan = plan_of(operation, rank, 3);
      const std::int64_t before = status_bytes("VmRSS");
      execute(plan, device);
      const std::int64_t taken = status_bytes("VmHWM") - before;
      const std::int64_t declared = peak_bytes(plan) + runtime::kMostStagingBytes + kHousekeepingBytes;
      return taken <= declared ? "" : str(taken, " bytes, declared are ", declared);
    });
    EXPECT_EQ(said, std::vector<std::string>(3)) << operation;
  }
}

// Its arena, the buffers that nobody bound, and what a collective needs are there from the first run; other
// plans in between leave them there.
TEST(GlooMemory, APlanThatRunsAgainFaultsNothingIn) {
  if (kMeasuresOthers) GTEST_SKIP() << "a sanitizer's memory would be measured";
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
    const Mesh mesh({{"a", 2}});
    const auto layout = [&](const char* placements, std::int64_t rows) {
      return parse_layout(placements, mesh, {rows, kBytes / 4 / 64}, DType::f32);
    };
    // Packs the whole, and unpacks it.
    const Plan moved = lower(plan_redistribution(layout("P(sum)", 64), layout("S(1)", 64)), rank),
               smaller = lower(plan_redistribution(layout("P(sum)", 8), layout("R", 8)), rank);
    if (moved.arena_bytes < kBytes) return str("an arena of ", moved.arena_bytes, " bytes");
    std::vector<std::byte> in(static_cast<std::size_t>(moved.buffers[kRedistributeInput].bytes())),
        out(static_cast<std::size_t>(moved.buffers[kRedistributeOutput].bytes()));
    const Bindings bindings = {{kRedistributeInput, in.data(), static_cast<std::int64_t>(in.size())},
                               {kRedistributeOutput, out.data(), static_cast<std::int64_t>(out.size())}};
    for (const bool binds : {true, false}) {
      const auto run = [&] { execute(moved, device, binds ? bindings : Bindings{}); };
      run(), run();
      const std::int64_t begin = faulted_bytes();
      for (int i = 0; i < 4; ++i) run();
      const std::int64_t faulted = faulted_bytes() - begin;
      if (faulted > kHousekeepingBytes) return str(faulted, " bytes in four runs, bound: ", binds);
      if (binds) execute(smaller, device);
    }
    return "";
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// In a group of so many that each piece is small, and for values of any size, a member keeps no more than is
// declared.
TEST(GlooMemory, StagingIsBoundedForGroupsOfEverySize) {
  for (std::int64_t members = 2; members < 30'000; members += 1 + members / 3) {
    const std::int64_t piece = runtime::reduced_piece_bytes(members);
    EXPECT_GE(piece, 64) << members;  // a whole number of elements of every type
    EXPECT_EQ(piece % 64, 0) << members;
    EXPECT_LE(2 * (members - 1) * piece, runtime::kMostStagingBytes) << members;
  }
}

#endif

}  // namespace
}  // namespace cp
