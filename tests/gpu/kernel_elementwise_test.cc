// Kernels that move, convert and combine elements: bit for bit as on the host.
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "runtime/cuda/fused_kernels.h"
#include "runtime/cuda/step_kernels.h"
#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::any_dtype;
using testing::any_floating;
using testing::any_of;
using testing::any_shape;
using testing::any_view;
using testing::coin;
using testing::difference;
using testing::extent_of;
using testing::KernelRun;
using testing::kInfinity;
using testing::Nans;
using testing::pick;
using testing::reshaped;

constexpr int kCases = 20;  // of each property's runs: one takes little time

// Any bits: NaNs, infinities and denormals among them.
std::vector<std::byte> any_bits(DType dtype, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_bytes(dtype)));
  std::uint64_t state = *rc::gen::arbitrary<std::uint64_t>() | 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

// Values that conversions and sums treat specially, and neighbours of halves.
std::vector<std::byte> telling_values(DType dtype, std::int64_t count) {
  const std::vector<double> special = {
      0,         -0.0,     0.5,      1.5,          -2.5,       65519.9,       65520,
      -65504,    3e9,      -3e9,     0x1p-24,      0x1p-25,    0x1p-14,       0x1.002p0,
      0x1.006p0, 0x1.01p0, 1e38,     -1e38,        kInfinity,  -kInfinity,    9e18,
      9.3e18,    -9.3e18,  16777217, std::nan(""), 2147483647, -2147483648.0, 0x1.fffffep127,
      0x1p-149,  7,        -1,       1.0 / 3};
  std::vector<double> values;
  std::size_t at = pick<std::size_t>(0, special.size() - 1);
  for (std::int64_t i = 0; i < count; ++i) values.push_back(special[at++ % special.size()]);
  return encode(dtype, values);
}

struct Pair {
  KernelRun run;
  View in, out;
};
Pair any_pair(DType in_dtype, DType out_dtype) {
  Pair pair;
  const Shape shape = any_shape();
  pair.in = any_view(0, shape, false), pair.out = any_view(1, reshaped(shape), true);
  const auto bytes =
      coin() ? any_bits(in_dtype, extent_of(pair.in)) : telling_values(in_dtype, extent_of(pair.in));
  pair.run.add(in_dtype, bytes);
  pair.run.add(out_dtype, coin() ? any_bits(out_dtype, extent_of(pair.out))
                                 : telling_values(out_dtype, extent_of(pair.out)));
  return pair;
}

TEST(GpuCopy, EqualsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kCases; ++i) {
      const DType dtype = any_dtype();
      Pair pair = any_pair(dtype, dtype);
      pair.run.run(Copy{pair.in, pair.out});
      RC_ASSERT(difference(pair.run, 0) == "");
      RC_ASSERT(difference(pair.run, 1) == "");
    }
  }));
}

TEST(GpuCast, EqualsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kCases; ++i) {
      const DType in = any_dtype(), out = any_dtype();
      Pair pair = any_pair(in, out);
      pair.run.run(Cast{pair.in, pair.out});
      RC_ASSERT(difference(pair.run, 1) == "");
    }
  }));
}

TEST(GpuAccumulate, EqualsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kCases; ++i) {
      const DType in = any_dtype();
      const bool wider = (in == DType::f16 || in == DType::bf16) && coin();
      Pair pair = any_pair(in, wider ? DType::f32 : in);
      const ReduceOp op = any_of<ReduceOp>({ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product});
      pair.run.run(Accumulate{op, pair.in, pair.out});
      RC_ASSERT(difference(pair.run, 1, Nans::alike) == "");
    }
  }));
}

TEST(GpuFillAndScale, EqualTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kCases; ++i) {
      const double value =
          any_of<double>({0.0, -7.0, 1.0 / 3, 1e9, 0x1p-20, std::numeric_limits<double>::infinity()});
      const DType filled = any_dtype(), scaled = any_floating();
      Pair fill = any_pair(filled, filled), scale = any_pair(scaled, scaled);
      fill.run.run(Fill{fill.out, value});
      RC_ASSERT(difference(fill.run, 1) == "");
      scale.run.run(Scale{scale.out, value});
      RC_ASSERT(difference(scale.run, 1, Nans::alike) == "");
    }
  }));
}

