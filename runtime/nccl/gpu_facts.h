// The check that NcclDevice makes before it uses a GPU.
#pragma once

namespace cp::runtime {

// Throws InvalidInput if this process sees no GPU with this number. The message says how many there are, or
// why there is none.
void require_gpu(int cuda_device);

}  // namespace cp::runtime
