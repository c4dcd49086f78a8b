// KernelRun: one kernel on the host and on the GPU, over the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cuda/cuda_memory.h"
#include "shared/plan/plan.h"

namespace cp::testing {

// Why tests of a GPU cannot run here; empty where they can.
std::string no_gpu();
#define CP_SKIP_WITHOUT_GPU() \
  if (const std::string why = ::cp::testing::no_gpu(); !why.empty()) GTEST_SKIP() << why

// The streams of a device that runs the plan alone.
inline std::vector<StreamId> identity_streams(const Plan& plan) {
  std::vector<StreamId> streams;
  for (std::size_t i = 0; i < plan.streams.size(); ++i) streams.push_back(static_cast<StreamId>(i));
  return streams;
}

class KernelRun {
 public:
  BufferId add(DType dtype, std::vector<std::byte> bytes);
  BufferId add(DType dtype, const std::vector<double>& values);

  // Runs the kernel on both, each on its own copy of the buffers; later runs go on from there. The kernel is
  // valid.
  void run(const Kernel& kernel, std::int64_t iteration = 0);
  void run_on_gpu(const Kernel& kernel, std::int64_t iteration = 0);
  // Calls enqueue(memory) and waits; the GPU's buffers are in the memory.
  void run_on_gpu(const std::function<void(const runtime::CudaMemory&)>& enqueue);

  const std::vector<std::byte>& host(BufferId buffer) const {
    return host_[static_cast<std::size_t>(buffer)];
  }
  const std::vector<std::byte>& gpu(BufferId buffer) const { return gpu_[static_cast<std::size_t>(buffer)]; }
  std::vector<double> host_values(BufferId buffer) const;
  std::vector<double> gpu_values(BufferId buffer) const;
  // The elements of a view, row-major.
  std::vector<double> host_values(const View& view) const { return elements(view, host_values(view.buffer)); }
  std::vector<double> gpu_values(const View& view) const { return elements(view, gpu_values(view.buffer)); }

  const Plan& plan() const { return plan_; }

 private:
  static std::vector<double> elements(const View& view, const std::vector<double>& values);

  Plan plan_;
  std::vector<std::vector<std::byte>> host_, gpu_;
};

// Where the first difference between the two sides is; empty where they are equal: bit for bit, or with all
// NaNs alike.
enum class Nans { by_bits, alike };
std::string difference(const KernelRun& run, BufferId buffer, Nans nans = Nans::by_bits);

}  // namespace cp::testing
