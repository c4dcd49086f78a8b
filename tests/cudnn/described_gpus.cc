#include "tests/cudnn/described_gpus.h"

#include "shared/base/text.h"

namespace cp::testing {
namespace {

struct Figures {
  const char* generation;
  const char* name;
  int sm_version;
  std::int64_t memory_bytes, multiprocessors, shared_bytes_per_block, blocks_per_sm, threads_per_sm,
      sm_clock_khz, memory_clock_khz, l2_bytes, memory_bus_bits;
};

constexpr Figures kFigures[] = {
    {"sm80", "NVIDIA A100-SXM4-80GB", 80, 85'000'000'000, 108, 166'912, 32, 2048, 1'410'000, 1'593'000,
     40 << 20, 5120},
    {"sm90", "NVIDIA H100 80GB HBM3", 90, 85'000'000'000, 132, 232'448, 32, 2048, 1'980'000, 2'619'000,
     50 << 20, 5120},
    {"sm100", "NVIDIA B200", 100, 190'000'000'000, 148, 232'448, 32, 2048, 1'965'000, 3'996'000, 126 << 20,
     8192},
    {"sm120", "NVIDIA GeForce RTX 5090", 120, 34'000'000'000, 170, 101'376, 24, 1536, 2'407'000, 14'001'000,
     96 << 20, 512},
    {"sm86", "NVIDIA A40", 86, 48'000'000'000, 84, 101'376, 16, 1536, 1'740'000, 7'251'000, 6 << 20, 384},
    {"sm89", "NVIDIA L40S", 89, 48'000'000'000, 142, 101'376, 24, 1536, 2'520'000, 9'001'000, 96 << 20, 384},
    {"sm103", "NVIDIA B300", 103, 288'000'000'000, 160, 232'448, 32, 2048, 1'965'000, 3'996'000, 126 << 20,
     8192},
    {"sm121", "NVIDIA GB10", 121, 128'000'000'000, 48, 101'376, 24, 1536, 2'407'000, 8'000'000, 24 << 20,
     256},
};

// cuDNN 9.28 asks for the width of the memory's bus and for oversized shared memory, too, which it explains
// nowhere: that is taken to be no more than a block may opt in to. Older versions read past both.
std::string json(const Figures& gpu) {
  return str(R"({"deviceVer":)", gpu.sm_version * 10,
             R"(,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":)", gpu.memory_bytes,
             R"(,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536)",
             R"(,"multiProcessorCount":)", gpu.multiprocessors,
             R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)",
             gpu.shared_bytes_per_block,
             R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":)",
             gpu.blocks_per_sm, R"(,"maxThreadsPerBlock":1024,"maxThreadsPerSM":)", gpu.threads_per_sm,
             R"(,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":)", gpu.sm_clock_khz,
             R"(,"memClockRateKHz":)", gpu.memory_clock_khz, R"(,"l2CacheSize":)", gpu.l2_bytes,
             R"(,"memoryBusWidth":)", gpu.memory_bus_bits, R"(,"oversizedSharedMemoryPerBlock":)",
             gpu.shared_bytes_per_block, R"(,"deviceName":")", gpu.name, R"("})");
}

}  // namespace

const std::map<std::string, runtime::DescribedGpu>& described_gpus() {
  static const auto gpus = [] {
    std::map<std::string, runtime::DescribedGpu> made;
    for (const Figures& gpu : kFigures)
      made[gpu.generation] = runtime::describe_gpu(gpu.sm_version, json(gpu));
    return made;
  }();
  return gpus;
}

}  // namespace cp::testing
