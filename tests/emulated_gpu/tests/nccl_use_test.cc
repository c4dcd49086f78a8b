// How the NCCL device uses NCCL where a wrong use has no visible end: it costs memory, or an option has no
// effect.
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "runtime/errors.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_order.h"
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
using runtime::NcclOptions;
using testing::GpuJob;
using namespace std::chrono_literals;

// On two ranks: a collective of the two, with memory of every kind.
Plan gather(Rank self, std::int64_t numel = 4) {
  PlanBuilder b(self, host_target());
  const BufferId x = b.input("x", DType::f32, numel);
  const BufferId y = b.temporary("y", DType::f32, 2 * numel);
  b.add(b.stream("main"),
        AllGather{b.group("all", {0, 1}), flat_view(x, 0, numel), flat_view(y, 0, 2 * numel)});
  return std::move(b).build({});
}

void run(const std::function<Plan(Rank)>& plan_of, const std::function<void(NcclOptions&)>& change = {}) {
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     NcclOptions options = job.options(rank);
                                     if (change) change(options);
                                     NcclDevice device(options);
                                     execute(plan_of(rank), device);
                                     return "";
                                   }),
            std::vector<std::string>(2));
}

TEST(NcclUse, RegistersMemoryThatNcclCanRegister) {
  const NcclUse before = nccl_use();
  run([](Rank rank) { return gather(rank); },
      [](NcclOptions& o) { o.communicators.register_buffers = true; });
  const NcclUse after = nccl_use();
  EXPECT_EQ(after.registered - before.registered, 4U);  // arena and x of both
  EXPECT_EQ(after.without_effect, before.without_effect);
  EXPECT_EQ(after.allocated, before.allocated);  // none is left
}

TEST(NcclUse, MemoryOfNcclThatDoesNotSufficeIsRefusedAsOther) {
  const GpuJob job(1);
  NcclOptions options = job.options(0);
  options.communicators.register_buffers = true;
  NcclDevice device(options);
  PlanBuilder b(0, host_target());
  b.inout("x", DType::f32, std::int64_t{1} << 44);
  const Plan plan = std::move(b).build({});
  try {
    device.prepare(plan, {});
    ADD_FAILURE() << "no error";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no room for buffer x of 70368744177664 bytes"));
  }
}

TEST(NcclUse, NothingToDoIsNoCall) {
  const std::size_t before = nccl_use().empty_groups;
  run([](Rank rank) { return gather(rank, 0); });
  run([](Rank self) {
    PlanBuilder b(self, host_target());
    b.add(b.stream("main"),
          Exchange{.group = b.group("all", {0, 1}), .sends = {}, .recvs = {}, .counts = {}});
    return std::move(b).build({});
  });
  EXPECT_EQ(nccl_use().empty_groups, before);
}

// Far more than NCCL has room for, to a peer that comes late or never.
TEST(NcclUse, FewCollectivesAreUnderWayAtOnce) {
  constexpr int kMany = 300;
  for (const bool comes : {true, false}) {
    static_cast<void>(emulated::take_most_under_way());
    const GpuJob job(2);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(testing::run_gpu_ranks(2,
                                     [&](Rank rank) -> std::string {
                                       NcclDevice device(job.options(rank));
                                       PlanBuilder b(rank, host_target());
                                       const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
                                       const GroupId group = b.group("all", {0, 1});
                                       for (int i = 0; i < kMany; ++i)
                                         b.add(b.stream("main"), AllReduce{group, ReduceOp::max, x, x});
                                       const Plan plan = std::move(b).build({});
                                       device.prepare(plan, {});
                                       device.launch(steps_of(plan)[0], 0);  // connects
                                       device.synchronize();
                                       std::jthread aborter;
                                       if (rank == 1) std::this_thread::sleep_for(comes ? 300ms : 900ms);
                                       if (rank == 1 && !comes) return "";
                                       if (!comes) {
                                         aborter = std::jthread([&] {
                                           std::this_thread::sleep_for(300ms);
                                           device.abort();
                                         });
                                       }
                                       enqueue_steps(plan, device);
                                       try {
                                         device.synchronize();
                                       } catch (const runtime::PeerLost&) {
                                         return comes ? "an error" : "";
                                       }
                                       return comes ? "" : "no error";
                                     }),
              std::vector<std::string>(2));
    EXPECT_EQ(emulated::take_most_under_way(), runtime::NcclOrder::kMostUnderWay);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  }
}

