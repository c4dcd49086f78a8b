// Kernels of the host among those of the GPU: the optimizer of states that lie on the host.
#include "shared/kernels/host_kernels.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_device_memory.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_graphs.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/step_kernels.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "tests/gpu/kernel_run.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/call_counts.h"
#endif

namespace cp::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kNumel = 12, kPieces = 3;

// Gradients of the GPU go to the host, which updates its parameters piece by piece; what it makes of them
// returns.
struct Offloaded {
  Plan plan;
  BufferId gradients, norm, schedule, master, states, computes;

  Offloaded() {
    PlanBuilder builder(0, host_target());
    const auto flat = [](BufferId buffer, std::int64_t numel) { return flat_view(buffer, 0, numel); };
    gradients = builder.input("gradients", DType::f32, kNumel);
    const BufferId arrived = builder.output("host/gradients", DType::f32, kNumel),
                   cast = builder.output("host/parameters", DType::bf16, kNumel);
    norm = builder.input("host/norm", DType::f32, 1),
    schedule = builder.input("host/schedule", DType::f32, 2);
    master = builder.inout("host/master", DType::f32, kNumel);
    states = builder.inout("host/optimizer", DType::f32, 2 * kNumel);
    computes = builder.output("parameters", DType::bf16, kNumel);
    const StreamId stream = builder.stream("host");
    builder.add(stream, Copy{flat(gradients, kNumel), flat(arrived, kNumel)});
    constexpr std::int64_t kEach = kNumel / kPieces;
    const Advance next{kEach, 0, 0};
    builder.begin_repeat(kPieces);
    OptimizerRule rule;
    rule.states = 2;
    RowKernel adam{RowOperation::optimizer,
                   {flat_view(arrived, 0, kEach, next), flat(norm, 1), flat(schedule, 2)},
                   {flat_view(cast, 0, kEach, next)},
                   {flat_view(master, 0, kEach, next), {states, 0, {2, kEach}, {kNumel, 1}, next}},
                   rule};
    builder.add(stream, std::move(adam));
    builder.end_repeat();
    builder.add(stream, Copy{flat(cast, kNumel), flat(computes, kNumel)});
    plan = std::move(builder).build({});
  }

  // What the buffers hold that go in.
  std::map<BufferId, std::vector<std::byte>> inputs(double of_master) const {
    std::vector<double> values, of_states;
    for (std::int64_t i = 0; i < kNumel; ++i) values.push_back(0.25 * static_cast<double>(i) - 1);
    for (std::int64_t i = 0; i < 2 * kNumel; ++i) of_states.push_back(0.01 * static_cast<double>(i));
    std::map<BufferId, std::vector<std::byte>> all;
    all[gradients] = encode(DType::f32, values), all[norm] = encode(DType::f32, {4});
    all[schedule] = encode(DType::f32, {1e-2, 3});
    all[master] = encode(DType::f32, std::vector<double>(kNumel, of_master));
    all[states] = encode(DType::f32, of_states);
    return all;
  }
};

using Results = std::array<std::vector<double>, 3>;  // parameters, states, and what computes

// A run for each of `masters`, with which its parameters begin unless they are those of the run before.
Results on_host_alone(const Offloaded& offloaded, const std::vector<std::optional<double>>& masters) {
  const HostMemory memory(offloaded.plan, {});
  const auto set = [&](BufferId buffer, const std::vector<std::byte>& bytes) {
    std::memcpy(memory.bytes(buffer).data(), bytes.data(), bytes.size());
  };
  for (const auto& [buffer, bytes] : offloaded.inputs(0)) set(buffer, bytes);
  for (const std::optional<double> of_master : masters) {
    if (of_master) set(offloaded.master, offloaded.inputs(*of_master).at(offloaded.master));
    for (const StepRef& ref : steps_of(offloaded.plan)) {
      for (std::int64_t iteration = 0; iteration < ref.count; ++iteration)
        run_kernel(std::get<Kernel>(ref.step->work), memory, iteration);
    }
  }
  const auto values = [&](BufferId buffer, DType dtype) { return decode(dtype, memory.bytes(buffer)); };
  return {values(offloaded.master, DType::f32), values(offloaded.states, DType::f32),
          values(offloaded.computes, DType::bf16)};
}

// The plan on a stream of the GPU.
class OnGpu {
 public:
  explicit OnGpu(const Offloaded& offloaded)
      : offloaded_(offloaded),
        memory_(offloaded.plan, {}),
        kernels_(offloaded.plan, testing::identity_streams(offloaded.plan), memory_, libraries_) {}

