#include "shared/kernels/tile_kernels.h"

#include <vector>

namespace cp {

extern const TileKernels kTileKernelsBaseline;
#if defined(__x86_64__)
extern const TileKernels kTileKernelsAvx2, kTileKernelsAvx512, kTileKernelsAvx512Bf16;
#endif

std::span<const TileKernels* const> tile_kernels() {
  static const std::vector<const TileKernels*> available = [] {
    std::vector<const TileKernels*> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) found.push_back(&kTileKernelsAvx512Bf16);
    if (__builtin_cpu_supports("avx512f")) found.push_back(&kTileKernelsAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&kTileKernelsAvx2);
#endif
    found.push_back(&kTileKernelsBaseline);
    return found;
  }();
  return available;
}

}  // namespace cp
