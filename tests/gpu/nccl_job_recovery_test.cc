// After a failure, the processes of a job make another one, with devices of their own. What a program calls
// in between is said in docs/embedding.md.
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/joined_device.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/gpu/gpu_processes.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/runtime/job_attempts.h"
#include "tests/runtime/processes.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_stream.h"
#endif

namespace cp {
namespace {

using testing::lacks;
using NcclJobRecovery = testing::GpuProcesses;

// The sum of both ranks' ones.
class Sum {
 public:
  explicit Sum(runtime::Job& job) : job_(job) {
    const std::vector<float> ones(64, 1);
    CP_CUDA(cudaMemcpy(in_.data(), ones.data(), 256, cudaMemcpyHostToDevice));
    CP_CUDA(cudaDeviceSynchronize());
  }
  void run() {
    job_.redistribute(from_local(parts_, job_.rank(), in_.data(), 256),
                      from_local(whole_, job_.rank(), out_.data(), 256));
  }
  std::string compare() const {
    std::vector<float> got(64);
    CP_CUDA(cudaMemcpy(got.data(), out_.data(), 256, cudaMemcpyDeviceToHost));
    return got == std::vector<float>(64, 2) ? "" : str("the sum is ", got[0]);
  }

 private:
  runtime::Job& job_;
  const Mesh mesh_ = Mesh::parse("cp=2");
  const Layout parts_ = parse_layout("P(sum)", mesh_, {64}, DType::f32),
               whole_ = parse_layout("R", mesh_, {64}, DType::f32);
  const runtime::GpuBytes in_{std::size_t{256}}, out_{std::size_t{256}};
};

std::string sums_again(testing::JobAttempts& attempts) {
  std::string wrong;
  const std::string thrown = attempts.attempt([&](runtime::Job& job) {
    Sum sum(job);
    for (int i = 0; i < 3 && wrong.empty(); ++i) {
      sum.run();
      wrong = sum.compare();
    }
  });
  if (runtime::devices_left_behind()) return "a device was left behind";
  return thrown.empty() ? wrong : thrown;
}

int run_attempts(const std::function<std::string(testing::JobAttempts&, Rank)>& body) {
  const testing::TemporaryDirectory directory;
  return testing::run_gpu_processes(2, [&](Rank rank) {
    testing::become_rank(rank, 2);
    testing::JobAttempts attempts(rank, 2, directory.path(), "nccl");
    return body(attempts, rank);
  });
}

std::string survives_a_peer(testing::JobAttempts& attempts, Rank rank) {
  const std::string said = attempts.attempt([&](runtime::Job& job) {
    Sum sum(job);
    sum.run();
    if (rank == 1) throw CheckFailure("lost on purpose");
    sum.run();
  });
  const std::string wrong =
      rank == 1 ? lacks(said, {"lost on purpose"})
                : lacks(said, {"rank 1 (host ", "#0 of ", "[0,1], step ", "ended with an exception"});
  return wrong.empty() ? sums_again(attempts) : wrong;
}

TEST_F(NcclJobRecovery, APeerThatFailsIsNamedAndTheJobIsMadeAgain) {
  CP_EXPECT_RIGHT(run_attempts(survives_a_peer));
}

#ifdef CP_GPU_EMULATED

// A kernel of the program's own breaks the GPU of rank 0.
std::string survives_a_gpu(testing::JobAttempts& attempts, Rank rank) {
  const std::string said = attempts.attempt([&](runtime::Job& job) {
    Sum sum(job);
    sum.run();
    if (rank == 0) emulated::enqueue(nullptr, [] { throw std::runtime_error("a kernel that fails"); });
    sum.run();
  });
  std::string wrong =
      rank == 0 ? lacks(said, {"can no longer use the GPU"}) : lacks(said, {"rank 0 (host ", "step "});
  if (!wrong.empty()) return wrong;
  if (rank == 0) CP_CUDA(cudaDeviceReset());
  return sums_again(attempts);
}

TEST_F(NcclJobRecovery, AfterALostGpuTheJobIsMadeAgain) { CP_EXPECT_RIGHT(run_attempts(survives_a_gpu)); }

#endif

}  // namespace
}  // namespace cp