  CudaMemory& memory() { return memory_; }
  cudaStream_t stream() const { return stream_.get(); }
  void upload(double of_master) {
    for (const auto& [buffer, bytes] : offloaded_.inputs(of_master))
      CP_CUDA(cudaMemcpy(memory_.data(buffer), bytes.data(), bytes.size(), cudaMemcpyDefault));
  }
  void launch() {
    for (const StepRef& ref : steps_of(offloaded_.plan)) {
      for (std::int64_t iteration = 0; iteration < ref.count; ++iteration)
        kernels_.launch(ref, iteration, stream());
    }
  }
  Results results() {
    CP_CUDA(cudaStreamSynchronize(stream()));
    const auto values = [&](BufferId buffer, DType dtype) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(memory_.size_bytes(buffer)));
      CP_CUDA(cudaMemcpy(bytes.data(), memory_.data(buffer), bytes.size(), cudaMemcpyDefault));
      return decode(dtype, bytes);
    };
    return {values(offloaded_.master, DType::f32), values(offloaded_.states, DType::f32),
            values(offloaded_.computes, DType::bf16)};
  }

 private:
  const Offloaded& offloaded_;
  CudaStream stream_{CudaStream::Priority::normal};
  CudaMemory memory_;
  LibraryKernels libraries_;
  StepKernels kernels_;
};

TEST(HostKernelsOnStreams, GiveTheBitsOfTheHostInTheirTurn) {
  CP_SKIP_WITHOUT_GPU();
  const Offloaded offloaded;
  OnGpu gpu(offloaded);
  gpu.upload(0.5);
#ifdef CP_GPU_EMULATED
  const emulated::CallCounts before = emulated::calls_of_this_thread();
  gpu.launch();
  emulated::CallCounts calls = emulated::since(before);
  EXPECT_EQ(calls["cudaLaunchHostFunc"], kPieces);
  EXPECT_EQ(calls["cudaMemcpyAsync"], 2);
  EXPECT_EQ(calls["kernel"], 0) << "nothing of it is the multiprocessors' work";
#else
  gpu.launch();
#endif
  gpu.launch();
  EXPECT_EQ(gpu.results(), on_host_alone(offloaded, {0.5, std::nullopt}));
}

TEST(HostKernelsOnStreams, KeepTheAddressesThatTheyWereLaunchedWith) {
  CP_SKIP_WITHOUT_GPU();
  const Offloaded offloaded;
  OnGpu gpu(offloaded);
  gpu.upload(0.5);
  CudaDeviceMemory more;
  auto* const second =
      static_cast<std::byte*>(more.allocate_on_host(gpu.memory().size_bytes(offloaded.master)));
  std::byte* const first = gpu.memory().data(offloaded.master);
  const std::vector<std::byte> masters = offloaded.inputs(7).at(offloaded.master);
  std::memcpy(second, masters.data(), masters.size());
  CP_CUDA(cudaLaunchHostFunc(
      gpu.stream(), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  gpu.launch();  // it waits behind that
  gpu.memory().bind(offloaded.plan, {{offloaded.master, second, std::ssize(masters)}});
  gpu.launch();
  EXPECT_EQ(gpu.results(), on_host_alone(offloaded, {0.5, 7}));
  EXPECT_EQ(decode(DType::f32, {first, masters.size()}), on_host_alone(offloaded, {0.5})[0]);
}

TEST(HostKernelsOnStreams, ArePartsOfGraphs) {
  CP_SKIP_WITHOUT_GPU();
  const Offloaded offloaded;
  OnGpu gpu(offloaded);
  gpu.upload(0.5);
  CudaGraphs graphs;
  GraphCapture capture(gpu.stream());
  gpu.launch();
  const CudaGraphs::Id graph = graphs.add(capture.end());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(graphs.launch(graph, gpu.stream()));
  EXPECT_EQ(gpu.results(), on_host_alone(offloaded, {0.5, std::nullopt, std::nullopt}));
}

TEST(HostKernelsOnStreams, HavePinnedMemoryAlone) {
  CP_SKIP_WITHOUT_GPU();
  const Offloaded offloaded;
  std::vector<std::byte> pageable(static_cast<std::size_t>(kNumel) * 4);
  void* of_gpu = nullptr;
  CP_CUDA(cudaMalloc(&of_gpu, pageable.size()));
  const auto refusal = [&](void* data) -> std::string {
    try {
      const CudaMemory memory(offloaded.plan, {{offloaded.master, data, kNumel * 4}});
      return "none";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refusal(pageable.data()),
              AllOf(HasSubstr("host/master"), HasSubstr("pageable memory"), HasSubstr("cudaMallocHost")));
  EXPECT_THAT(refusal(of_gpu), HasSubstr("memory of a GPU"));
  CP_CUDA(cudaFree(of_gpu));
}

}  // namespace
}  // namespace cp::runtime
