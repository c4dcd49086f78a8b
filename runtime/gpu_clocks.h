// The clocks and the power of a GPU, as NVML tells them. NVML is a library of the driver; it is loaded at the
// first call, so that programs also start on machines without it.
#pragma once

#include <optional>
#include <string>

namespace cp::runtime {

struct GpuClocks {
  double sm_mhz = 0, max_sm_mhz = 0, power_w = 0;
  std::string driver;  // "580.95.05"
};

// `address` is the GPU's place on the PCI bus as in VisibleGpu ("0000:65:00"). Returns nothing if there is no
// NVML or if it does not know the GPU.
std::optional<GpuClocks> gpu_clocks(const std::string& address);

}  // namespace cp::runtime
