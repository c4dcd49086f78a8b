// Compiled for AVX-512; see shared/CMakeLists.txt.
#if defined(__AVX512F__)

#include <immintrin.h>

#include "shared/kernels/product_tile.h"
#include "shared/kernels/product_tile_code.h"

namespace cp {
namespace {

struct Avx512Lanes {
  using Value = float;
  using Vector = __m512;
  static constexpr int kCount = 16;
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector vector) { _mm512_storeu_ps(to, vector); }
  static Vector all(float value) { return _mm512_set1_ps(value); }
  static Vector add_product(Vector sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
};

}  // namespace

extern const ProductTile<float> kProductTileAvx512;
// 16 sums of 32 registers: with two units of a latency of four cycles, 8 keep both busy. Measured on a
// Sapphire Rapids: 8 rows reach 97 % of what 14, which the registers would hold, do, and divide what models
// have.
constexpr ProductTile<float> kProductTileAvx512 = TileProducts<Avx512Lanes, 8, 2>::tile();

}  // namespace cp

#endif
