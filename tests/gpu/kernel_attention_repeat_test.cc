// Exact attention again and again, on several streams at once: equal bits each time.
#include <cstddef>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/base/text.h"
#include "tests/gpu/kernel_run.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::KernelRun;
using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

// Several tiles of queries and of keys, of all kinds of slices, with two heads of queries for each of keys.
constexpr std::int64_t kBatch = 2, kQueries = 130, kKeys = 200, kQHeads = 4, kKvHeads = 2, kDim = 40,
                       kVDim = 24;
const std::vector<MaskSlice> kSlices = {{0, 100, 0, 200, Kind::causal, 60, 0},
                                        {100, 30, 0, 64, Kind::full, 0, 0},
                                        {100, 30, 64, 136, Kind::window, 70, 50}};
constexpr double kScale = 0.125;

class Repeats {
 public:
  explicit Repeats(DType dtype) : dtype_(dtype) {}

  View heads(std::int64_t seq, std::int64_t heads, std::int64_t dim, std::uint64_t seed) {
    const Values values = testing::small_fractions(kBatch * seq * heads * dim, seed);
    return dense_view(run_.add(dtype_, values), 0, {kBatch, seq, heads, dim});
  }
  View rows(std::uint64_t seed) {
    return dense_view(run_.add(DType::f32, testing::small_fractions(kBatch * kQHeads * kQueries, seed)), 0,
                      {kBatch, kQHeads, kQueries});
  }

  // Each kernel twice, one after the other, on a stream that some of the others share; all at once.
  template <class Op>
  void launch(const std::vector<Op>& kernels) {
    run_.run_on_gpu([&](const runtime::CudaMemory& memory) {
      CP_CUDA(cudaDeviceSynchronize());  // copies to the GPU may go on when they return
      using Priority = runtime::CudaStream::Priority;
      std::vector<runtime::CudaStream> streams;
      for (const Priority priority : {Priority::normal, Priority::normal, Priority::high})
        streams.emplace_back(priority);
      std::vector<runtime::PreparedKernel> prepared;
      for (const Op& op : kernels) prepared.push_back(runtime::prepare(op, memory));
      for (int again = 0; again < 2; ++again) {
        for (std::size_t i = 0; i < prepared.size(); ++i) prepared[i](0, streams[i % streams.size()].get());
      }
      CP_CUDA(cudaDeviceSynchronize());
    });
  }

  // Of the kernels that each have such a view.
  template <class Op>
  void expect_equal(const std::vector<Op>& kernels, View Op::*view, const char* name) const {
    const std::vector<std::byte>& first = run_.gpu((kernels.front().*view).buffer);
    for (std::size_t i = 1; i < kernels.size(); ++i)
      EXPECT_EQ(run_.gpu((kernels[i].*view).buffer), first) << name << " of launch " << i;
  }

 private:
  const DType dtype_;
  KernelRun run_;
};

constexpr std::uint64_t kLaunches = 7;

class GpuAttentionRepeat : public ::testing::TestWithParam<DType> {};

TEST_P(GpuAttentionRepeat, ForwardHasEqualBitsOnEveryStream) {
  CP_SKIP_WITHOUT_GPU();
  Repeats repeats(GetParam());
  const View q = repeats.heads(kQueries, kQHeads, kDim, 1), k = repeats.heads(kKeys, kKvHeads, kDim, 2),
             v = repeats.heads(kKeys, kKvHeads, kVDim, 3);
  std::vector<AttentionForward> kernels;
  for (std::uint64_t i = 0; i < kLaunches; ++i) {  // over other contents each
    kernels.push_back(
        {q, k, v, repeats.heads(kQueries, kQHeads, kVDim, 10 + i), repeats.rows(20 + i), kScale, kSlices});
  }
  repeats.launch(kernels);
  repeats.expect_equal(kernels, &AttentionForward::out, "out");
  repeats.expect_equal(kernels, &AttentionForward::lse, "lse");
}

TEST_P(GpuAttentionRepeat, BackwardHasEqualBitsOnEveryStream) {
  CP_SKIP_WITHOUT_GPU();
  Repeats repeats(GetParam());
  const View q = repeats.heads(kQueries, kQHeads, kDim, 1), k = repeats.heads(kKeys, kKvHeads, kDim, 2),
             v = repeats.heads(kKeys, kKvHeads, kVDim, 3), dout = repeats.heads(kQueries, kQHeads, kVDim, 4);
  // Any: they need not belong to these inputs.
  const View lse = repeats.rows(5), delta = repeats.rows(6);
  std::vector<AttentionBackward> kernels;
  for (std::uint64_t i = 0; i < kLaunches; ++i) {
    kernels.push_back({q, k, v, dout, lse, delta, repeats.heads(kQueries, kQHeads, kDim, 10 + i),
                       repeats.heads(kKeys, kKvHeads, kDim, 20 + i),
                       repeats.heads(kKeys, kKvHeads, kVDim, 30 + i), kScale, kSlices});
  }
  repeats.launch(kernels);
  repeats.expect_equal(kernels, &AttentionBackward::dq, "dq");
  repeats.expect_equal(kernels, &AttentionBackward::dk, "dk");
  repeats.expect_equal(kernels, &AttentionBackward::dv, "dv");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuAttentionRepeat, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

}  // namespace
}  // namespace cp
