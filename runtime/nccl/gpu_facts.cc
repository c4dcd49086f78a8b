#include "runtime/nccl/gpu_facts.h"

#include <array>

#include <nccl.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/fused_kernels.h"
#include "runtime/cuda/visible_gpus.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_windows.h"
#include "runtime/nccl_versions.h"
#include "shared/base/error.h"
#include "shared/plan/cudnn_target.h"

namespace cp::runtime {
namespace {

std::string cuda_version(int version) { return str(version / 1000, ".", version % 1000 / 10); }

}  // namespace

std::map<std::string, std::string> gpu_library_versions() {
  std::map<std::string, std::string> versions = FusedKernels::library_versions();
  int nccl = 0, runtime = 0, driver = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) versions["nccl"] = nccl_version_text(nccl);
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) versions["cuda"] = cuda_version(runtime);
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    versions["cuda driver"] = cuda_version(driver);
  return versions;
}

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void require_gpu(int cuda_device) {
  const VisibleGpus visible = visible_gpus();
  if (cuda_device >= 0 && cuda_device < std::ssize(visible.gpus)) return;
  throw InvalidInput(visible.gpus.empty() ? str("there is no GPU: ", visible.why_none)
                                          : str("there is no GPU ", cuda_device, "; this process sees ",
                                                visible.gpus.size(), ", numbered from 0"));
}

const Target& gpu_generation_of(int cuda_device) {
  require_gpu(cuda_device);
  int major = 0, minor = 0;
  CP_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda_device));
  CP_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda_device));
  return gpu_target(str("sm", major, minor));
}

const Target& gpu_target_of(int cuda_device) {
  const Target& generation = gpu_generation_of(cuda_device);
  const std::optional<CudnnVersion> version = fused_library_version();
  return with_copy_engines_of(version ? gpu_target(generation.name, std::array{*version}) : generation,
                              nccl_versions());
}

}  // namespace cp::runtime
