// Products of tiles, of which the kernels of matrix products and attention are made. The 256 threads of a
// block hold the sums of 64 rows and 64 or 128 columns. Thread t has 4 neighbouring rows, from t / 16 * 4 on,
// and the columns t % 16, t % 16 + 16, and so on.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernel_launch.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {

// kLanes threads share the same rows. The sizes fit together: 256 threads are 16 lanes times 16 groups of 4
// rows, so a tile has 64 rows; and 64 rows times a depth of 16 give each thread four elements of an operand
// to load. A thread holds 4 x 4 sums (64 columns) or 4 x 8 (128 columns), which leaves room among the at most
// 255 registers that a thread can have. For 16 sums it reads 4 + 4 values from shared memory. Chosen.
inline constexpr int kTileThreads = 256, kTileRows = 64, kTileDepth = 16;
inline constexpr int kRowsOfThread = 4, kLanes = 16;

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

// The number of values of shared memory that add_dots needs: two tiles. Each row has one value more than the
// depth. So rows are 17 words apart (of 4 bytes), and the 16 lanes, which read the same depth of neighbouring
// rows, find them in different ones of the 32 banks.
inline constexpr int kDotsShared = 2 * kTileRows * (kTileDepth + 1);

// Adds products: sums[r][c] += the sum over d < depth, in ascending order, of a(r, d) * b(c, d), for 64 rows
// and 64 columns. `shared` has kDotsShared values. Every phase of it, the last one too, ends with a barrier.
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