// What is only split from carries nothing.
TEST(NcclUse, AParentHasOneChannel) {
  run([](Rank rank) { return gather(rank); }, [](NcclOptions& o) { o.communicators.min_ctas = 4; });
  EXPECT_EQ(nccl_use().channels_of_parent, 1U);
}

TEST(NcclUse, APolicyWithoutEffectIsRefused) {
  const GpuJob job(1);
  NcclOptions options = job.options(0);
  options.communicators.cta_policy = 2;
  EXPECT_THROW(NcclDevice device(options), InvalidInput);
}

// What the emulated library says that it is, until the end of a test.
class LibraryVersion {
 public:
  explicit LibraryVersion(int version) { emulated::set_nccl_version(version); }
  ~LibraryVersion() { emulated::set_nccl_version(before_); }
  LibraryVersion(const LibraryVersion&) = delete;
  LibraryVersion& operator=(const LibraryVersion&) = delete;

 private:
  const int before_ = emulated::nccl_version();
};

// A library that is older than the header ignores what it does not know.
TEST(NcclUse, APolicyThatTheLibraryWouldIgnoreIsRefused) {
  const GpuJob job(1);
  NcclOptions options = job.options(0);
  options.communicators.cta_policy = 1;
  {
    const LibraryVersion old(22605);
    try {
      NcclDevice device(options);
      ADD_FAILURE() << "no error";
    } catch (const InvalidInput& error) {
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("cta_policy 1 (efficiency) needs NCCL 2.27.0 or later, and "
                                       "the library found is 2.26.5, which would ignore it"));
    }
    options.communicators.cta_policy = 0;
    const NcclDevice device(options);
  }
  const LibraryVersion recent(23203);
  options.communicators.cta_policy = 1;
  if (NCCL_VERSION_CODE >= runtime::kNcclCtaPolicySince) {
    const NcclDevice device(options);
  } else {
    EXPECT_THROW(NcclDevice device(options), InvalidInput);
  }
}

// Each version refuses two ranks of one GPU in words of its own.
TEST(NcclUse, RanksThatMayNotShareAGpuAreToldHowWhateverTheVersion) {
  for (const int version : {22105, 22809, 23007, 23203}) {
    SCOPED_TRACE(version);
    const LibraryVersion library(version);
    const GpuJob job(2);
    const std::vector<std::string> said = testing::run_gpu_ranks(2, [&](Rank rank) -> std::string {
      NcclOptions options = job.options(rank);
      options.cuda_device = 0;
      NcclDevice device(options);
      device.prepare(gather(rank), {});
      return "";
    });
    for (const std::string& words : said) {
      EXPECT_THAT(words, ::testing::HasSubstr(version < runtime::kNcclMultiRankGpuSince
                                                  ? "Duplicate GPU"
                                                  : "Multiple Ranks are using"));
      EXPECT_THAT(words,
                  ::testing::HasSubstr("; give each rank a GPU of its own, or use --allow-shared-gpu"));
    }
  }
}

// NCCL may have read the variable before.
TEST(NcclUse, ALaunchOrderThatIsAskedForLateIsNotBelieved) {
  const char* at_start = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  const std::string value = at_start == nullptr ? "" : at_start;
  EXPECT_EQ(runtime::nccl_keeps_launch_order(), value == "1");
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  EXPECT_EQ(runtime::nccl_keeps_launch_order(), value == "1");
  if (at_start == nullptr) {
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  } else {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", value.c_str(), 1);
  }
}

}  // namespace
}  // namespace cp
