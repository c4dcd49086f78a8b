// Calls of CUDA's runtime, checked.
#pragma once

#include <cuda_runtime_api.h>

namespace cp::runtime {

// Throws when the call failed, with the call, the error's name and its text: PeerLost where the GPU itself is
// lost to this process (a sticky error: a kernel's bad address, an uncorrectable memory error, a reset),
// InvalidInput otherwise.
void check_cuda(cudaError_t error, const char* call);

#define CP_CUDA(call) ::cp::runtime::check_cuda((call), #call)

}  // namespace cp::runtime
