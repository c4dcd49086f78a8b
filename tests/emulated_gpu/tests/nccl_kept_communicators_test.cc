// How many communicators a device has: one for each group, given back when no plan needs it. Those of the
// emulated NCCL are counted.
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl_descriptors.h"
#include "runtime/nccl_pools.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/prepared_plan.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using emulated::communicator_count;
using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::GpuJob;
using testing::kNothing2;

// x becomes the sum of both ranks' x, in each of the groups in turn.
Plan sums_of(Rank self, const std::vector<std::string>& groups) {
  PlanBuilder b(self, host_target());
  const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
  for (const std::string& group : groups)
    b.add(b.stream("main"), AllReduce{b.group(group, {0, 1}), ReduceOp::sum, x, x});
  return std::move(b).build({});
}

// Runs it on ones: 2 to the power of the groups.
std::string run_plan(PreparedPlan& prepared) {
  const std::vector<float> ones(4, 1);
  prepared.upload(0, std::as_bytes(std::span(ones)));
  prepared.run().wait();
  std::vector<float> got(4);
  prepared.download(0, std::as_writable_bytes(std::span(got)));
  float expected = 1;
  for (std::size_t i = 0; i < prepared.plan().groups.size(); ++i) expected *= 2;
  return got == std::vector<float>(4, expected) ? "" : str("got ", got[0], " instead of ", expected);
}

std::string run_plan(NcclDevice& device, const Plan& plan) {
  PreparedPlan prepared(device, plan);
  return run_plan(prepared);
}

// Of this process, in which both ranks are: those that were given back go on a thread of their own.
std::string expect_communicators(std::size_t expected) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (communicator_count() != expected) {
    if (std::chrono::steady_clock::now() > until)
      return str(communicator_count(), " communicators instead of ", expected);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "";
}

// Both ranks count when both have got as far.
using Barrier = std::function<void()>;
std::vector<std::string> run_two(const GpuJob& job,
                                 const std::function<std::string(Rank, const Barrier&)>& body) {
  return testing::run_gpu_ranks(2, [&](Rank rank) {
    const NcclOptions options = job.options(rank);
    const Group all{"counters", {0, 1}};
    std::int64_t number = 0;
    return body(rank, [&] { options.agree(all, number++, ""); });
  });
}

TEST(NcclKeptCommunicators, AreOneForEachGroup) {
  const std::size_t before = communicator_count();
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclDevice device(job.options(rank));
    const Plan plan = sums_of(rank, {"a", "b", "c"});
    std::string wrong = run_plan(device, plan);
    if (wrong.empty()) wrong = expect_communicators(before + 6);
    together();
    return wrong;
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
  EXPECT_EQ(communicator_count(), before);
}

TEST(NcclKeptCommunicators, OfTheWorldThereIsOneMore) {
  const std::size_t before = communicator_count();
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclDevice device(job.splitting_options(rank));
    std::string wrong = run_plan(device, sums_of(rank, {"a"}));
    if (wrong.empty()) wrong = run_plan(device, sums_of(rank, {"b", "c"}));
    if (wrong.empty()) wrong = expect_communicators(before + 8);
    together();
    return wrong;
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
  EXPECT_EQ(communicator_count(), before);
}

// Twenty groups, one after the other, and back to the first ones, with room for two.
TEST(NcclKeptCommunicators, BeyondTheLimitThoseUsedLastStay) {
  for (const bool split : {false, true}) {
    SCOPED_TRACE(split ? "split from the world" : "of their own");
    const std::size_t before = communicator_count();
    const GpuJob job(2);
    const auto body = [&](Rank rank, const Barrier& together) -> std::string {
      NcclOptions options = split ? job.splitting_options(rank) : job.options(rank);
      options.communicators.most_kept = 2;
      NcclDevice device(options);
      const std::size_t world = split ? 2 : 0;
      for (int i = 0; i < 24; ++i) {
        const Plan plan = sums_of(rank, {str("group ", i % 20)});
        std::string wrong = run_plan(device, plan);
        if (wrong.empty()) wrong = expect_communicators(before + world + (i == 0 ? 2 : 4));
        together();  // counted
        if (!wrong.empty()) return str("after ", i + 1, ": ", wrong);
      }
      return "";
    };
    EXPECT_EQ(run_two(job, body), kNothing2);
    EXPECT_EQ(communicator_count(), before);
  }
}

// b is the one that nobody has used for longest when c comes, though a was made before it.
TEST(NcclKeptCommunicators, ThoseUsedLeastRecentlyAreGivenBackFirst) {
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclOptions options = job.options(rank);
    options.communicators.most_kept = 2;
    NcclDevice device(options);
    const std::size_t before = emulated::nccl_use().made;
    together();
    // Of each rank two are made for a group: its own, and the one that it is split from.
    std::size_t expected = before;
    for (const auto& [group, made] : std::vector<std::pair<std::string, std::size_t>>{
             {"a", 4}, {"b", 4}, {"a", 0}, {"c", 4}, {"a", 0}, {"b", 4}}) {
      std::string wrong = run_plan(device, sums_of(rank, {group}));
      together();
      expected += made;
      if (wrong.empty() && emulated::nccl_use().made != expected)
        wrong =
            str(emulated::nccl_use().made - before, " were made up to ", group, ", not ", expected - before);
      together();
      if (!wrong.empty()) return wrong;
    }
    return "";
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
}