TEST(GpuCopy, FollowsTheIteration) {
  CP_SKIP_WITHOUT_GPU();
  KernelRun run;
  const BufferId in = run.add(DType::i32, std::vector<double>{1, 2, 3, 4, 5, 6}),
                 out = run.add(DType::i32, std::vector<double>{0, 0, 0, 0});
  const Copy copy{flat_view(in, 0, 2, {2, 0, 0}), flat_view(out, 0, 2, {2, 2, 1})};
  run.run(copy, 0), run.run(copy, 1), run.run(copy, 2);
  EXPECT_EQ(run.gpu_values(out), (std::vector<double>{3, 4, 5, 6}));
}

// Heads of [batch, seq, heads, dim] beside those of [batch, heads, seq, dim], and statistics both ways, in
// every width.
TEST(GpuCopy, MovesHeads) {
  CP_SKIP_WITHOUT_GPU();
  for (const DType dtype : {DType::f16, DType::f32, DType::i64}) {
    for (const std::int64_t dim : {1, 2, 3, 4, 8, 64}) {
      const std::int64_t batch = 2, seq = 40, heads = 35, numel = batch * seq * heads * dim;
      KernelRun run;
      std::vector<double> values(static_cast<std::size_t>(numel));
      std::iota(values.begin(), values.end(), 0);
      const BufferId in = run.add(dtype, values),
                     out = run.add(dtype, std::vector<double>(values.size(), -1));
      const View bshd = dense_view(in, 0, {batch, seq, heads, dim});
      const View bnsd{out, 0, {batch, seq, heads, dim}, {seq * heads * dim, dim, seq * dim, 1}, {}};
      run.run(Copy{bshd, bnsd});
      ASSERT_EQ(difference(run, out), "") << name(dtype) << " " << dim;
    }
  }
}

// Rows and columns swapped, plane by plane: of sizes that come in accesses of 16 bytes and of others, of more
// than a tile, and from addresses that such an access may have and that it may not.
TEST(GpuCopy, SwapsRowsAndColumns) {
  CP_SKIP_WITHOUT_GPU();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t rows : {66, 67, 136}) {
      for (const std::int64_t columns : {8, 63, 64, 72}) {
        for (const std::int64_t offset : {0, 2, 8}) {
          const std::int64_t planes = 3, plane = rows * columns, numel = planes * plane + offset;
          KernelRun run;
          std::vector<double> values(static_cast<std::size_t>(numel));
          // Whole numbers that bf16 holds.
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 251);
          const BufferId in = run.add(dtype, values),
                         out = run.add(dtype, std::vector<double>(values.size(), -1));
          run.run(Copy{dense_view(in, offset, {planes, rows, columns}),
                       View{out, offset, {planes, rows, columns}, {plane, 1, rows}, {}}});
          ASSERT_EQ(difference(run, out), "")
              << name(dtype) << " " << rows << " x " << columns << " from " << offset;
        }
      }
    }
  }
}

TEST(GpuCopy, OfMoreDimensionsThanAKernelHas) {
  CP_SKIP_WITHOUT_GPU();
  View in{0, 0, Shape(9, 2), {}, {}}, out{1, 0, Shape(9, 2), {}, {}};
  for (std::int64_t d = 0; d < 9; ++d) {
    in.strides.push_back(std::int64_t{1} << d * 3 / 2), out.strides.push_back(std::int64_t{1} << (8 - d));
  }
  KernelRun run;
  std::vector<double> values(static_cast<std::size_t>(extent_of(in)));
  std::iota(values.begin(), values.end(), 0);
  run.add(DType::i32, values), run.add(DType::i32, std::vector<double>(512, -1));
  run.run(Copy{in, out});
  EXPECT_EQ(difference(run, 1), "");
}

TEST(GpuStepKernels, RefusesKernelsThatHaveShapesOnlyByName) {
  CP_SKIP_WITHOUT_GPU();
  Plan plan;
  Buffer buffer;
  buffer.name = "x", buffer.kind = BufferKind::inout, buffer.numel = 4;
  plan.buffers = {buffer};
  plan.streams = {"compute"};
  RowKernel kernel;
  kernel.operation = RowOperation::gated_norm, kernel.updates = {flat_view(0, 0, 4)};
  Step step;
  step.work = Kernel(kernel);
  plan.segments = {step};
  const runtime::CudaMemory memory(plan, {});
  runtime::LibraryKernels libraries;
  try {
    runtime::StepKernels(plan, testing::identity_streams(plan), memory, libraries);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("the GPU has no kernel gated_norm without a rule; it has "),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace cp
