// Plans are made for the cuDNN that a process has.
#include <cstdlib>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/plan/target.h"

namespace cp::runtime {
namespace {

TEST(CudnnOfTheProcess, IsThatOfTheTarget) {
  const Target& recent = gpu_target_of(0);
  EXPECT_TRUE(recent.fused_attention->window_tail);
  ::setenv("CP_EMULATED_CUDNN", "90900", 1);
  const Target& old = gpu_target_of(0);
  ::setenv("CP_EMULATED_CUDNN", "91900", 1);
  const Target& named = gpu_target_of(0);
  ::unsetenv("CP_EMULATED_CUDNN");
  EXPECT_FALSE(old.fused_attention->window_tail);
  EXPECT_EQ(old.name, recent.name + "+cudnn9.8.0");
  EXPECT_EQ(&named, &recent);
}

}  // namespace
}  // namespace cp::runtime
