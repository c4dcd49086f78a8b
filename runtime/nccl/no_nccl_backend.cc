// The build takes this file instead of nccl_backend.cc if it has not found the CUDA toolkit or NCCL.
#include "runtime/nccl/nccl_backend.h"

namespace cp::runtime {

Backend nccl_backend() {
  Backend backend;
  backend.name = "nccl";
  backend.why_not =
      "this build has no CUDA and NCCL; use --backend gloo, or build where the CUDA toolkit and NCCL are "
      "installed (cmake --preset cuda says what is missing)";
  backend.on_gpus = true;
  return backend;
}

}  // namespace cp::runtime
