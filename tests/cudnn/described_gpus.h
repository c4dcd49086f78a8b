// GPUs as cuDNN describes them to itself (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), one of each generation
// that plans are made for, and of later versions that run those plans. Figures: NVIDIA's data sheets and
// whitepapers of A100 80 GB SXM, H100 80 GB SXM, B200, GeForce RTX 5090, A40, L40S, B300 and GB10, and for
// what they leave out the table of limits by compute capability in the CUDA C++ programming guide. Of these,
// the support and the workspace of attention were seen to depend on the version, the multiprocessors and
// shared memory alone.
#pragma once

#include <map>
#include <string>

#include "runtime/cuda/cudnn_attention.h"

namespace cp::testing {

// "sm80", "sm90", "sm100", "sm120"; "sm86", "sm89", "sm103", "sm121".
const std::map<std::string, runtime::DescribedGpu>& described_gpus();

}  // namespace cp::testing
