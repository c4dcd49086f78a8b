// Compiled for AVX-512 with products of bf16; see shared/CMakeLists.txt.
#if defined(__AVX512BF16__)

#include "shared/kernels/tile_kernels_code.h"

namespace cp {

extern const TileKernels kTileKernelsAvx512Bf16;
constexpr TileKernels kTileKernelsAvx512Bf16 = table("avx512bf16");

}  // namespace cp

#endif
