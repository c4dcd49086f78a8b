// What NcclDevice asks of its GPU.
#pragma once

namespace cp::runtime {

// Throws InvalidInput where this process sees no such GPU: how many there are, or why there is none.
void require_gpu(int cuda_device);

}  // namespace cp::runtime
