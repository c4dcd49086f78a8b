#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/packed_lse.h"
#include "runtime/cuda/transpose_tile.h"
#include "shared/base/types.h"

namespace cp::runtime {
namespace {

struct TransposeF32 {
  using Tile = TransposeTile<float>;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr const char* kName = "transpose_f32";

  const float* in;
  float* out;
  std::int64_t rows, columns, column_tiles;

  CP_DEVICE void operator()(Block& block) const {
    constexpr std::int64_t kTile = Tile::kTile;
    Tile::run(block, block.index() / column_tiles * kTile, block.index() % column_tiles * kTile, rows,
              columns, in, columns, out, rows);
  }
};

}  // namespace

void transpose_f32(cudaStream_t stream, const float* in, float* out, std::int64_t rows,
                   std::int64_t columns) {
  constexpr std::int64_t kTile = TransposeF32::Tile::kTile;
  const std::int64_t column_tiles = ceil_div(columns, kTile);
  launch(stream, {ceil_div(rows, kTile) * column_tiles, TransposeF32::Tile::kSharedBytes},
         TransposeF32{in, out, rows, columns, column_tiles});
}

}  // namespace cp::runtime
