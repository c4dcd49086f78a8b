// Compiled for AVX-512; see shared/CMakeLists.txt.
#if defined(__AVX512F__)

#include "shared/kernels/tile_kernels_code.h"

namespace cp {

extern const TileKernels kTileKernelsAvx512;
constexpr TileKernels kTileKernelsAvx512 = table("avx512");

}  // namespace cp

#endif
