#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/kernels/strided.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using testing::KernelMemory;
using testing::kInfinity;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A view with gaps whose dimensions lie in memory in another order than they are counted.
View random_view(BufferId buffer, const Shape& shape) {
  View view{buffer, *rc::gen::inRange<std::int64_t>(0, 5), shape, Shape(shape.size()), {}};
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  std::int64_t stride = *rc::gen::inRange<std::int64_t>(1, 3);
  for (const std::size_t dim : order) {
    view.strides[dim] = stride;
    stride *= shape[dim] + *rc::gen::inRange<std::int64_t>(0, 2);
    stride = std::max<std::int64_t>(stride, 1);
  }
  return view;
}

std::vector<std::int64_t> offsets_of(const View& view) {
  std::vector<std::int64_t> offsets = {offset_at(view, 0)};
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    std::vector<std::int64_t> next;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < view.shape[dim]; ++i) next.push_back(offset + i * view.strides[dim]);
    }
    offsets = std::move(next);
  }
  return offsets;
}

std::int64_t buffer_size(const View& view) {
  const auto offsets = offsets_of(view);
  return offsets.empty() ? 1 : *std::max_element(offsets.begin(), offsets.end()) + 1;
}

// Shapes with the same number of elements that need not divide one another.
std::pair<Shape, Shape> random_shapes() {
  const auto pairs = std::vector<std::pair<Shape, Shape>>{
      {{2, 3}, {3, 2}}, {{6}, {2, 3}},        {{4, 6}, {2, 2, 3, 2}}, {{6, 10}, {4, 15}},
      {{1, 7, 1}, {7}}, {{2, 2, 2, 2}, {16}}, {{5, 4}, {2, 10}},      {{0, 3}, {3, 0}},
      {{}, {1}},        {{3, 1, 4}, {3, 4}},  {{2, 3, 4}, {4, 3, 2}}, {{8, 8}, {8, 8}},
      {{33}, {33}},     {{12, 5}, {5, 12}},   {{2, 8}, {4, 4}}};
  return *rc::gen::elementOf(pairs);
}

RC_GTEST_PROP(CopyKernel, MovesEachElementAndTouchesNothingElse, ()) {
  const DType dtype =
      pick("dtype", rc::gen::element(DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64));
  const auto [in_shape, out_shape] = random_shapes();
  const View in = random_view(0, in_shape), out = random_view(1, out_shape);
  KernelMemory memory;
  std::vector<double> source(static_cast<std::size_t>(buffer_size(in)));
  std::iota(source.begin(), source.end(), 1);  // exact in bf16 up to 256
  for (double& value : source) value = std::fmod(value, 251);
  const BufferId in_buffer = memory.add(dtype, source);
  const BufferId out_buffer =
      memory.add(dtype, std::vector<double>(static_cast<std::size_t>(buffer_size(out)), -1));
  memory.run(Copy{in, out});
  std::vector<double> expected(static_cast<std::size_t>(buffer_size(out)), -1);
  const auto from = offsets_of(in), to = offsets_of(out);
  RC_ASSERT(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    expected[static_cast<std::size_t>(to[i])] = source[static_cast<std::size_t>(from[i])];
  }
  RC_ASSERT(memory.values(out_buffer) == expected);
  RC_ASSERT(memory.values(in_buffer) == source);
}

TEST(CopyKernel, TransposesInTilesOfEverySize) {
  for (const DType dtype : {DType::f16, DType::i32, DType::i64}) {
    for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 40}, {15, 17}, {16, 16}, {17, 15}, {33, 2}, {2, 33}, {40, 31}}) {
      const std::int64_t batch = 3, numel = batch * rows * columns;
      std::vector<double> values(static_cast<std::size_t>(numel)), expected;
      std::iota(values.begin(), values.end(), 0);  // below 2^12: not all exact in f16, but equal when copied
      KernelMemory memory;
      const BufferId in = memory.add(dtype, values),
                     out = memory.add(dtype, std::vector<double>(values.size(), -1));
      values = memory.values(in);
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t c = 0; c < columns; ++c) {
          for (std::int64_t r = 0; r < rows; ++r) {
            expected.push_back(values[static_cast<std::size_t>((b * rows + r) * columns + c)]);
          }
        }
      }
      memory.run(Copy{{in, 0, {batch, columns, rows}, {rows * columns, 1, columns}, {}},
                      dense_view(out, 0, {batch, columns, rows})});
      ASSERT_EQ(memory.values(out), expected) << name(dtype) << " " << rows << "x" << columns;
    }
  }
}

