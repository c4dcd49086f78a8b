#include <cstring>
#include <future>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::emulated {
namespace {

TEST(CudaEmulation, CopiesThroughTheDevice) {
  std::vector<int> in{1, 2, 3, 4}, out(4);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device, in.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(out.data(), device, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

}  // namespace
}  // namespace cp::emulated
