#include "shared/kernels/product_tile.h"

#include <cmath>
#include <vector>

#include "shared/base/index.h"
#include "shared/kernels/product_tile_code.h"

namespace cp {

#if defined(__x86_64__)
extern const ProductTile<float> kProductTileAvx2, kProductTileAvx512;
#endif

namespace {

// What every host has: one instruction where it is compiled for a processor with it, as for each 64-bit Arm,
// else a call of the C library.
struct FusedLane {
  using Value = float;
  using Vector = float;
  static constexpr int kCount = 1;
  static float load(const float* from) { return *from; }
  static void store(float* to, float value) { *to = value; }
  static float all(float value) { return value; }
  static float add_product(float sum, float a, float b) { return std::fma(a, b, sum); }
};

const std::vector<ProductTile<float>>& available() {
  static const std::vector<ProductTile<float>> kAll = [] {
    std::vector<ProductTile<float>> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) found.push_back(kProductTileAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(kProductTileAvx2);
#endif
    found.push_back(TileProducts<FusedLane, 4, 8>::tile());
    return found;
  }();
  return kAll;
}

}  // namespace

const ProductTile<float>& product_tile() { return available().front(); }
int product_tile_count() { return static_cast<int>(available().size()); }
const ProductTile<float>& product_tile(int which) { return available()[idx(which)]; }

}  // namespace cp
