// Lists the GPUs that this process sees.
#pragma once

#include <string>
#include <vector>

namespace cp::runtime {

struct VisibleGpu {
  std::string name;     // "NVIDIA H100 80GB HBM3"
  std::string address;  // on the PCI bus of its host, "0000:65:00"; parts of one GPU have one address
};

struct VisibleGpus {
  std::vector<VisibleGpu> gpus;  // by CUDA's numbers
  std::string why_none;          // the reason, if there are none
};

// Starts the driver, but makes no context on any GPU.
VisibleGpus visible_gpus();

}  // namespace cp::runtime
