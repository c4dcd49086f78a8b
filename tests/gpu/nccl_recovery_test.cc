// Errors of work that was enqueued reach the caller when he waits next, and say where; then the same process
// makes the device again.
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/errors.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/prepared_plan.h"
#include "tests/gpu/gpu_ranks.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_stream.h"
#endif

namespace cp {
namespace {

constexpr std::int64_t kCount = 8;

// x becomes the sum of both ranks' x, and is copied to y.
Plan sum_and_copy(Rank rank) {
  PlanBuilder b(rank, host_target());
  const View x = flat_view(b.inout("x", DType::f32, kCount), 0, kCount);
  const View y = flat_view(b.output("y", DType::f32, kCount), 0, kCount);
  b.add(b.stream("comm"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, x, x});
  b.add(b.stream("compute"), Copy{x, y}, "keep");
  return std::move(b).build({});
}

// The error's message, which must be one of the runtime's.
std::optional<std::string> error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A right run on a device made anew.
std::string run_once(const runtime::NcclOptions& options, Rank rank) {
  runtime::NcclDevice device(options);
  const Plan plan = sum_and_copy(rank);
  PreparedPlan prepared(device, plan);
  const std::vector<float> given(kCount, static_cast<float>(rank + 1));
  prepared.upload(0, std::as_bytes(std::span(given)));
  prepared.run();
  std::vector<float> got(kCount);
  prepared.download(1, std::as_writable_bytes(std::span(got)));
  return got == std::vector<float>(kCount, 3) ? "" : str("the device that was made again got ", got[0]);
}

// Rank 1 goes away between two runs that rank 0 has enqueued.
std::string survives_a_lost_peer(const testing::GpuJob& before, const testing::GpuJob& after, Rank rank) {
  {
    runtime::NcclOptions options = before.options(rank);
    options.timeout = std::chrono::seconds(20);
    runtime::NcclDevice device(options);
    const Plan plan = sum_and_copy(rank);
    PreparedPlan prepared(device, plan);
    prepared.run().wait();
    if (rank == 1) {
      device.abort();
      const auto error = error_of([&] { prepared.last_run().wait(), device.synchronize(); });
      if (!error || error->find("aborted on this side") == std::string::npos)
        return error.value_or("no error");
    } else {
      prepared.run();  // returns, whatever becomes of it
      const PlanRun last = prepared.run();
      const auto error = error_of([&] { last.wait(); });
      // The watchdog sees that the first of the two does not end, or the call of the second one fails before.
      if (!error || (error->find("all_reduce #1 on all[0,1]") == std::string::npos &&
                     error->find("all_reduce #2 on all[0,1]") == std::string::npos))
        return error.value_or("no error");
      if (last.has_ended()) return "a run that failed has ended";
      if (error_of([&] { prepared.run().wait(); }) != error) return "the next run does not say the same";
    }
  }
  return run_once(after.options(rank), rank);
}

TEST(NcclRecovery, ALostPeerIsNamedByTheNextWaitAndTheDeviceIsMadeAgain) {
  CP_REQUIRE_GPU();
  const testing::GpuJob before(2), after(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return survives_a_lost_peer(before, after, rank); }),
            testing::kNothing2);
}

#ifdef CP_GPU_EMULATED

// A kernel of the caller's own breaks the GPU of rank 0. CUDA tells any later call, and not who did it.
std::string survives_a_lost_gpu(const testing::GpuJob& before, const testing::GpuJob& after, Rank rank) {
  {
    runtime::NcclDevice device(before.options(rank));
    const Plan plan = sum_and_copy(rank);
    PreparedPlan prepared(device, plan);
    prepared.run().wait();
    const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
    if (rank == 0) {
      emulated::enqueue(stream.get(), [] { throw std::runtime_error("a kernel that fails"); });
      prepared.run({}, stream.get());
      const auto error = error_of([&] { prepared.last_run().wait(); });
      // Said by the watchdog, which may not have seen the first run's collective end, or by the next launch.
      if (!error || error->find("can no longer use the GPU") == std::string::npos ||
          (error->find("step 1 copy \"keep\" on stream") == std::string::npos &&
           error->find("not seen to end is rank 0: all_reduce #") == std::string::npos))
        return error.value_or("no error");
    } else {
      const auto error = error_of([&] { prepared.run().wait(); });
      if (!error || error->find("all_reduce #1 on all[0,1]") == std::string::npos)
        return error.value_or("no error");
    }
  }
  if (rank == 0) static_cast<void>(cudaDeviceReset());  // what a program does that goes on
  return run_once(after.options(rank), rank);
}

TEST(NcclRecovery, ALostGpuIsSaidWithTheLastStepsAndTheDeviceIsMadeAgain) {
  const testing::GpuJob before(2), after(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return survives_a_lost_gpu(before, after, rank); }),
            testing::kNothing2);
}

#endif

}  // namespace
}  // namespace cp
