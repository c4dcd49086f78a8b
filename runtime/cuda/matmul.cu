// MatMul: tiles of 64 x 64 sums; each sum runs in ascending k in one accumulator.
#include <type_traits>

#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/tile.h"

namespace cp::runtime {
namespace {

struct Matrix {
  std::int64_t row_step = 0, column_step = 0;
};

template <class T, class Out>
struct MultiplyTiles {
  using Value = ValueOf<T>;
  static constexpr int kThreads = kTileThreads;
  static constexpr const char* kName = "matmul";
  static constexpr int kSharedBytes = kDotsShared * static_cast<int>(sizeof(Value));

  std::int64_t rows, columns, depth, column_tiles;
  Matrix a_steps, b_steps, out_steps;
  bool accumulate;
  const T *a, *b;
  Out* out;

  CP_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() / column_tiles * kTileRows,
                       column = block.index() % column_tiles * kTileRows;
    PerThread<TileSums<Value, kTileRows>> sums(block);
    block.for_each_thread([&](int thread) { clear(sums[thread]); });
    add_dots(
        block, block.template shared<Value>(), depth,
        [&](int r, std::int64_t k) {
          return row + r < rows ? load(a[(row + r) * a_steps.row_step + k * a_steps.column_step]) : Value{0};
        },
        [&](int c, std::int64_t k) {
          return column + c < columns ? load(b[k * b_steps.row_step + (column + c) * b_steps.column_step])
                                      : Value{0};
        },
        sums);
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        CP_UNROLL
        for (int j = 0; j < kTileRows / kLanes; ++j) {
          const std::int64_t r = row + tile_row(thread, i), c = column + tile_column(thread, j);
          if (r >= rows || c >= columns) continue;
          Out& element = out[r * out_steps.row_step + c * out_steps.column_step];
          const Value sum = sums[thread].values[i][j];
          element = convert<Out>(accumulate ? plus(static_cast<Value>(load(element)), sum) : sum);
        }
      }
    });
  }
};

template <class T, class Out>
PreparedKernel prepare_multiply(const MatMul& kernel, const CudaMemory& memory) {
  using Body = MultiplyTiles<T, Out>;
  const auto steps = [](const View& view) { return Matrix{view.strides[0], view.strides[1]}; };
  const std::int64_t rows = kernel.out.shape[0], columns = kernel.out.shape[1];
  const std::int64_t row_tiles = ceil_div(rows, std::int64_t{kTileRows}),
                     column_tiles = ceil_div(columns, std::int64_t{kTileRows});
  Body body{rows,
            columns,
            kernel.a.shape[1],
            column_tiles,
            steps(kernel.a),
            steps(kernel.b),
            steps(kernel.out),
            kernel.accumulate,
            nullptr,
            nullptr,
            nullptr};
  return [&kernel, &memory, body, blocks = row_tiles * column_tiles](std::int64_t iteration,
                                                                     cudaStream_t stream) mutable {
    body.a = reinterpret_cast<const T*>(memory.at(kernel.a, iteration));
    body.b = reinterpret_cast<const T*>(memory.at(kernel.b, iteration));
    body.out = reinterpret_cast<Out*>(memory.at(kernel.out, iteration));
    launch(stream, {blocks, Body::kSharedBytes}, body);
  };
}

}  // namespace

PreparedKernel prepare(const MatMul& kernel, const CudaMemory& memory) {
  return with_element_type(memory.dtype(kernel.a), [&]<class T>(std::type_identity<T>) {
    if constexpr (SixteenBit<T>) {
      if (memory.dtype(kernel.out) == DType::f32) return prepare_multiply<T, float>(kernel, memory);
    }
    return prepare_multiply<T, T>(kernel, memory);
  });
}

}  // namespace cp::runtime
