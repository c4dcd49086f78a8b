// Clocks and power of a GPU, as NVML says: the library of the driver, loaded when it is first asked.
#pragma once

#include <optional>
#include <string>

namespace cp::runtime {

struct GpuClocks {
  double sm_mhz = 0, max_sm_mhz = 0, power_w = 0;
  std::string driver;  // "580.95.05"
};

// `address` as VisibleGpu has it ("0000:65:00"). Nothing where there is no NVML, or it does not know the GPU.
std::optional<GpuClocks> gpu_clocks(const std::string& address);

}  // namespace cp::runtime
