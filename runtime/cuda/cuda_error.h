// Checks calls of CUDA's runtime.
#pragma once

#include <cuda_runtime_api.h>

namespace cp::runtime {

// Throws if the call failed. The message has the call, the error's name and its text. The class is PeerLost
// if the process has lost the GPU itself (a sticky error: a kernel's bad address, an uncorrectable memory
// error, a reset), and else InvalidInput.
void check_cuda(cudaError_t error, const char* call);

#define CP_CUDA(call) ::cp::runtime::check_cuda((call), #call)

}  // namespace cp::runtime
