// libnvidia-ml.so.1 of a machine whose GPUs run at 1234 MHz, for cprun profile over the emulated GPU. The
// rank that FAKE_NVML_WITHOUT names has no clocks to read, as on a machine without the library.
#include <cstdlib>
#include <cstring>

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  const char *without = std::getenv("FAKE_NVML_WITHOUT"), *rank = std::getenv("RANK");
  if (without != nullptr && rank != nullptr && std::strcmp(without, rank) == 0)
    return 6;  // NVML_ERROR_NOT_FOUND
  *device = nullptr;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned, unsigned* mhz) {
  *mhz = 1234;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
}
#pragma GCC visibility pop
