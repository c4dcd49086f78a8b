// Copy engines of NCCL on the NCCL device: windows that are registered as NCCL demands, collectives that take
// the copy engines and do not fall back, and what is refused. Builds with headers before NCCL 2.28 refuse all
// of it.
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl_versions.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/gpu/gpu_ranks.h"

namespace cp {
namespace {

using emulated::nccl_use;
using emulated::NcclUse;
using runtime::NcclDevice;
using testing::GpuJob;
using ::testing::HasSubstr;

constexpr bool kHasCopyEngines = NCCL_VERSION_CODE >= runtime::kNcclCopyEnginesSince;
constexpr bool kHasPuts = NCCL_VERSION_CODE >= runtime::kNcclPutSince;
#define CP_REQUIRE_COPY_ENGINES() \
  if (!kHasCopyEngines) GTEST_SKIP() << "this header of NCCL has no copy engines"

constexpr std::int64_t kNumel = 4;

// On two ranks: each gives both a block, and gathers what it got. Rank 1 has another temporary besides.
Plan moves(Rank self) {
  PlanBuilder b(self, host_target());
  const StreamId main = b.stream("main");
  const BufferId x = b.input("x", DType::f32, 2 * kNumel), y = b.output("y", DType::f32, 4 * kNumel);
  const BufferId from = b.symmetric("from", DType::f32, 2 * kNumel),
                 swapped = b.symmetric("swapped", DType::f32, 2 * kNumel),
                 all = b.symmetric("all", DType::f32, 4 * kNumel);
  const GroupId group = b.group("all_ce", {0, 1}, true);
  if (self == 1) b.add(main, Fill{flat_view(b.temporary("more", DType::f32, 100), 0, 100), 1});
  b.add(main, Copy{flat_view(x, 0, 2 * kNumel), flat_view(from, 0, 2 * kNumel)});
  b.add(main, AllToAll{group, flat_view(from, 0, 2 * kNumel), flat_view(swapped, 0, 2 * kNumel)});
  b.add(main, AllGather{group, flat_view(swapped, 0, 2 * kNumel), flat_view(all, 0, 4 * kNumel)});
  b.add(main, Copy{flat_view(all, 0, 4 * kNumel), flat_view(y, 0, 4 * kNumel)});
  return std::move(b).build({});
}

// Each rank's x and y of `plan`, run `times` times on the device.
std::vector<float> run_on(NcclDevice& device, const Plan& plan, int times = 1) {
  std::vector<float> x(2 * kNumel), y(4 * kNumel);
  std::iota(x.begin(), x.end(), static_cast<float>(100 * plan.self));
  device.prepare(plan, {});
  device.upload(0, std::as_bytes(std::span(x)));
  for (int i = 0; i < times; ++i) enqueue_steps(plan, device);
  device.synchronize();
  device.download(1, std::as_writable_bytes(std::span(y)));
  return y;
}

std::vector<std::string> on_two(const std::function<std::string(NcclDevice&, Rank)>& body) {
  const GpuJob job(2);
  return testing::run_gpu_ranks(2, [&](Rank rank) {
    NcclDevice device(job.options(rank));
    return body(device, rank);
  });
}

TEST(NcclWindows, CopyEnginesMoveWhatPlansPromise) {
  CP_REQUIRE_COPY_ENGINES();
  const NcclUse before = nccl_use();
  const std::vector<float> expected = {0, 1, 2, 3, 100, 101, 102, 103, 4, 5, 6, 7, 104, 105, 106, 107};
  EXPECT_EQ(on_two([&](NcclDevice& device, Rank rank) -> std::string {
              const Plan plan = moves(rank);
              if (run_on(device, plan, 3) != expected) return "other values";
              std::vector<OpRecord> records = device.take_observed();
              if (records.size() != 6) return str(records.size(), " records");
              for (std::size_t i = 0; i < records.size(); ++i) {
                const Volume moved{records[i].sent, records[i].received};
                const Collective& step =
                    std::get<Collective>(steps_of(plan)[steps_of(plan).size() - 3 + i % 2].step->work);
                if (moved != volume(step, plan) || records[i].operation != operation_name(step))
                  return str("record ", i, " is another one: ", records[i].operation);
              }
              return "";
            }),
            testing::kNothing2);
  const NcclUse after = nccl_use();
  EXPECT_EQ(after.windows - before.windows, 2U);
  EXPECT_EQ(after.by_copy_engines - before.by_copy_engines, 12U);
  EXPECT_EQ(after.fell_back, before.fell_back);
  EXPECT_EQ(after.registered, before.registered);
  EXPECT_EQ(after.allocated, before.allocated);  // windows and their memory are gone
}

// Plans of one lane share an arena, of which each rank needs another size; windows are each plan's own.
TEST(NcclWindows, KeptPlansHaveWindowsOfTheirOwn) {
  CP_REQUIRE_COPY_ENGINES();
  const NcclUse before = nccl_use();
  EXPECT_EQ(on_two([&](NcclDevice& device, Rank rank) -> std::string {
              const Plan plan = moves(rank);
              std::vector<float> x(2 * kNumel), y(4 * kNumel);
              const PreparedId one = device.keep(plan, {}, 1), two = device.keep(plan, {}, 1);
              for (const PreparedId id : {one, two, one}) {
                device.use(id, {});
                device.begin_run(nullptr);
                enqueue_steps(plan, device);
                device.end_run(nullptr, device.record(0));
              }
              device.synchronize();
              device.release(one);
              device.release(two);
              return "";
            }),
            testing::kNothing2);
  const NcclUse after = nccl_use();
  EXPECT_EQ(after.windows - before.windows, 4U);
  EXPECT_EQ(after.by_copy_engines - before.by_copy_engines, 12U);
  EXPECT_EQ(after.allocated, before.allocated);
}

// ---- what does not fit ends as an error ----

TEST(NcclWindows, AnOffsetThatDiffersIsAnError) {
  CP_REQUIRE_COPY_ENGINES();
  const auto said = on_two([](NcclDevice& device, Rank rank) -> std::string {
    Plan plan = moves(rank);
    if (rank == 1) {  // as a corrupted plan has it; "from" and "swapped" lie together in 256 bytes each
      for (Buffer& buffer : plan.buffers) {
        if (buffer.name == "swapped") buffer.offset_bytes += 64;
      }
    }
    run_on(device, plan);
    return "";
  });
  EXPECT_THAT(said[0] + said[1], HasSubstr("mismatch: rank"));
  EXPECT_THAT(said[0] + said[1], HasSubstr("windows at 0 and 256"));
  EXPECT_THAT(said[0] + said[1], HasSubstr("windows at 0 and 320"));
}

TEST(NcclWindows, ASegmentOfAnotherSizeIsAnError) {
  CP_REQUIRE_COPY_ENGINES();
  const auto said = on_two([](NcclDevice& device, Rank rank) -> std::string {
    Plan plan = moves(rank);
    if (rank == 1) plan.symmetric_bytes += 4096, plan.arena_bytes += 4096;
    for (Buffer& buffer : plan.buffers) {
      if (rank == 1 && buffer.name == "more") buffer.offset_bytes += 4096;
    }
    device.prepare(plan, {});
    return "";
  });
  EXPECT_THAT(said[0], HasSubstr("a window differs: rank 0 registers 4096 bytes"));
  EXPECT_THAT(said[1], HasSubstr("cannot register its symmetric segment with all_ce[0,1]"));
}

// ---- refusals ----

std::string refusal_of(const Plan& plan) {
  const GpuJob job(2);
  NcclDevice device(job.options(plan.self));
  try {
    device.prepare(plan, {});
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

Plan puts(Rank self) {
  PlanBuilder b(self, host_target());
  const BufferId a = b.symmetric("a", DType::f32, kNumel), c = b.symmetric("c", DType::f32, kNumel);
  b.add(b.stream("main"), Fill{flat_view(a, 0, kNumel), 1.0 + self});
  b.add(b.stream("main"), Exchange{b.group("all_ce", {0, 1}, true),
                                   {{1 - self, flat_view(a, 0, kNumel), flat_view(c, 0, kNumel)}},
                                   {{1 - self, flat_view(c, 0, kNumel)}},
                                   counts_digest({{0, 1, kNumel}, {1, 0, kNumel}})});
  const BufferId y = b.output("y", DType::f32, kNumel);
  b.add(b.stream("main"), Copy{flat_view(c, 0, kNumel), flat_view(y, 0, kNumel)});
  return std::move(b).build({});
}

TEST(NcclWindows, AVersionThatLacksThemIsRefusedBeforeItConnects) {
  const int version = emulated::nccl_version();
  emulated::set_nccl_version(22703);
  EXPECT_THAT(refusal_of(moves(0)),
              HasSubstr("all_to_all by copy engines needs NCCL 2.28.0 or later, and the "
                        "library found is 2.27.3"));
  EXPECT_THAT(refusal_of(moves(0)), HasSubstr("plan with transfers=sm"));
  emulated::set_nccl_version(22809);
  EXPECT_THAT(refusal_of(puts(0)), HasSubstr("exchange by copy engines needs NCCL 2.29.0 or later"));
  emulated::set_nccl_version(version);
}

// What plans for the device may choose follows from the library.
TEST(NcclWindows, TheTargetKnowsWhatTheLibraryHas) {
  const int version = emulated::nccl_version();
  const std::map<int, std::set<std::string>> lacks = {
      {22703, {"all_gather", "all_to_all", "exchange"}}, {22809, {"exchange"}}, {22907, {}}};
  for (const auto& [loaded, expected] : lacks) {
    if (loaded > NCCL_VERSION_CODE) continue;
    emulated::set_nccl_version(loaded);
    EXPECT_EQ(runtime::gpu_target_of(0).sm_only, expected) << loaded;
    EXPECT_EQ(digest(PlanBuilder(0, runtime::gpu_target_of(0)).build({})),
              digest(PlanBuilder(0, gpu_target(runtime::gpu_target_of(0).name)).build({})));
  }
  emulated::set_nccl_version(version);
}

TEST(NcclWindows, PutsArriveWhereThePlanSays) {
  if (!kHasPuts) GTEST_SKIP() << "this header of NCCL has no puts";
  EXPECT_EQ(on_two([](NcclDevice& device, Rank rank) -> std::string {
              const Plan plan = puts(rank);
              device.prepare(plan, {});
              for (int i = 0; i < 5; ++i) enqueue_steps(plan, device);
              device.synchronize();
              std::vector<float> y(kNumel);
              device.download(2, std::as_writable_bytes(std::span(y)));
              return y == std::vector<float>(kNumel, 2.0F - static_cast<float>(rank)) ? "" : "other values";
            }),
            testing::kNothing2);
}

}  // namespace
}  // namespace cp
