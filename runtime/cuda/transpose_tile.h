// Transposes a tile through shared memory, so that both sides are read and written in long runs. Copies and
// cuDNN's statistics use it.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernel_launch.h"

namespace cp::runtime {

// A tile is as wide as a warp, so that a warp reads and writes a whole row of it at once. 256 threads are
// chosen: each moves four elements.
inline constexpr int kTransposeTile = 32, kTransposeThreads = 256;

// One element more to a row than it needs: then the elements of a column lie in different banks of the shared
// memory.
template <class Unit>
inline constexpr int kTransposeShared = kTransposeTile*(kTransposeTile + 1) * static_cast<int>(sizeof(Unit));

// Sets out[r + c * out_step] = in[r * in_step + c] for the at most kTransposeTile rows r and columns c from
// (row, column) on, in units. A thread reads all of its elements before it uses the first, so that the reads
// are under way together.
template <class Unit>
CP_DEVICE void transpose_tile(Block& block, std::int64_t row, std::int64_t column, std::int64_t rows,
                              std::int64_t columns, const Unit* in, std::int64_t in_step, Unit* out,
                              std::int64_t out_step) {
  constexpr int kStep = kTransposeThreads / kTransposeTile, kOfThread = kTransposeTile / kStep,
                kRow = kTransposeTile + 1;
  Unit* tile = block.template shared<Unit>();
  block.for_each_thread([&](int thread) {
    const int c = thread % kTransposeTile, first = thread / kTransposeTile;
    Unit read[kOfThread] = {};
    CP_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const int r = first + i * kStep;
      if (row + r < rows && column + c < columns) read[i] = in[(row + r) * in_step + column + c];
    }
    CP_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const int r = first + i * kStep;
      if (row + r < rows && column + c < columns) tile[r * kRow + c] = read[i];
    }
  });
  block.last([&](int thread) {
    const int r = thread % kTransposeTile, first = thread / kTransposeTile;
    CP_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const int c = first + i * kStep;
      if (row + r < rows && column + c < columns) out[(column + c) * out_step + row + r] = tile[r * kRow + c];
    }
  });
}

}  // namespace cp::runtime
