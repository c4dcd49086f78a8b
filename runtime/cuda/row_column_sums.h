// Sums of a matrix's columns: the gradients of weights and biases, which have one number for all rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/row_access.h"

namespace cp::runtime {

// Writes the sum of each column, or adds it to what is there. A block has the columns of four packs: 64
// bytes of a row, which memory gives as fast as more, so that even 4096 columns of 16 bits keep 128 blocks
// busy. With one block, a multiprocessor of an H100 needs the reads of 512 threads, 64 KiB, to keep memory
// busy while some of them add up. Groups of four threads take rows in turns, and their sums are added up by
// group: so the order is always the same, without atomics.
//
// A multiprocessor converts 16 numbers to f64 in each clock, half of those of 16 bits that memory gives it.
// So four rows are added up in f32, and only their sums in f64.
template <int kPack>
struct ColumnSums {
  static constexpr int kThreads = kPack == 8 ? 512 : kRowThreads;
  static constexpr int kRows = 8, kTogether = 4;  // under way; added up in f32
  static constexpr int kLanes = 4, kGroups = kThreads / kLanes, kColumns = kLanes * kPack;
  // A half of the groups leaves its sums for the other half, so that they fit.
  static constexpr int kHalf = kGroups / 2;
  static constexpr int kSharedBytes = kHalf * kColumns * static_cast<int>(sizeof(double));
  static constexpr const char* kName = "column_sums";

  RowMatrix<kPack> in;
  std::int64_t rows, columns;
  RowElements<1> out;
  std::int64_t out_step;
  bool adds;

  CP_DEVICE void operator()(Block& block) const {
    double* const shared = block.template shared<double>();  // [group of a half][column of the block]
    const std::int64_t first = block.index() * kColumns;
    PerThread<Own> own(block);
    block.for_each_thread([&](int thread) {
      const int lane = thread % kLanes, group = thread / kLanes;
      own[thread] = of_group(first + lane * kPack, group);
      if (group < kHalf) return;
      CP_UNROLL
      for (int i = 0; i < kPack; ++i)
        shared[(group - kHalf) * kColumns + lane * kPack + i] = own[thread].sums[i];
    });
    block.for_each_thread([&](int thread) {
      const int lane = thread % kLanes, group = thread / kLanes;
      if (group >= kHalf) return;
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) shared[group * kColumns + lane * kPack + i] += own[thread].sums[i];
    });
    block.last([&](int thread) {
      const std::int64_t column = first + thread;
      if (thread >= kColumns || column >= columns) return;
      double sum = 0;
      for (int group = 0; group < kHalf; ++group) sum += shared[group * kColumns + thread];
      const std::int64_t at = column * out_step;
      if (adds) {
        float before[1];
        out.values(out.read(at), before);
        sum += before[0];
      }
      out.write_one(at, sum);
    });
  }

  struct Own {
    double sums[kPack] = {};
  };
  // Of a pack of columns, the rows of a group.
  CP_DEVICE Own of_group(std::int64_t column, int group) const {
    Own own;
    if (column >= columns) return own;
    for (std::int64_t row = group; row < rows; row += kRows * kGroups) {
      RowBits bits[kRows] = {};  // zeros behind the last row, in any dtype
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (row + r * kGroups < rows) bits[r] = in.read(row + r * kGroups, column);
      }
      CP_UNROLL
      for (int r = 0; r < kRows; r += kTogether) {
        float sums[kPack], values[kPack];
        in.values(bits[r], sums);
        CP_UNROLL
        for (int more = 1; more < kTogether; ++more) {
          in.values(bits[r + more], values);
          CP_UNROLL
          for (int i = 0; i < kPack; ++i) sums[i] += values[i];
        }
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) own.sums[i] += sums[i];
      }
    }
    return own;
  }
};

template <int kPack>
void launch_column_sums(cudaStream_t stream, const RowMatrix<kPack>& in, std::int64_t rows,
                        std::int64_t columns, const RowMatrix<1>& out, bool adds) {
  using Body = ColumnSums<kPack>;
  launch(stream, {(columns + Body::kColumns - 1) / Body::kColumns, Body::kSharedBytes},
         Body{in, rows, columns, out.elements, out.column_step, adds});
}

// ---- sums in two stages ----

// Two blocks for each multiprocessor of an H100: enough to keep its memory busy, and few rows of partial
// sums. It is the same number everywhere, so that results are the same, too.
inline constexpr std::int64_t kGradientBlocks = 264;

// Adds up what blocks have left: dense rows of f32.
inline void launch_partial_sums(cudaStream_t stream, float* partial, std::int64_t rows, std::int64_t columns,
                                const RowMatrix<1>& out, bool adds) {
  const RowElements<4> elements{reinterpret_cast<std::byte*>(partial), DType::f32};
  if (columns % 4 == 0 && is_aligned(partial, 16)) {
    launch_column_sums(stream, RowMatrix<4>{elements, columns, 1}, rows, columns, out, adds);
  } else {
    launch_column_sums(stream, RowMatrix<1>{{elements.data, DType::f32}, columns, 1}, rows, columns, out,
                       adds);
  }
}

}  // namespace cp::runtime
