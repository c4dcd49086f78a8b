// FusedKernels of a build without cuDNN: none.
#include "runtime/cuda/fused_kernels.h"

namespace cp::runtime {

struct FusedKernels::Impl {};

FusedKernels::FusedKernels() = default;
FusedKernels::~FusedKernels() = default;

PreparedKernel FusedKernels::prepare(const AttentionForward&, const CudaMemory&) { return {}; }
PreparedKernel FusedKernels::prepare(const AttentionBackward&, const CudaMemory&) { return {}; }

std::map<std::string, std::string> FusedKernels::library_versions() { return {}; }

}  // namespace cp::runtime
