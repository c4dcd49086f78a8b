#include "runtime/gpu_clocks.h"

#include <dlfcn.h>

namespace cp::runtime {
namespace {

// Of nvml.h, which is not needed to build.
using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr unsigned kClockSm = 1;

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load(init, "nvmlInit_v2"), load(by_address, "nvmlDeviceGetHandleByPciBusId_v2");
    load(clock, "nvmlDeviceGetClockInfo"), load(max_clock, "nvmlDeviceGetMaxClockInfo");
    load(power, "nvmlDeviceGetPowerUsage"), load(driver, "nvmlSystemGetDriverVersion");
    works_ = init != nullptr && by_address != nullptr && clock != nullptr && max_clock != nullptr &&
             init() == kSuccess;
  }
  bool works() const { return works_; }

  int (*init)() = nullptr;
  int (*by_address)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

 private:
  template <class F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library_, name));
  }

  void* library_;  // for as long as the process lives
  bool works_ = false;
};

}  // namespace

std::optional<GpuClocks> gpu_clocks(const std::string& address) {
  static const Nvml nvml;
  NvmlDevice device = nullptr;
  if (!nvml.works() || nvml.by_address((address + ".0").c_str(), &device) != kSuccess) return std::nullopt;
  GpuClocks clocks;
  unsigned value = 0;
  if (nvml.clock(device, kClockSm, &value) != kSuccess) return std::nullopt;
  clocks.sm_mhz = value;
  if (nvml.max_clock(device, kClockSm, &value) == kSuccess) clocks.max_sm_mhz = value;
  if (nvml.power != nullptr && nvml.power(device, &value) == kSuccess) clocks.power_w = value / 1e3;
  char driver[96] = {};
  if (nvml.driver != nullptr && nvml.driver(driver, sizeof driver) == kSuccess) clocks.driver = driver;
  return clocks;
}

}  // namespace cp::runtime
