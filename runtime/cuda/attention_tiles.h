// What the kernels of exact attention share. Sums are in f32. Their order depends only on shapes and slices,
// so equal calls give equal bits.
//
// A block has a tile of rows. It goes through the bands of the mask that concern these rows (mask_bands.h),
// at most 64 columns at a time. The products of the rows' vectors with the columns' vectors give weights; the
// weights times the columns' values are added to the rows' sums. Rows are queries for the output and dq, and
// keys for dk and dv. If the sums are wider than a block's (128), several blocks share the rows, and each
// computes the weights again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/mask_bands.h"
#include "runtime/cuda/tile.h"
#include "shared/base/dtype.h"
#include "shared/kernels/float16.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

using Scores = TileSums<float, kTileRows>;

// A [batch, seq, heads, dim] view of any floating type.
struct Heads {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_step = 0, row_step = 0, head_step = 0, dim_step = 0;

  CP_DEVICE std::int64_t offset(std::int64_t batch, std::int64_t head) const {
    return batch * batch_step + head * head_step;
  }
  CP_DEVICE float value(std::int64_t at) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[at];
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(data)[at];
    return dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  CP_DEVICE void store(std::int64_t at, float sum, bool accumulate) const {
    if (accumulate) sum = value(at) + sum;
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[at] = sum;
    } else {
      reinterpret_cast<std::uint16_t*>(data)[at] = dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
    }
  }
};

// The rows of one head in one batch.
struct Rows {
  const Heads& heads;
  std::int64_t offset;
  CP_DEVICE Rows(const Heads& all, std::int64_t batch, std::int64_t head)
      : heads(all), offset(all.offset(batch, head)) {}
  CP_DEVICE std::int64_t at(std::int64_t row, std::int64_t d) const {
    return offset + row * heads.row_step + d * heads.dim_step;
  }
  CP_DEVICE float value(std::int64_t row, std::int64_t d) const { return heads.value(at(row, d)); }
};

// A [batch, heads, seq] view in f32.
struct Statistic {
  float* data = nullptr;
  std::int64_t batch_step = 0, head_step = 0, row_step = 0;
  CP_DEVICE float& at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_step + head * head_step + row * row_step];
  }
};

// What a block does in a grid over [chunk of the sums' width][batch][head][tile of rows].
struct BlockPlace {
  std::int64_t tile, head, batch, chunk;
};
struct RowGrid {
  std::int64_t tiles = 0, heads = 0, batches = 0, chunks = 0;
  CP_DEVICE BlockPlace place(std::int64_t index) const {
    BlockPlace place;
    place.tile = index % tiles, index /= tiles;
    place.head = index % heads, index /= heads;
    place.batch = index % batches, place.chunk = index / batches;
    return place;
  }
  std::int64_t blocks() const { return tiles * heads * batches * chunks; }
};

// The layout of shared memory, in floats: first the operands of products, which take turns with the values of
// columns; then a tile of weights, whose rows have one float more, so that they do not all begin in the same
// bank; then two numbers for each row. That is 6,464 floats, or 25,856 bytes, of the 48 KiB that a block may
// have. kMostColumns is the width of a block's sums: 8 columns of each thread.
inline constexpr int kWeightsRow = kTileRows + 1;
inline constexpr int kWeightsAt = kDotsShared;
inline constexpr int kStatisticsAt = kWeightsAt + kTileRows * kWeightsRow;
inline constexpr int kSharedFloats = kStatisticsAt + 2 * kTileRows;
inline constexpr int kSharedBytes = kSharedFloats * static_cast<int>(sizeof(float));
inline constexpr int kMostColumns = 2 * kTileRows;
static_assert(kTileDepth * kMostColumns <= kDotsShared && kTileRows * (kLanes + 1) <= kDotsShared);

// Adds weighted values: sums[r][c] += the sum over k < count, in ascending order, of weights[r][k] * value(k,
// c). It also calls each(thread, i, weight) for each weight of the thread's row i.
template <int kColumns, class Value, class Each>
CP_DEVICE void add_values(Block& block, float* shared, int count, Value&& value,
                          PerThread<TileSums<float, kColumns>>& sums, Each&& each) {
  const float* weights = shared + kWeightsAt;
  for (int begin = 0; begin < count; begin += kTileDepth) {
    const int part = count - begin < kTileDepth ? count - begin : kTileDepth;
    block.for_each_thread([&](int thread) {
      CP_NO_UNROLL
      for (int i = thread; i < part * kColumns; i += kTileThreads) {
        shared[i] = value(begin + i / kColumns, i % kColumns);
      }
    });
    block.for_each_thread([&](int thread) {
      auto& values = sums[thread].values;
      CP_NO_UNROLL
      for (int k = 0; k < part; ++k) {
        float factors[kRowsOfThread];
        CP_UNROLL
        for (int i = 0; i < kRowsOfThread; ++i) {
          factors[i] = weights[tile_row(thread, i) * kWeightsRow + begin + k];
          each(thread, i, factors[i]);
        }
        CP_UNROLL
        for (int j = 0; j < kColumns / kLanes; ++j) {
          const float other = shared[k * kColumns + tile_column(thread, j)];
          CP_UNROLL
          for (int i = 0; i < kRowsOfThread; ++i) values[i][j] += factors[i] * other;
        }
      }
    });
  }
}

CP_DEVICE int columns_of(const BandPart& part, std::int64_t column) {
  return static_cast<int>(part.column_end - column < kTileRows ? part.column_end - column : kTileRows);
}

// ---- on the host ----

class Operands {
 public:
  Operands(const CudaMemory& memory, std::int64_t iteration) : memory_(memory), iteration_(iteration) {}
  Heads heads(const View& view) const {
    return {memory_.at(view, iteration_),
            memory_.dtype(view),
            view.strides[0],
            view.strides[1],
            view.strides[2],
            view.strides[3]};
  }
  Statistic statistic(const View& view) const {
    return {reinterpret_cast<float*>(memory_.at(view, iteration_)), view.strides[0], view.strides[1],
            view.strides[2]};
  }

 private:
  const CudaMemory& memory_;
  std::int64_t iteration_;
};

// The grid of a kernel whose sums have the shape of the view.
template <int kColumns>
RowGrid grid_over(const View& sums) {
  return {ceil_div(sums.shape[1], std::int64_t{kTileRows}), sums.shape[2], sums.shape[0],
          ceil_div(sums.shape[3], std::int64_t{kColumns})};
}

// Calls f(std::integral_constant<int, columns of a block's sums>{}).
template <class F>
void with_columns(std::int64_t dim, F&& f) {
  dim <= kTileRows ? f(std::integral_constant<int, kTileRows>{})
                   : f(std::integral_constant<int, kMostColumns>{});
}

inline std::int64_t group_size(const View& q, const View& k) {
  return k.shape[2] == 0 ? 1 : q.shape[2] / k.shape[2];
}

}  // namespace cp::runtime