// Columns [skipped, skipped + width) of a matrix, to the end of rows that are `more` elements longer than
// that; nothing else is touched.
void expect_copied_rows(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t skipped,
                        std::int64_t width, std::int64_t more) {
  SCOPED_TRACE(
      str(rows, " rows, columns ", skipped, " and ", width, " more of ", columns, ", rows longer by ", more));
  std::vector<double> values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 2039);
  KernelMemory memory;
  const BufferId in = memory.add(dtype, values),
                 out = memory.add(dtype,
                                  std::vector<double>(static_cast<std::size_t>(rows * (width + more)), -1));
  memory.run(Copy{{in, skipped, {rows, width}, {columns, 1}, {}},
                  {out, more, {rows, width}, {width + more, 1}, {}}});
  const std::vector<double> copied = memory.values(out);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = -more; c < width; ++c) {
      const double expected = c < 0 ? -1 : values[static_cast<std::size_t>(row * columns + skipped + c)];
      ASSERT_EQ(copied[static_cast<std::size_t>(row * (width + more) + more + c)], expected)
          << row << ", " << c;
    }
  }
}

TEST(CopyKernel, CopiesRowsOfEveryLengthAndPlace) {
  for (const DType dtype : {DType::f16, DType::i64}) {
    for (const std::int64_t width : {31, 32, 33, 63, 64, 65, 100, 127, 128, 257, 1024, 1500}) {
      for (const std::int64_t skipped : {0, 1, 7}) {
        for (const std::int64_t more : {0, 3}) expect_copied_rows(dtype, 40, width + 9, skipped, width, more);
      }
    }
  }
}

