// What can go wrong on the NCCL device: each ends soon, as an error that names the operation, the group and
// who.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/errors.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "tests/gpu/gpu_ranks.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_nccl.h"
#endif

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using runtime::PeerLost;
using runtime::Timeout;
using std::chrono::milliseconds;
using testing::GpuJob;
using testing::kNothing1;
using testing::kNothing2;
using Clock = std::chrono::steady_clock;

// `count` sums of 4 elements on the ranks' group, one after the other.
Plan sums(Rank self, std::vector<Rank> ranks, int count = 1, std::int64_t numel = 4) {
  PlanBuilder b(self, host_target());
  const BufferId x = b.inout("x", DType::f32, numel);
  const GroupId group = b.group("all", std::move(ranks));
  for (int i = 0; i < count; ++i) {
    b.add(b.stream("main"), AllReduce{group, ReduceOp::sum, flat_view(x, 0, numel), flat_view(x, 0, numel)});
  }
  return std::move(b).build({});
}

// What f throws when it is an E that says all of `words`: nothing; else what it was.
template <class E>
std::string expect(const std::function<void()>& f, const std::vector<std::string>& words) {
  try {
    f();
  } catch (const E& error) {
    const std::string message = error.what();
    for (const std::string& word : words) {
      if (message.find(word) == std::string::npos) return str("'", word, "' is missing in: ", message);
    }
    return "";
  } catch (const std::exception& error) {
    return str("another error: ", error.what());
  }
  return "no error";
}

#ifdef CP_GPU_EMULATED
constexpr milliseconds kTimeout{1'000};
#else
constexpr milliseconds kTimeout{5'000};  // the first collective connects, which counts
#endif

TEST(NcclFailure, APeerThatStopsIsATimeoutThatNamesTheOperation) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(
      testing::run_gpu_ranks(
          2,
          [&](Rank rank) -> std::string {
            NcclOptions options = job.options(rank);
            options.timeout = kTimeout;
            NcclDevice device(options);
            const Plan plan = sums(rank, {0, 1}, 2);
            device.prepare(plan, {});
            if (rank == 1) {  // connected, and silent while its peer waits
              device.launch(steps_of(plan)[0], 0);
              device.synchronize();
              std::this_thread::sleep_for(kTimeout * 5 / 2);
              return "";
            }
            enqueue_steps(plan, device);  // returns before the peer has come
            const std::string wrong = expect<Timeout>(
                [&] { device.synchronize(); },
                {str("rank 0: all_reduce #1 on all[0,1]: no progress for ", kTimeout.count() / 1'000, " s")});
            if (!wrong.empty()) return wrong;
            // It stays, and the device is of no further use.
            enqueue_steps(plan, device);
            const std::string again = expect<Timeout>([&] { device.synchronize(); }, {"all_reduce #1"});
            if (!again.empty()) return again;
            const std::vector<OpRecord> observed = device.take_observed();
            if (observed.size() != 1 || observed.front().sequence != 0) return "observed what did not end";
            return expect<Timeout>([&] { device.prepare(plan, {}); }, {"all_reduce #1"});
          }),
      kNothing2);
}

// Where somebody knows that the peer lives.
TEST(NcclFailure, APeerThatComesLateIsWaitedFor) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     std::atomic<int> asked = 0;
                                     NcclOptions options = job.options(rank);
                                     options.timeout = kTimeout;
                                     options.may_wait = [&](const runtime::CollectiveBegin& begin) {
                                       asked += begin.number == 1 ? 1 : 100;
                                       return true;
                                     };
                                     NcclDevice device(options);
                                     const Plan plan = sums(rank, {0, 1}, 2);
                                     device.prepare(plan, {});
                                     if (rank == 1) {
                                       device.launch(steps_of(plan)[0], 0);
                                       device.synchronize();
                                       std::this_thread::sleep_for(kTimeout * 5 / 2);
                                       device.launch(steps_of(plan)[1], 0);
                                       device.synchronize();
                                       return "";
                                     }
                                     enqueue_steps(plan, device);
                                     device.synchronize();
                                     if (!device.activity().computes) return "stalled at the end";
                                     return asked > 0 && asked < 100 ? ""
                                                                     : str("asked ", asked.load(), " times");
                                   }),
            kNothing2);
}

