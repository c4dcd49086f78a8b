// Compiled for AVX2; see shared/CMakeLists.txt.
#if defined(__AVX2__)

#include "shared/kernels/tile_kernels_code.h"

namespace cp {

extern const TileKernels kTileKernelsAvx2;
constexpr TileKernels kTileKernelsAvx2 = table("avx2");

}  // namespace cp

#endif
