#include "runtime/cuda/cudnn_lse.h"
#include "runtime/cuda/launch.h"
#include "shared/base/types.h"

namespace cp::runtime {
namespace {

constexpr int kTile = 32;

struct TransposeF32 {
  static constexpr int kThreads = 256;
  static constexpr const char* kName = "transpose_f32";
  static constexpr int kSharedBytes = kTile * (kTile + 1) * static_cast<int>(sizeof(float));

  const float* in;
  float* out;
  std::int64_t rows, columns, column_tiles;

  CP_DEVICE void operator()(Block& block) const {
    constexpr int kRowsAtOnce = kThreads / kTile;
    float* tile = block.shared<float>();
    const std::int64_t row = block.index() / column_tiles * kTile,
                       column = block.index() % column_tiles * kTile;
    block.for_each_thread([&](int thread) {
      const int c = thread % kTile;
      CP_UNROLL
      for (int r = thread / kTile; r < kTile; r += kRowsAtOnce)
        if (row + r < rows && column + c < columns)
          tile[r * (kTile + 1) + c] = in[(row + r) * columns + column + c];
    });
    block.last([&](int thread) {
      const int r = thread % kTile;
      CP_UNROLL
      for (int c = thread / kTile; c < kTile; c += kRowsAtOnce)
        if (row + r < rows && column + c < columns)
          out[(column + c) * rows + row + r] = tile[r * (kTile + 1) + c];
    });
  }
};

}  // namespace

void transpose_f32(cudaStream_t stream, const float* in, float* out, std::int64_t rows,
                   std::int64_t columns) {
  const std::int64_t column_tiles = ceil_div(columns, std::int64_t{kTile});
  launch(stream, {ceil_div(rows, std::int64_t{kTile}) * column_tiles, TransposeF32::kSharedBytes},
         TransposeF32{in, out, rows, columns, column_tiles});
}

}  // namespace cp::runtime