// More than 8 MiB, which pass the caches by.
TEST(CopyKernel, CopiesManyRowsOfEveryLengthAndPlace) {
  constexpr std::int64_t kNumel = std::int64_t{9} << 18;
  for (const std::int64_t width : {63, 64, 65, 79, 256, 1021, 65'537}) {
    for (const std::int64_t more : {0, 1})
      expect_copied_rows(DType::i32, kNumel / width + 1, width + 2, 1, width, more);
  }
}

TEST(CopyKernel, RepeatsAnElementOfStrideZero) {
  KernelMemory memory;
  const BufferId in = memory.add(DType::f32, {1, 2, 3}), out = memory.add(DType::f32, std::vector<double>(6));
  memory.run(Copy{{in, 0, {3, 2}, {1, 0}, {}}, dense_view(out, 0, {3, 2})});
  EXPECT_EQ(memory.values(out), (std::vector<double>{1, 1, 2, 2, 3, 3}));
}

TEST(CopyKernel, FollowsTheIteration) {
  KernelMemory memory;
  const BufferId in = memory.add(DType::i32, {1, 2, 3, 4, 5, 6}), out = memory.add(DType::i32, {0, 0, 0, 0});
  const Copy copy{flat_view(in, 0, 2, {2, 0, 0}), flat_view(out, 0, 2, {2, 2, 1})};
  memory.run(copy, 0);
  EXPECT_EQ(memory.values(out), (std::vector<double>{0, 0, 1, 2}));
  memory.run(copy, 1);
  EXPECT_EQ(memory.values(out), (std::vector<double>{3, 4, 1, 2}));
  memory.run(copy, 2);
  EXPECT_EQ(memory.values(out), (std::vector<double>{3, 4, 5, 6}));
}

TEST(CommonLoops, AreAsFewAndAsLongAsPossible) {
  using Loops = std::vector<Loop>;
  const View flat = flat_view(0, 0, 24);
  EXPECT_EQ(common_loops(flat, dense_view(1, 0, {2, 3, 4})), (Loops{{24, 1, 1}}));
  EXPECT_EQ(common_loops(dense_view(0, 0, {4, 3, 2}), dense_view(1, 0, {2, 3, 4})), (Loops{{24, 1, 1}}));
  const View columns{1, 0, {6, 4}, {10, 1}, {}};
  EXPECT_EQ(common_loops(flat, columns), (Loops{{6, 4, 10}, {4, 1, 1}}));
  const View transposed{1, 0, {4, 6}, {1, 4}, {}};
  EXPECT_EQ(common_loops(flat, transposed), (Loops{{4, 6, 1}, {6, 1, 4}}));
  const View strided_a{0, 0, {2, 3}, {10, 2}, {}}, strided_b{1, 0, {3, 2}, {10, 2}, {}};
  EXPECT_EQ(common_loops(strided_a, strided_b), std::nullopt);
}

TEST(CastKernel, RoundsOnceAndSaturatesIntegers) {
  KernelMemory memory;
  const std::vector<double> values = {0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, kInfinity, -kInfinity, kNaN};
  const auto n = static_cast<std::int64_t>(values.size());
  const BufferId f32 = memory.add(DType::f32, values);
  const BufferId i32 = memory.add(DType::i32, std::vector<double>(values.size()));
  memory.run(Cast{flat_view(f32, 0, n), flat_view(i32, 0, n)});
  EXPECT_EQ(memory.values(i32),
            (std::vector<double>{0, 2, 2, 0, -2, 2147483647, -2147483648, 2147483647, -2147483648, 0}));

  const BufferId i64 = memory.add(DType::i64, {4294967296 + 7, -1, 0x1p40 + 0x1p32 + 1});
  const BufferId low = memory.add(DType::i32, {0, 0, 0}), bf16 = memory.add(DType::bf16, {0, 0, 0});
  memory.run(Cast{flat_view(i64, 0, 3), flat_view(low, 0, 3)});
  EXPECT_EQ(memory.values(low), (std::vector<double>{7, -1, 1}));
  memory.run(Cast{flat_view(i64, 0, 3), flat_view(bf16, 0, 3)});
  EXPECT_EQ(memory.values(bf16), (std::vector<double>{4294967296, -1, 0x1.02p40}));
}

TEST(CastKernel, WalksStridedViews) {
  KernelMemory memory;
  const BufferId in = memory.add(DType::bf16, {1, 2, 3, 4, 5, 6}),
                 out = memory.add(DType::f32, std::vector<double>(6));
  memory.run(Cast{{in, 0, {3, 2}, {1, 3}, {}}, dense_view(out, 0, {3, 2})});
  EXPECT_EQ(memory.values(out), (std::vector<double>{1, 4, 2, 5, 3, 6}));
}

TEST(FillKernel, FillsTheViewAlone) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
    KernelMemory memory;
    const BufferId out = memory.add(dtype, {1, 2, 3, 4, 5});
    memory.run(Fill{{out, 1, {2}, {2}, {}}, -7});
    EXPECT_EQ(memory.values(out), (std::vector<double>{1, -7, 3, -7, 5})) << name(dtype);
  }
}

TEST(AccumulateKernel, FoldsWithEachReduction) {
  const std::vector<double> a = {1, 5, -3, 2, 0, 7, 8, -9, 4}, b = {4, -2, -3, 6, 1, 0, 2, -1, 5};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      KernelMemory memory;
      const BufferId in = memory.add(dtype, a), out = memory.add(dtype, b);
      memory.run(Accumulate{op, flat_view(in, 0, 9), flat_view(out, 0, 9)});
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double expected = op == ReduceOp::sum   ? a[i] + b[i]
                                : op == ReduceOp::min ? std::min(a[i], b[i])
                                : op == ReduceOp::max ? std::max(a[i], b[i])
                                                      : a[i] * b[i];
        EXPECT_EQ(memory.values(out)[i], expected) << name(dtype) << " " << name(op) << " " << i;
      }
    }
  }
}

// Neither rounds the f32 sum to 16 bits nor takes a step between.
TEST(AccumulateKernel, Adds16BitsToF32) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KernelMemory memory;
    const BufferId in = memory.add(dtype, {1, 0.25, 3}), out = memory.add(DType::f32, {0x1p-20, 1024, 0});
    memory.run(Accumulate{ReduceOp::sum, {in, 0, {2}, {2}, {}}, flat_view(out, 0, 2)});
    EXPECT_EQ(memory.values(out), (std::vector<double>{1 + 0x1p-20, 1027, 0})) << name(dtype);
  }
}

