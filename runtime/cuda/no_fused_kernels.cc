// FusedKernels of a build without cuDNN: none.
#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/fused_kernels.h"

namespace cp::runtime {

struct FusedKernels::Impl {};

FusedKernels::FusedKernels(FusedOptions) {}
FusedKernels::~FusedKernels() = default;

FusedPlan FusedKernels::prepare(std::span<const FusedStep>, const CudaMemory&) { return {}; }

std::size_t FusedKernels::graphs_made() const { return 0; }

std::string to_text(const WorkspaceShortfall& shortfall) { return shortfall.step; }

std::map<std::string, std::string> FusedKernels::library_versions() { return {}; }

std::optional<CudnnVersion> fused_library_version() { return {}; }

}  // namespace cp::runtime
