// The GPUs that this process sees.
#pragma once

#include <string>
#include <vector>

namespace cp::runtime {

struct VisibleGpu {
  std::string name;     // "NVIDIA H100 80GB HBM3"
  std::string address;  // on the PCI bus of its host, "0000:65:00"; parts of one GPU have one address
};

struct VisibleGpus {
  std::vector<VisibleGpu> gpus;  // by number of CUDA
  std::string why_none;          // where there are none
};

// Starts the driver and makes no context.
VisibleGpus visible_gpus();

}  // namespace cp::runtime