#ifdef CP_GPU_EMULATED
using Lost = PeerLost;
using LostBeforeItConnects = Timeout;
#else
// Without sockets between ranks NCCL does not see it, and it is a Timeout.
using Lost = Error;
using LostBeforeItConnects = Error;
#endif

TEST(NcclFailure, ALostPeerIsAnErrorThatNamesTheOperation) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     NcclOptions options = job.options(rank);
                                     options.timeout = std::chrono::seconds(10);
                                     NcclDevice device(options);
                                     const Plan plan = sums(rank, {0, 1}, 2);
                                     device.prepare(plan, {});
                                     // While it connects NCCL does not notice the loss of a peer.
                                     device.launch(steps_of(plan)[0], 0);
                                     device.synchronize();
                                     if (rank == 1) {
                                       device.abort();
                                       return expect<PeerLost>([&] { device.synchronize(); },
                                                               {"rank 1: the communicators were aborted"});
                                     }
                                     device.launch(steps_of(plan)[1], 0);
                                     return expect<Lost>([&] { device.synchronize(); },
                                                         {"rank 0: all_reduce #1 on all[0,1]"});
                                   }),
            kNothing2);
}

// The loss does not end the first collective, in which this side connects. The watchdog does.
TEST(NcclFailure, APeerThatIsLostBeforeItConnectsIsAnErrorToo) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     NcclOptions options = job.options(rank);
                                     options.timeout = kTimeout;
                                     NcclDevice device(options);
                                     const Plan plan = sums(rank, {0, 1});
                                     device.prepare(plan, {});
                                     if (rank == 1) {
                                       device.abort();
                                       return expect<PeerLost>([&] { device.synchronize(); },
                                                               {"rank 1: the communicators were aborted"});
                                     }
                                     enqueue_steps(plan, device);
                                     return expect<LostBeforeItConnects>(
                                         [&] { device.synchronize(); },
                                         {"rank 0: all_reduce #0 on all[0,1]"});
                                   }),
            kNothing2);
}

// The first collective connects: the host is in it, and another thread aborts.
TEST(NcclFailure, AbortEndsAWaitForASilentPeer) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(
                2,
                [&](Rank rank) -> std::string {
                  NcclDevice device(job.options(rank));
                  const Plan plan = sums(rank, {0, 1});
                  device.prepare(plan, {});
                  if (rank == 1) {
                    std::this_thread::sleep_for(std::chrono::seconds(3));
                    return "";
                  }
                  const auto begin = Clock::now();
                  const std::jthread aborter([&] {
                    std::this_thread::sleep_for(milliseconds(100));
                    device.abort();
                  });
                  enqueue_steps(plan, device);
                  const std::string wrong =
                      expect<PeerLost>([&] { device.synchronize(); }, {"aborted on this side"});
                  return !wrong.empty() || Clock::now() - begin < std::chrono::seconds(3) ? wrong : "late";
                }),
            kNothing2);
}

TEST(NcclFailure, APeerThatNeverComesIsATimeoutOfPrepare) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(
                1,
                [&](Rank rank) -> std::string {
                  NcclOptions options = job.options(rank);
                  options.connect_timeout = milliseconds(500);
                  options.agree = {};  // or it would wait for the peer before it connects
                  NcclDevice device(options);
                  const Plan plan = sums(rank, {0, 1});
                  return expect<Timeout>(
                      [&] { device.prepare(plan, {}); },
                      {"rank 0 cannot connect group all[0,1]: not all ranks have connected within 0.5 s"});
                }),
            kNothing1);
}

TEST(NcclFailure, AbortEndsConnecting) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(1,
                                   [&](Rank rank) -> std::string {
                                     NcclOptions options = job.options(rank);
                                     options.agree = {};  // or it would wait for the peer before it connects
                                     NcclDevice device(options);
                                     const std::jthread aborter([&] {
                                       std::this_thread::sleep_for(milliseconds(300));
                                       device.abort();
                                     });
                                     const Plan plan = sums(rank, {0, 1});
                                     return expect<PeerLost>([&] { device.prepare(plan, {}); },
                                                             {"aborted on this side"});
                                   }),
            kNothing1);
}

