// Products of tiles: what matrix products and attention are made of. 256 threads hold 64 rows and 64 or 128
// columns of sums; thread t has 4 neighbouring rows from t / 16 * 4 on and the columns t % 16, t % 16 + 16,
// ...
#pragma once

#include <cstdint>

#include "runtime/cuda/kernel_launch.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {

inline constexpr int kTileThreads = 256, kTileRows = 64, kTileDepth = 16;
inline constexpr int kRowsOfThread = 4, kLanes = 16;  // kLanes threads share rows

template <class Value, int kColumns>
struct TileSums {
  static constexpr int kOfThread = kColumns / kLanes;
  Value values[kRowsOfThread][kOfThread];
};

CP_DEVICE int tile_row(int thread, int i) { return thread / kLanes * kRowsOfThread + i; }
CP_DEVICE int tile_column(int thread, int j) { return thread % kLanes + kLanes * j; }

template <class Value, int kColumns>
CP_DEVICE void clear(TileSums<Value, kColumns>& sums) {
  CP_UNROLL
  for (int i = 0; i < kRowsOfThread; ++i) {
    CP_UNROLL
    for (int j = 0; j < TileSums<Value, kColumns>::kOfThread; ++j) sums.values[i][j] = 0;
  }
}

// Shared memory of add_dots, in values.
inline constexpr int kDotsShared = 2 * kTileRows * (kTileDepth + 1);

// sums[r][c] += sum over d < depth, ascending, of a(r, d) * b(c, d) for 64 rows and columns. Begins and ends
// with a barrier behind it.
template <class Value, class A, class B>
CP_DEVICE void add_dots(Block& block, Value* shared, std::int64_t depth, A&& a, B&& b,
                        PerThread<TileSums<Value, kTileRows>>& sums) {
  constexpr int kRow = kTileDepth + 1;
  Value *a_tile = shared, *b_tile = shared + kTileRows * kRow;
  for (std::int64_t begin = 0; begin < depth; begin += kTileDepth) {
    const int part = static_cast<int>(depth - begin < kTileDepth ? depth - begin : kTileDepth);
    block.for_each_thread([&](int thread) {
      const int d = thread % kTileDepth;
      if (d >= part) return;
      CP_NO_UNROLL
      for (int row = thread / kTileDepth; row < kTileRows; row += kTileThreads / kTileDepth) {
        a_tile[row * kRow + d] = a(row, begin + d);
        b_tile[row * kRow + d] = b(row, begin + d);
      }
    });
    block.for_each_thread([&](int thread) {
      auto& values = sums[thread].values;
      const Value *rows = a_tile + tile_row(thread, 0) * kRow,
                  *columns = b_tile + tile_column(thread, 0) * kRow;
      CP_NO_UNROLL
      for (int d = 0; d < part; ++d) {
        Value factors[kRowsOfThread];
        CP_UNROLL
        for (int i = 0; i < kRowsOfThread; ++i) factors[i] = rows[i * kRow + d];
        CP_UNROLL
        for (int j = 0; j < kTileRows / kLanes; ++j) {
          const Value other = columns[j * kLanes * kRow + d];
          CP_UNROLL
          for (int i = 0; i < kRowsOfThread; ++i) values[i][j] = plus(values[i][j], times(factors[i], other));
        }
      }
    });
  }
}

}  // namespace cp::runtime
