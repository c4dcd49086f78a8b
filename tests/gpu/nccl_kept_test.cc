// Runs of a kept plan on the NCCL device take their place in a CUDA stream of the caller's.
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/prepared_plan.h"
#include "tests/gpu/gpu_ranks.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_stream.h"
#include "tests/runtime/allocations.h"
#endif

namespace cp {
namespace {

constexpr std::int64_t kNumel = 33, kSizeBytes = 4 * kNumel;

// y = the sum of all ranks' x, by way of a temporary and two streams.
struct SumPlan {
  BufferId x = 0, y = 0;
  Plan plan;

  explicit SumPlan(Rank rank) {
    PlanBuilder b(rank, host_target());
    x = b.input("x", DType::f32, kNumel);
    y = b.output("y", DType::f32, kNumel);
    const auto whole = [](BufferId buffer) { return flat_view(buffer, 0, kNumel); };
    const BufferId sum = b.temporary("sum", DType::f32, kNumel);
    const StreamId compute = b.stream("compute"), comm = b.stream("comm");
    b.add(comm, AllReduce{b.group("all", {0, 1}), ReduceOp::sum, whole(x), whole(sum)});
    b.add(compute, Copy{whole(sum), whole(y)});
    plan = std::move(b).build({});
  }
};

// Memory of the GPU.
class GpuFloats {
 public:
  GpuFloats() { CP_CUDA(cudaMalloc(&data_, kSizeBytes)); }
  ~GpuFloats() { static_cast<void>(cudaFree(data_)); }
  GpuFloats(const GpuFloats&) = delete;
  GpuFloats& operator=(const GpuFloats&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Long enough that a run which did not wait for the stream would be over.
void sleep_a_while(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// The program's own work before and behind each run is on its stream alone; nobody waits until the end.
std::string runs_in_the_callers_stream(const testing::GpuJob& job, Rank rank, bool traces) {
  constexpr int kRuns = 4;
  runtime::NcclOptions options = job.options(rank);
  options.traces = traces;
  runtime::NcclDevice device(options);
  const SumPlan sum(rank);
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  const GpuFloats x;
  const std::array<GpuFloats, 2> y;  // in turn
  PreparedPlan prepared(device, sum.plan, {{sum.x, x.data(), kSizeBytes}, {sum.y, y[0].data(), kSizeBytes}});
  std::vector<std::vector<float>> given, got(kRuns, std::vector<float>(kNumel, -1));
  for (int run = 0; run < kRuns; ++run) given.emplace_back(kNumel, static_cast<float>(10 * run + rank + 1));
  for (int run = 0; run < kRuns; ++run) {
    const auto at = static_cast<std::size_t>(run);
    CP_CUDA(cudaLaunchHostFunc(stream.get(), sleep_a_while, nullptr));
    CP_CUDA(cudaMemcpyAsync(x.data(), given[at].data(), kSizeBytes, cudaMemcpyHostToDevice, stream.get()));
    prepared.run({{sum.y, y[at % 2].data(), kSizeBytes}}, stream.get());
    CP_CUDA(
        cudaMemcpyAsync(got[at].data(), y[at % 2].data(), kSizeBytes, cudaMemcpyDeviceToHost, stream.get()));
  }
  CP_CUDA(cudaStreamSynchronize(stream.get()));
  for (int run = 0; run < kRuns; ++run) {
    for (const float value : got[static_cast<std::size_t>(run)]) {
      if (value != static_cast<float>(20 * run + 3)) return str("run ", run, " gave ", value);
    }
  }
  prepared.last_run().wait();
  const std::size_t records = device.take_observed().size();
  return records == (traces ? kRuns : 0) ? "" : str(records, " records");
}

TEST(NcclKeptPlans, RunInTheCallersStream) {
  CP_REQUIRE_GPU();
  for (const bool traces : {true, false}) {
    const testing::GpuJob job(2);
    EXPECT_EQ(
        testing::run_gpu_ranks(2, [&](Rank rank) { return runs_in_the_callers_stream(job, rank, traces); }),
        testing::kNothing2)
        << traces;
  }
}

// More collectives than there are pairs of events: they are used again while runs go on.
TEST(NcclKeptPlans, UseTheirEventsAgain) {
  CP_REQUIRE_GPU();
  const testing::GpuJob job(2);
  const auto run = [&](Rank rank) -> std::string {
    runtime::NcclOptions options = job.options(rank);
    options.traces = false;
    runtime::NcclDevice device(options);
    const SumPlan sum(rank);
    PreparedPlan prepared(device, sum.plan);
    const std::vector<float> ones(kNumel, 1);
    prepared.upload(sum.x, std::as_bytes(std::span(ones)));
    for (std::int64_t i = 0; i < runtime::StepEvents::kPairs + 100; ++i) prepared.run();
    std::vector<float> got(kNumel);
    prepared.download(sum.y, std::as_writable_bytes(std::span(got)));
    return got == std::vector<float>(kNumel, 2) ? "" : str("got ", got[0]);
  };
  EXPECT_EQ(testing::run_gpu_ranks(2, run), testing::kNothing2);
}

#ifdef CP_GPU_EMULATED

// A hundred runs are under way at once, since the loop below waits after each hundred.
constexpr int kCountedRuns = 10'000, kUncountedRuns = 200;

// Allocations of the caller's thread outside of CUDA and NCCL, in runs of a plan whose buffers change each
// time.
std::string counted_runs(const testing::GpuJob& job, Rank rank, std::int64_t& allocations) {
  runtime::NcclOptions options = job.options(rank);
  options.traces = false;
  runtime::NcclDevice device(options);
  const SumPlan sum(rank);
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  const GpuFloats x, first, second;
  const std::vector<float> ones(kNumel, 1);
  CP_CUDA(cudaMemcpy(x.data(), ones.data(), kSizeBytes, cudaMemcpyHostToDevice));
  const std::array<Bindings, 2> bindings = {
      Bindings{{sum.x, x.data(), kSizeBytes}, {sum.y, first.data(), kSizeBytes}},
      Bindings{{sum.x, x.data(), kSizeBytes}, {sum.y, second.data(), kSizeBytes}}};
  PreparedPlan prepared(device, sum.plan, bindings[0]);
  std::int64_t before = 0;
  for (int run = 0; run < kCountedRuns + kUncountedRuns; ++run) {
    if (run == kUncountedRuns) before = testing::allocations_of_this_thread();
    prepared.run(bindings[static_cast<std::size_t>(run % 2)], stream.get());
    if (run % 100 == 0) prepared.last_run().wait();
  }
  allocations = testing::allocations_of_this_thread() - before;
  prepared.last_run().wait();
  std::vector<float> got(kNumel);
  CP_CUDA(cudaMemcpy(got.data(), second.data(), kSizeBytes, cudaMemcpyDeviceToHost));
  return got == std::vector<float>(kNumel, 2) ? "" : str("got ", got[0]);
}

TEST(NcclKeptPlans, TenThousandRunsAllocateNothing) {
  testing::leave_out_allocations(emulated::is_inside);
  const testing::GpuJob job(2);
  std::array<std::int64_t, 2> allocations{};
  EXPECT_EQ(
      testing::run_gpu_ranks(
          2, [&](Rank rank) { return counted_runs(job, rank, allocations[static_cast<std::size_t>(rank)]); }),
      testing::kNothing2);
  EXPECT_EQ(allocations, (std::array<std::int64_t, 2>{0, 0}));
  testing::leave_out_allocations(nullptr);
}

#endif

}  // namespace
}  // namespace cp
