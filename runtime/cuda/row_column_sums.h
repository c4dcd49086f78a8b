// Sums of a matrix's columns: the gradients of weights and biases, which have one number for all rows.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/row_access.h"

namespace cp::runtime {

// Writes the sum of each column, or adds it to what is there. A block has the columns of four packs: 64
// bytes of a row, which memory gives as fast as more, so that even 4096 columns of 16 bits keep 128 blocks
// busy. Its 64 groups of four threads take rows in turns, and their sums are added up by group: so the order
// is always the same, without atomics.
template <int kPack>
struct ColumnSums {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kLanes = 4, kGroups = kThreads / kLanes, kColumns = kLanes * kPack;
  static constexpr int kSharedBytes = kGroups * kColumns * static_cast<int>(sizeof(double));
  static constexpr const char* kName = "column_sums";

  RowMatrix<kPack> in;
  std::int64_t rows, columns;
  RowElements<1> out;
  std::int64_t out_step;
  bool adds;

  CP_DEVICE void operator()(Block& block) const {
    double* const shared = block.template shared<double>();  // [group][column of the block]
    const std::int64_t first = block.index() * kColumns;
    block.for_each_thread([&](int thread) {
      const int lane = thread % kLanes, group = thread / kLanes;
      double sums[kPack] = {};
      if (first + lane * kPack < columns) {
        for_packs<8>(
            group, kGroups, rows, [&](std::int64_t row) { return in.read(row, first + lane * kPack); },
            [&](std::int64_t, const RowBits& bits) {
              float values[kPack];
              in.values(bits, values);
              CP_UNROLL
              for (int i = 0; i < kPack; ++i) sums[i] += values[i];
            });
      }
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) shared[group * kColumns + lane * kPack + i] = sums[i];
    });
    block.last([&](int thread) {
      const std::int64_t column = first + thread;
      if (thread >= kColumns || column >= columns) return;
      double sum = 0;
      for (int group = 0; group < kGroups; ++group) sum += shared[group * kColumns + thread];
      const std::int64_t at = column * out_step;
      if (adds) {
        float before[1];
        out.values(out.read(at), before);
        sum += before[0];
      }
      out.write_one(at, sum);
    });
  }
};

template <int kPack>
void launch_column_sums(cudaStream_t stream, const RowMatrix<kPack>& in, std::int64_t rows,
                        std::int64_t columns, const RowMatrix<1>& out, bool adds) {
  using Body = ColumnSums<kPack>;
  launch(stream, {(columns + Body::kColumns - 1) / Body::kColumns, Body::kSharedBytes},
         Body{in, rows, columns, out.elements, out.column_step, adds});
}

}  // namespace cp::runtime
