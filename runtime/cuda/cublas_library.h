// cuBLAS's library, loaded by the first product on a GPU: loading it alone takes 90 MiB of a process's own
// memory, and ranks over Gloo, launchers and plans without products go without.
#pragma once

#include <cublas_v2.h>

namespace cp::runtime {

// The functions that are called here.
struct CublasFunctions {
  decltype(&::cublasCreate_v2) create = nullptr;
  decltype(&::cublasDestroy_v2) destroy = nullptr;
  decltype(&::cublasSetMathMode) set_math_mode = nullptr;
  decltype(&::cublasSetStream_v2) set_stream = nullptr;
  decltype(&::cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&::cublasGemmEx_64) gemm_ex_64 = nullptr;
  decltype(&::cublasGetStatusName) status_name = nullptr;
  decltype(&::cublasGetStatusString) status_text = nullptr;
};

// Looks for the library of this build's CUDA where the loader looks (LD_LIBRARY_PATH, the program's run path,
// the system's folders), then where it was when this was built. Throws InvalidInput where it is in none of
// them. For any thread; calls after the first return at once.
const CublasFunctions& cublas();

}  // namespace cp::runtime
