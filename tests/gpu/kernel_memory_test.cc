// The memory of a plan on the GPU.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/errors.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/gpu/kernel_run.h"

namespace cp::runtime {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Buffer buffer(const std::string& name, BufferKind kind, std::int64_t numel, std::int64_t offset_bytes = 0) {
  Buffer made;
  made.name = name, made.kind = kind, made.numel = numel, made.offset_bytes = offset_bytes;
  return made;
}

Plan small_plan() {
  Plan plan;
  plan.buffers = {buffer("x", BufferKind::input, 6), buffer("t", BufferKind::temporary, 4, 8),
                  buffer("none", BufferKind::output, 0)};
  plan.arena_bytes = 24;
  return plan;
}

std::vector<std::byte> download(const void* data, std::int64_t size) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  CP_CUDA(cudaMemcpy(bytes.data(), data, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

std::string refusal(const Plan& plan, const Bindings& bindings) {
  try {
    const CudaMemory memory(plan, bindings);
    return "none";
  } catch (const InvalidInput& error) {
    return error.what();
  }
}

TEST(CudaMemory, IsFilledAndPlaced) {
  CP_SKIP_WITHOUT_GPU();
  const CudaMemory memory(small_plan(), {});
  EXPECT_EQ(memory.size_bytes(0), 24);
  EXPECT_EQ(memory.size_bytes(2), 0);
  EXPECT_THAT(download(memory.data(0), 24), Each(std::byte{0xFB}));
  EXPECT_THAT(download(memory.data(1), 16), Each(std::byte{0xFB}));
  const View view = flat_view(0, 1, 2, {2, 2, 1});
  EXPECT_EQ(memory.at(view, 0) - memory.data(0), 12);
  EXPECT_EQ(memory.at(view, 1) - memory.data(0), 4);
  EXPECT_EQ(memory.at(flat_view(0, 1 << 20, 0), 0), memory.data(0)) << "an empty view may lie anywhere";
  EXPECT_EQ(memory.dtype(view), DType::f32);
}

TEST(CudaMemory, TakesTheCallersMemory) {
  CP_SKIP_WITHOUT_GPU();
  void* data = nullptr;
  CP_CUDA(cudaMalloc(&data, 24));
  const Plan plan = small_plan();
  EXPECT_EQ(CudaMemory(plan, {{0, data, 24}}).data(0), data);
  EXPECT_THAT(refusal(plan, {{0, data, 20}}),
              AllOf(HasSubstr("20 bytes"), HasSubstr("buffer x"), HasSubstr("24 bytes")));
  EXPECT_THAT(refusal(plan, {{1, data, 16}}), HasSubstr("temporary t"));
  EXPECT_THAT(refusal(plan, {{0, data, 24}, {0, data, 24}}), HasSubstr("buffer x has two bindings"));
  EXPECT_THAT(refusal(plan, {{3, data, 24}}), HasSubstr("3 buffers"));
  CP_CUDA(cudaFree(data));
}

// By what it holds: a new arena is filled.
TEST(CudaMemory, TakesOverTheArenaOfThePlanBeforeWhereItIsOfUse) {
  CP_SKIP_WITHOUT_GPU();
  const auto arena_after = [](const Plan& next, const Bindings& bindings) {
    auto before = std::make_unique<CudaMemory>(small_plan(), Bindings{});
    CP_CUDA(cudaMemset(before->data(1) - 8, 0x11, 24));
    std::shared_ptr<CudaArena> arena = before->arena();
    before.reset();
    const CudaMemory memory(next, bindings, cuda_allocator(), std::move(arena));
    return download(memory.data(1), next.buffers[1].bytes());
  };
  void* data = nullptr;
  CP_CUDA(cudaMalloc(&data, 24));
  Plan plan = small_plan();
  EXPECT_THAT(arena_after(plan, {{0, data, 24}}), Each(std::byte{0x11}));
  plan.arena_bytes = 25;
  EXPECT_THAT(arena_after(plan, {{0, data, 24}}), Each(std::byte{0xFB})) << "too small";
  plan.arena_bytes = 8, plan.buffers[1] = buffer("t", BufferKind::temporary, 2);
  EXPECT_THAT(arena_after(plan, {{0, data, 24}}), Each(std::byte{0x11})) << "all else is the caller's";
  EXPECT_THAT(arena_after(plan, {}), Each(std::byte{0xFB})) << "x may need what the arena has too much of";
  CP_CUDA(cudaFree(data));
}

TEST(CudaMemory, SaysWhatIsAskedAndWhatIsFree) {
  CP_SKIP_WITHOUT_GPU();
  Plan plan = small_plan();
  plan.arena_bytes = std::int64_t{1} << 50;
  EXPECT_THAT(
      refusal(plan, {}),
      AllOf(HasSubstr("the arena of 1125899906842624 bytes"), HasSubstr("asks for 1125899906842648 bytes"),
            HasSubstr(str("needs ", peak_bytes(plan), " at its peak")), HasSubstr("are free")));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CheckCuda, SaysWhichCallFailedAndHow) {
  EXPECT_NO_THROW(check_cuda(cudaSuccess, "cudaCall()"));
  try {
    check_cuda(cudaErrorInvalidValue, "cudaCall()");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("cudaCall()"), HasSubstr(cudaGetErrorName(cudaErrorInvalidValue)),
                      HasSubstr(cudaGetErrorString(cudaErrorInvalidValue))));
  }
  std::vector<cudaError_t> lost = {cudaErrorIllegalAddress, cudaErrorECCUncorrectable,
                                   cudaErrorExternalDevice, cudaErrorMpsRpcFailure};
#if CUDART_VERSION >= 12080
  lost.insert(lost.end(), {cudaErrorContained, cudaErrorTensorMemoryLeak});
#endif
  for (const cudaError_t error : lost) EXPECT_THROW(check_cuda(error, "cudaCall()"), PeerLost) << error;
}

}  // namespace
}  // namespace cp::runtime