TEST(AccumulateKernel, IntegersWrapAndNaNsWin) {
  KernelMemory memory;
  const BufferId limit = memory.add(DType::i32, {2147483647, 2147483647}),
                 one = memory.add(DType::i32, {1, 2});
  memory.run(Accumulate{ReduceOp::sum, flat_view(limit, 0, 1), flat_view(one, 0, 1)});
  memory.run(Accumulate{ReduceOp::product, flat_view(limit, 1, 1), flat_view(one, 1, 1)});
  EXPECT_EQ(memory.values(one), (std::vector<double>{-2147483648, -2}));
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    const BufferId a = memory.add(DType::f32, {kNaN, 1}), b = memory.add(DType::f32, {1, kNaN});
    memory.run(Accumulate{op, flat_view(a, 0, 2), flat_view(b, 0, 2)});
    EXPECT_TRUE(std::isnan(memory.values(b)[0]) && std::isnan(memory.values(b)[1])) << name(op);
  }
}

TEST(ScaleKernel, MultipliesInF32AndRoundsOnce) {
  KernelMemory memory;
  const BufferId data = memory.add(DType::bf16, {3, 5, 7});
  memory.run(Scale{flat_view(data, 0, 2), 1.0 / 3});
  EXPECT_EQ(memory.values(data), (std::vector<double>{1, bf16_to_f32(f32_to_bf16(5.0f / 3)), 7}));
}

TEST(Reduce, EachReductionOverSeveralInputsInPlace) {
  for (const std::int64_t numel : {0, 1, 7, 1023, 1024, 1025, 3000}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
        if (op == ReduceOp::avg && !is_floating(dtype)) continue;
        std::vector<std::vector<double>> values;
        std::vector<std::vector<std::byte>> bytes;
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
          values.push_back(testing::small_integers(numel, seed, 3));
          bytes.push_back(encode(dtype, values.back()));
        }
        const std::array<const std::byte*, 4> inputs = {bytes[0].data(), bytes[1].data(), bytes[2].data(),
                                                        bytes[3].data()};
        reduce(op, dtype, inputs, bytes[2].data(), numel);
        std::vector<double> expected = values[0];
        for (std::size_t i = 0; i < expected.size(); ++i) {
          for (std::size_t k = 1; k < 4; ++k) {
            double& sum = expected[i];
            const double next = values[k][i];
            if (op == ReduceOp::min) sum = std::min(sum, next);
            if (op == ReduceOp::max) sum = std::max(sum, next);
            if (op == ReduceOp::product) sum *= next;
            if (op == ReduceOp::sum || op == ReduceOp::avg) sum += next;
          }
          if (op == ReduceOp::avg) expected[i] /= 4;
        }
        ASSERT_EQ(decode(dtype, bytes[2]), expected) << name(dtype) << " " << name(op) << " " << numel;
      }
    }
  }
}

TEST(Reduce, SixteenBitTypesRoundOnlyOnce) {
  // 256 + 1 + 1 is 258 in f32; rounding after each bf16 addition would stay at 256.
  std::vector<std::vector<std::byte>> bytes;
  for (const double value : {256.0, 1.0, 1.0}) bytes.push_back(encode(DType::bf16, {value}));
  const std::array<const std::byte*, 3> inputs = {bytes[0].data(), bytes[1].data(), bytes[2].data()};
  reduce(ReduceOp::sum, DType::bf16, inputs, bytes[0].data(), 1);
  EXPECT_EQ(decode(DType::bf16, bytes[0]), std::vector<double>{258});
}

TEST(MatMulKernel, EqualsTheDefinitionOnIntegers) {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64}) {
    for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {3, 5, 2}, {65, 129, 257}, {0, 3, 4}, {4, 0, 3}, {64, 128, 256}}) {
      for (const bool accumulate : {false, true}) {
        const auto a = testing::small_integers(m * k, 1, 4), b = testing::small_integers(k * n, 2, 4);
        const auto before = testing::small_integers(m * n, 3, 4);
        KernelMemory memory;
        const BufferId a_id = memory.add(dtype, a), b_id = memory.add(dtype, b),
                       out = memory.add(dtype, before);
        // a lies transposed in memory.
        memory.run(MatMul{{a_id, 0, {m, k}, {1, m}, {}},
                          dense_view(b_id, 0, {k, n}),
                          dense_view(out, 0, {m, n}),
                          accumulate});
        std::vector<double> expected = accumulate ? before : std::vector<double>(before.size());
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            for (std::int64_t l = 0; l < k; ++l) {
              expected[static_cast<std::size_t>(i * n + j)] +=
                  a[static_cast<std::size_t>(l * m + i)] * b[static_cast<std::size_t>(l * n + j)];
            }
          }
        }
        ASSERT_EQ(memory.values(out), expected) << m << "x" << k << "x" << n << " " << name(dtype);
      }
    }
  }
}