// A limit that a plan in use exceeds by itself is no limit for it.
TEST(NcclKeptCommunicators, OfPlansInUseStay) {
  const std::size_t before = communicator_count();
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclOptions options = job.options(rank);
    options.communicators.most_kept = 1;
    NcclDevice device(options);
    const Plan kept = sums_of(rank, {"a", "b", "c"}), other = sums_of(rank, {"d"}),
               last = sums_of(rank, {"e"});
    {
      PreparedPlan in_use(device, kept);
      for (const Plan* plan : {&other, &last, &other}) {
        if (std::string wrong = run_plan(device, *plan); !wrong.empty()) return wrong;
        if (std::string wrong = expect_communicators(before + 8); !wrong.empty()) return wrong;
        together();
      }
      if (std::string wrong = run_plan(in_use); !wrong.empty()) return wrong;
    }
    std::string wrong = run_plan(device, last);
    if (wrong.empty()) wrong = expect_communicators(before + 2);
    together();
    return wrong;
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
}

// Rank 0 has room for one communicator, and gives back what rank 1 still has: both connect again, and rank 1
// gives back its half.
TEST(NcclKeptCommunicators, OfWhichARankHasGivenBackItsOwnAreMadeAgain) {
  const std::size_t before = communicator_count();
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclOptions options = job.options(rank);
    options.communicators.most_kept = rank == 0 ? 1 : 8;
    NcclDevice device(options);
    const Plan a = sums_of(rank, {"a"}), b = sums_of(rank, {"b"});
    for (int i = 0; i < 3; ++i) {
      for (const Plan* plan : {&a, &b}) {
        if (std::string wrong = run_plan(device, *plan); !wrong.empty()) return wrong;
      }
    }
    std::string wrong = expect_communicators(before + 1 + 2);
    together();
    return wrong;
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
  EXPECT_EQ(communicator_count(), before);
}

// Whoever follows the collectives of a group sees their numbers go on.
TEST(NcclKeptCommunicators, NumbersOfAGroupGoOnInANewOne) {
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier&) -> std::string {
    std::vector<std::int64_t> numbers;
    NcclOptions options = job.options(rank);
    options.communicators.most_kept = 1;
    options.on_collective = [&](const runtime::CollectiveBegin& begin) {
      if (begin.group.name == "a") numbers.push_back(begin.number);
    };
    NcclDevice device(options);
    for (const char* group : {"a", "b", "a", "b", "a"}) {
      if (std::string wrong = run_plan(device, sums_of(rank, {group})); !wrong.empty()) return wrong;
    }
    device.synchronize();
    return numbers == std::vector<std::int64_t>{0, 1, 2} ? "" : join(numbers, ", ");
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
}

// Ranks that cannot agree cannot give back, either.
TEST(NcclKeptCommunicators, StayWhereRanksDoNotAgree) {
  const std::size_t before = communicator_count();
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclOptions options = job.options(rank);
    options.communicators.most_kept = 1;
    options.agree = {};
    NcclDevice device(options);
    for (const char* group : {"a", "b", "c"}) {
      if (std::string wrong = run_plan(device, sums_of(rank, {group})); !wrong.empty()) return wrong;
    }
    std::string wrong = expect_communicators(before + 6);
    together();
    return wrong;
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
}

TEST(NcclKeptCommunicators, ALimitOfNoneIsRefused) {
  const GpuJob job(1);
  NcclOptions options = job.options(0);
  options.communicators.most_kept = 0;
  EXPECT_THAT(testing::message_of([&] { const NcclDevice device(options); }),
              ::testing::HasSubstr("most_kept is 0; use 1 or more"));
}

// ---- what NCCL needs of the system

// The soft limit of descriptors, until the end of a test.
class SoftLimit {
 public:
  explicit SoftLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit changed = before_;
    changed.rlim_cur = soft;
    setrlimit(RLIMIT_NOFILE, &changed);
  }
  ~SoftLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  rlimit before_ = {};
};

TEST(NcclKeptCommunicators, TheLimitOfDescriptorsIsRaisedWhereItDoesNotSuffice) {
  const auto open = static_cast<rlim_t>(runtime::descriptor_limits().open);
  const SoftLimit low(open + 100);
  if (runtime::descriptor_limits().hard < static_cast<std::int64_t>(open) + 1'000)
    GTEST_SKIP() << "this process may not open more";
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier&) -> std::string {
    NcclDevice device(job.options(rank));
    return run_plan(device, sums_of(rank, {"a", "b", "c", "d"}));
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
  EXPECT_GE(runtime::descriptor_limits().soft,
            static_cast<std::int64_t>(open) + 4 * runtime::kNcclDescriptors);
}

// As where ranks share a GPU: what does not fit is refused before anything connects, and the device goes on.
TEST(NcclKeptCommunicators, GroupsWithoutSharedMemoryAreRefusedByTheDeviceItself) {
  const auto shared_memory = runtime::shared_memory_bytes();
  if (!shared_memory) GTEST_SKIP() << "/dev/shm has no limit";
  const std::int64_t pools = *shared_memory / runtime::kNcclPoolBytes;
  if (pools > 2'000) GTEST_SKIP() << "/dev/shm is too large";
  const GpuJob job(2);
  const auto body = [&](Rank rank, const Barrier& together) -> std::string {
    NcclOptions options = job.options(rank);
    options.each_is_a_host = true;  // 2 pools for each group
    NcclDevice device(options);
    std::vector<std::string> groups;
    for (std::int64_t i = 0; i <= pools / 2; ++i) groups.push_back(str("group ", i));
    const Plan large = sums_of(rank, groups);
    std::string said = testing::message_of([&] { device.prepare(large, {}); });
    if (said.find("NCCL needs ") == std::string::npos || said.find("--shm-size") == std::string::npos)
      return said;
    together();
    return pools < 2 ? "" : run_plan(device, sums_of(rank, {"a"}));
  };
  EXPECT_EQ(run_two(job, body), kNothing2);
}

}  // namespace
}  // namespace cp