TEST(NcclFailure, MoreMemoryThanThereIsIsRefusedAndTheDeviceIsAsGoodAsBefore) {
  CP_REQUIRE_GPU();
  const GpuJob job(1);
  EXPECT_EQ(testing::run_gpu_ranks(1,
                                   [&](Rank rank) -> std::string {
                                     NcclDevice device(job.options(rank));
                                     const Plan large = sums(rank, {0}, 1, std::int64_t{1} << 44);
                                     const std::string wrong = expect<InvalidInput>(
                                         [&] { device.prepare(large, {}); },
                                         {"no room for buffer x of 70368744177664 bytes"});
                                     if (!wrong.empty()) return wrong;
                                     execute(sums(rank, {0}), device);
                                     return "";
                                   }),
            kNothing1);
}

// NCCL itself takes no least number of channels without a most.
TEST(NcclFailure, ALeastNumberOfChannelsAloneIsNone) {
  CP_REQUIRE_GPU();
  const GpuJob job(1);
  EXPECT_EQ(testing::run_gpu_ranks(1,
                                   [&](Rank rank) -> std::string {
                                     NcclOptions options = job.options(rank);
                                     options.communicators.min_ctas = 2;
                                     NcclDevice device(options);
                                     execute(sums(rank, {0}), device);
                                     return "";
                                   }),
            kNothing1);
}

#ifdef CP_GPU_EMULATED

// On real ones such calls hang or mix up data: nothing compares them.
TEST(NcclFailure, CallsThatDoNotMatchAreAnErrorOfTheEmulation) {
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     NcclDevice device(job.options(rank));
                                     const Plan plan = sums(rank, {0, 1}, 1, 4 + rank);
                                     device.prepare(plan, {});
                                     enqueue_steps(plan, device);
                                     return expect<Error>([&] { device.synchronize(); },
                                                          {"all_reduce #0 on all[0,1]"});
                                   }),
            kNothing2);
}

// The first collective of a communicator connects its ranks inside of the call, which does not hear of an
// abort meanwhile; nothing is freed under it.
TEST(NcclFailure, AbortEndsTheFirstCollectiveWhenItHasConnected) {
  emulated::set_connect_time(milliseconds(600));
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) -> std::string {
                                     NcclDevice device(job.options(rank));
                                     const Plan plan = sums(rank, {0, 1});
                                     device.prepare(plan, {});
                                     const std::jthread aborter([&] {
                                       std::this_thread::sleep_for(milliseconds(100));
                                       device.abort();
                                     });
                                     const auto begin = Clock::now();
                                     enqueue_steps(plan, device);
                                     if (Clock::now() - begin < milliseconds(500))
                                       return "the call was short";
                                     try {
                                       device.synchronize();
                                     } catch (const PeerLost& error) {
                                       const std::string message = error.what();
                                       return message.ends_with("aborted on this side") ? "" : message;
                                     }
                                     return "no error";
                                   }),
            kNothing2);
  emulated::set_connect_time(milliseconds(0));
}

// The abort waits for what runs on the GPU, here a kernel that takes its time.
TEST(NcclFailure, AnAbortThatHangsIsLeftBehind) {
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(
                2,
                [&](Rank rank) -> std::string {
                  constexpr std::int64_t kSize = 500;
                  NcclOptions options = job.options(rank);
                  options.abort_timeout = milliseconds(20);
                  auto device = std::make_unique<NcclDevice>(options);
                  PlanBuilder b(rank, host_target());
                  const StreamId main = b.stream("main");
                  const View x = dense_view(b.inout("x", DType::f32, kSize * kSize), 0, {kSize, kSize});
                  const View y = dense_view(b.temporary("y", DType::f32, kSize * kSize), 0, {kSize, kSize});
                  b.add(main, MatMul{x, x, y, false});
                  b.add(main, AllReduce{b.group("all", {0, 1}), ReduceOp::sum, flat_view(y.buffer, 0, 4),
                                        flat_view(x.buffer, 0, 4)});
                  const Plan plan = std::move(b).build({});
                  device->prepare(plan, {});
                  enqueue_steps(plan, *device);
                  device->abort();
                  const auto begin = Clock::now();
                  const std::string wrong =
                      expect<PeerLost>([&] { device->synchronize(); },
                                       {"aborted on this side; its communicators did not abort within 0.02 "
                                        "s, so that they and all memory of the device are left behind"});
                  device.reset();
                  if (!runtime::left_behind()) return "nothing was left behind";
                  return Clock::now() - begin < milliseconds(500) ? wrong : "late";
                }),
            kNothing2);
}

#endif

}  // namespace
}  // namespace cp