// Each of several products is its own: pairs of matrices that lie apart, transposed, and added to what is
// there.
TEST(MatMulKernel, OfSeveralProductsComputesEach) {
  constexpr std::int64_t kProducts = 3, kM = 2, kK = 4, kN = 5;
  KernelMemory memory;
  const auto a = testing::small_integers(kProducts * (kM * kK + 1), 1, 4),
             b = testing::small_integers(kProducts * kK * kN, 2, 4),
             before = testing::small_integers(kProducts * kM * kN, 3, 4);
  const BufferId a_id = memory.add(DType::f32, a), b_id = memory.add(DType::f32, b);
  const BufferId together = memory.add(DType::f32, before), apart = memory.add(DType::f32, before);
  const View stacked{a_id, 0, {kProducts, kM, kK}, {kM * kK + 1, 1, kM}, {}};
  const auto step = [&](BufferId out) {
    return MatMul{stacked, dense_view(b_id, 0, {kProducts, kK, kN}), dense_view(out, 0, {kProducts, kM, kN}),
                  true};
  };
  memory.run(step(together));
  EXPECT_EQ(num_products(step(apart)), kProducts);
  for (std::int64_t i = 0; i < kProducts; ++i) {
    const MatMul one{View{a_id, i * (kM * kK + 1), {kM, kK}, {1, kM}, {}},
                     dense_view(b_id, i * kK * kN, {kK, kN}), dense_view(apart, i * kM * kN, {kM, kN}), true};
    EXPECT_EQ(product_of(step(apart), i), one);
    memory.run(one);
  }
  EXPECT_EQ(memory.values(together), memory.values(apart));
  EXPECT_NE(memory.values(together), before);
}

TEST(MatMulKernel, SixteenBitTypesSumInF32) {
  constexpr std::int64_t kDepth = 300;  // 300 ones: in bf16 the sum would stop at 256
  KernelMemory memory;
  const BufferId a = memory.add(DType::bf16, std::vector<double>(kDepth, 1)),
                 out = memory.add(DType::bf16, {4});
  memory.run(
      MatMul{dense_view(a, 0, {1, kDepth}), dense_view(a, 0, {kDepth, 1}), dense_view(out, 0, {1, 1}), true});
  EXPECT_EQ(memory.values(out), std::vector<double>{304});
}

TEST(MatMulKernel, SumsOfSixteenBitTypesMayStayInF32) {
  constexpr std::int64_t kDepth = 257;  // which bf16 does not hold
  for (const DType dtype : {DType::bf16, DType::f16}) {
    KernelMemory memory;
    const BufferId a = memory.add(dtype, std::vector<double>(kDepth, 1)),
                   out = memory.add(DType::f32, {0.25, -7});
    memory.run(MatMul{dense_view(a, 0, {1, kDepth}), dense_view(a, 0, {kDepth, 1}),
                      dense_view(out, 0, {1, 1}), true});
    memory.run(MatMul{dense_view(a, 0, {1, kDepth}), dense_view(a, 0, {kDepth, 1}),
                      dense_view(out, 1, {1, 1}), false});
    EXPECT_EQ(memory.values(out), (std::vector<double>{257.25, 257})) << name(dtype);
  }
}

TEST(RowKernel, IsRefusedByName) {
  KernelMemory memory;
  const BufferId x = memory.add(DType::f32, {1, 2});
  const auto run = [&] { memory.run(RowKernel{RowOperation::gated_norm, {}, {}, {flat_view(x, 0, 2)}}); };
  EXPECT_THAT(run, ::testing::ThrowsMessage<InvalidInput>(
                       ::testing::HasSubstr("the host has no kernel gated_norm without a rule; it has ")));
}

}  // namespace
}  // namespace cp
