// Compiled for AVX2 and FMA; see shared/CMakeLists.txt.
#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "shared/kernels/product_tile.h"
#include "shared/kernels/product_tile_code.h"

namespace cp {
namespace {

struct Avx2Lanes {
  using Value = float;
  using Vector = __m256;
  static constexpr int kCount = 8;
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector vector) { _mm256_storeu_ps(to, vector); }
  static Vector all(float value) { return _mm256_set1_ps(value); }
  static Vector add_product(Vector sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
};

}  // namespace

extern const ProductTile<float> kProductTileAvx2;
// 12 sums, two vectors of b and one value of a in 16 registers.
constexpr ProductTile<float> kProductTileAvx2 = TileProducts<Avx2Lanes, 6, 2>::tile();

}  // namespace cp

#endif
