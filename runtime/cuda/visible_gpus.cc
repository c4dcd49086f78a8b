#include "runtime/cuda/visible_gpus.h"

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime_api.h>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

std::string why_none(cudaError_t error) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "no NVIDIA driver is installed here (libcuda.so.1 is not found)";
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string hidden = visible == nullptr ? "" : str("; CUDA_VISIBLE_DEVICES=", visible);
  if (error == cudaErrorInsufficientDriver) {
    return str("the NVIDIA driver supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
               ", but this program was built for CUDA ", CUDART_VERSION / 1000, ".",
               CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) return str("the driver shows no GPU", hidden);
  return str("CUDA does not start: ", cudaGetErrorString(error), hidden);
}

}  // namespace

VisibleGpus visible_gpus() {
  VisibleGpus visible;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    visible.why_none = why_none(error);
    return visible;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (const cudaError_t failed = cudaGetDeviceProperties(&properties, device); failed != cudaSuccess) {
      visible.gpus.clear();
      visible.why_none = str("GPU ", device, " does not answer: ", cudaGetErrorString(failed));
      return visible;
    }
    char address[32] = {};
    std::snprintf(address, sizeof address, "%04x:%02x:%02x", static_cast<unsigned>(properties.pciDomainID),
                  static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
    visible.gpus.push_back({properties.name, address});
  }
  return visible;
}

}  // namespace cp::runtime
