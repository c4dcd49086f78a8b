// Transposes a tile through shared memory, so that both sides are read and written in long runs. Copies and
// cuDNN's statistics use it.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/pack.h"

namespace cp::runtime {

// Rows and columns of a tile, in units, and threads of a block. What a block has under way must cover the
// time until memory answers, and enough blocks must have room beside it. Measured on an H200 at 64 MiB, as
// shares of the rate of a copy. In single units: tiles of 32, 0.73 of 4 bytes and 0.39 of 2; of 64, 0.86 and
// 0.75; of 128, 0.68 of 2 bytes. In accesses of 16 bytes: tiles of 64 with four accesses of a thread 0.94 of
// 4 bytes and 0.92 of 2; with two of them 0.84 and 0.82; larger tiles of 2 bytes 0.64 to 0.85.
template <class Unit>
inline constexpr int kTransposeTile = sizeof(Unit) <= 4 ? 64 : 32;
template <class Unit, bool kPacked = false>
inline constexpr int kTransposeThreads =
    kPacked ? kTransposeTile<Unit>* kTransposeTile<Unit>* static_cast<int>(sizeof(Unit)) / 16 / 4 : 256;

// Sets out[r + c * out_step] = in[r * in_step + c] for the at most kTransposeTile rows r and columns c from
// (row, column) on, in units. A thread reads all that it has to before it uses the first, so that the reads
// are under way together.
//
// A row has a unit more than it needs: then the units of a column lie in different banks of the shared memory
// (of 2 bytes, two of them share a bank).
template <class Unit>
struct TransposeTile {
  static constexpr int kTile = kTransposeTile<Unit>, kThreads = kTransposeThreads<Unit>, kRow = kTile + 1;
  static constexpr int kStep = kThreads / kTile;  // how many rows all threads have at once
  static constexpr int kSharedBytes = kTile * kRow * static_cast<int>(sizeof(Unit));

  CP_DEVICE static void run(Block& block, std::int64_t row, std::int64_t column, std::int64_t rows,
                            std::int64_t columns, const Unit* in, std::int64_t in_step, Unit* out,
                            std::int64_t out_step) {
    Unit* tile = block.template shared<Unit>();
    block.for_each_thread([&](int thread) {
      const int c = thread % kTile, first = thread / kTile;
      const Unit* from = in + (row + first) * in_step + column + c;
      Unit read[kTile / kStep] = {};
      CP_UNROLL
      for (int i = 0; i < kTile / kStep; ++i) {
        if (row + first + i * kStep < rows && column + c < columns) read[i] = from[i * kStep * in_step];
      }
      CP_UNROLL
      for (int i = 0; i < kTile / kStep; ++i) tile[(first + i * kStep) * kRow + c] = read[i];
    });
    block.last([&](int thread) {
      const int r = thread % kTile, first = thread / kTile;
      CP_UNROLL
      for (int i = 0; i < kTile / kStep; ++i) {
        const int c = first + i * kStep;
        if (row + r < rows && column + c < columns)
          out[(column + c) * out_step + row + r] = tile[r * kRow + c];
      }
    });
  }
};

// The same in accesses of 16 bytes, for units of 2 or 4 bytes: rows, columns and both steps are multiples of
// an access, and both addresses are aligned to it.
//
// The tile lies in shared memory in chunks of 16 bytes. A thread gathers some rows of a word of 4 bytes, and
// eight neighbouring threads gather so many rows each, so that they write 128 bytes of each column. These
// words lie in different banks because the chunks of a row are in an order that depends on the row: chunk k
// stands where k xor (row / rows of a thread) says.
template <class Unit>
struct PackedTransposeTile {
  static constexpr int kTile = kTransposeTile<Unit>, kThreads = kTransposeThreads<Unit, true>;
  static constexpr int kPack = 16 / static_cast<int>(sizeof(Unit));  // units of an access; rows of a thread
  static constexpr int kWord = 4 / static_cast<int>(sizeof(Unit));   // units of a word
  static constexpr int kChunks = kTile / kPack, kWords = kTile / kWord;  // of a row
  static constexpr int kReads = kTile * kChunks / kThreads;              // of a thread
  static constexpr int kGathers = kTile / kPack * kWords / kThreads;
  static constexpr int kTogether = 8;  // threads that write neighbouring rows
  static constexpr int kSharedBytes = kTile * kTile * static_cast<int>(sizeof(Unit));
  using Access = Pack<Unit, kPack>;
  using Word = Pack<Unit, kWord>;
  static_assert(kWord >= 1 && kChunks % kTogether == 0 && kTile / kPack % kTogether == 0);

  CP_DEVICE static int place(int row, int chunk) {
    return row * kChunks + (chunk ^ (row / kPack % kTogether));
  }

  CP_DEVICE static void run(Block& block, std::int64_t row, std::int64_t column, std::int64_t rows,
                            std::int64_t columns, const Unit* in, std::int64_t in_step, Unit* out,
                            std::int64_t out_step) {
    Access* tile = block.template shared<Access>();
    block.for_each_thread([&](int thread) {
      const int chunk = thread % kChunks, first = thread / kChunks, step = kThreads / kChunks;
      const Unit* from = in + (row + first) * in_step + column + chunk * kPack;
      Access read[kReads] = {};
      CP_UNROLL
      for (int i = 0; i < kReads; ++i) {
        if (row + first + i * step < rows && column + chunk * kPack < columns)
          read[i] = *reinterpret_cast<const Access*>(from + i * step * in_step);
      }
      CP_UNROLL
      for (int i = 0; i < kReads; ++i) tile[place(first + i * step, chunk)] = read[i];
    });
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kGathers; ++i) {
        const int number = thread + i * kThreads;
        const int word = number / kTogether % kWords;
        const int r = (number % kTogether + number / (kTogether * kWords) * kTogether) * kPack;
        Access of_columns[kWord];
        CP_UNROLL
        for (int a = 0; a < kPack; ++a) {
          const Word read = reinterpret_cast<const Word*>(tile + place(r + a, word / 4))[word % 4];
          CP_UNROLL
          for (int b = 0; b < kWord; ++b) of_columns[b].values[a] = read.values[b];
        }
        if (row + r >= rows || column + word * kWord >= columns) continue;
        CP_UNROLL
        for (int b = 0; b < kWord; ++b)
          *reinterpret_cast<Access*>(out + (column + word * kWord + b) * out_step + row + r) = of_columns[b];
      }
    });
  }
};

}  // namespace cp::runtime
