// Compiled for every machine of the architecture.
#include "shared/kernels/tile_kernels_code.h"

namespace cp {

extern const TileKernels kTileKernelsBaseline;
constexpr TileKernels kTileKernelsBaseline = table("baseline");

}  // namespace cp
