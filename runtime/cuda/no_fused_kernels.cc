// FusedKernels of a build without cuDNN: there are none. StepKernels runs fused steps by the project's own kernels there.
#include "runtime/cuda/fused_kernels.h"
#include "shared/base/error.h"

namespace cp::runtime {

struct FusedKernels::Impl {};

FusedKernels::FusedKernels() = default;
FusedKernels::~FusedKernels() = default;

void FusedKernels::prepare(const Plan&) {}

void FusedKernels::launch(const AttentionForward&, const CudaMemory&, std::int64_t, cudaStream_t) {
  throw InvalidInput(
      "fused attention_forward: this program was built without cuDNN; configure with CP_CUDNN_FRONTEND_DIR, "
      "or "
      "plan with the exact engine");
}
void FusedKernels::launch(const AttentionBackward&, const CudaMemory&, std::int64_t, cudaStream_t) {
  throw InvalidInput(
      "fused attention_backward: this program was built without cuDNN; configure with CP_CUDNN_FRONTEND_DIR, "
      "or "
      "plan with the exact engine");
}

std::map<std::string, std::string> FusedKernels::library_versions() { return {}; }

}  // namespace cp::runtime
