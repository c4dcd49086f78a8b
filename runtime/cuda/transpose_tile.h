// Transposes a tile through shared memory, so that both sides are read and written in long runs. Copies and
// cuDNN's statistics use it.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/pack.h"

namespace cp::runtime {

// Rows and columns of a tile, in units. What a block has under way must cover the time until memory answers.
// Measured on an H200, as shares of the rate of a copy: tiles of 32, 0.73 of 4 bytes and 0.39 of 2; of 64,
// 0.86 and 0.75; of 128, 0.68 of 2 bytes.
template <class Unit>
inline constexpr int kTransposeTile = sizeof(Unit) <= 4 ? 64 : 32;
inline constexpr int kTransposeThreads = 256;  // chosen

// A row has kPack units more than it needs: then the units of a column lie in different banks of the shared
// memory (in pairs of 2 bytes, two of them share a bank), and a pack is aligned.
template <class Unit, int kPack>
inline constexpr int kTransposeRow = kTransposeTile<Unit> + kPack;
template <class Unit, int kPack = 1>
inline constexpr int kTransposeShared =
    kTransposeTile<Unit>* kTransposeRow<Unit, kPack>* static_cast<int>(sizeof(Unit));

// Sets out[r + c * out_step] = in[r * in_step + c] for the at most kTransposeTile rows r and columns c from
// (row, column) on, in units. Each access has kPack units, of a row of `in` and of a column of `out`: rows,
// columns, both steps and both addresses are multiples of kPack. A thread reads all that it has to before it
// uses the first, so that the reads are under way together.
template <int kPack, class Unit>
CP_DEVICE void transpose_tile(Block& block, std::int64_t row, std::int64_t column, std::int64_t rows,
                              std::int64_t columns, const Unit* in, std::int64_t in_step, Unit* out,
                              std::int64_t out_step) {
  using Access = Pack<Unit, kPack>;
  constexpr int kTile = kTransposeTile<Unit>, kRow = kTransposeRow<Unit, kPack>;
  constexpr int kAcross = kTile / kPack;              // accesses along a row, or along a column
  constexpr int kStep = kTransposeThreads / kAcross;  // how many rows of accesses all threads have at once
  Unit* tile = block.template shared<Unit>();
  block.for_each_thread([&](int thread) {
    const int c = thread % kAcross * kPack, first = thread / kAcross;
    const Unit* from = in + (row + first) * in_step + column + c;
    Access read[kTile / kStep] = {};
    CP_UNROLL
    for (int i = 0; i < kTile / kStep; ++i) {
      if (row + first + i * kStep < rows && column + c < columns)
        read[i] = *reinterpret_cast<const Access*>(from + i * kStep * in_step);
    }
    CP_UNROLL
    for (int i = 0; i < kTile / kStep; ++i)
      *reinterpret_cast<Access*>(tile + (first + i * kStep) * kRow + c) = read[i];
  });
  block.last([&](int thread) {
    const int r = thread % kAcross * kPack, first = thread / kAcross;
    CP_UNROLL
    for (int i = 0; i < kAcross / kStep; ++i) {
      const int c = (first + i * kStep) * kPack;
      if (row + r >= rows || column + c >= columns) continue;
      Access of_columns[kPack];
      CP_UNROLL
      for (int a = 0; a < kPack; ++a) {
        const Access of_row = *reinterpret_cast<const Access*>(tile + (r + a) * kRow + c);
        CP_UNROLL
        for (int b = 0; b < kPack; ++b) of_columns[b].values[a] = of_row.values[b];
      }
      CP_UNROLL
      for (int b = 0; b < kPack; ++b)
        *reinterpret_cast<Access*>(out + (column + c + b) * out_step + row + r) = of_columns[b];
    }
  });
}

}  // namespace cp::runtime
