// Loads cuBLAS when the first product runs on a GPU. Loading it takes 90 MiB of a process's own memory, which
// ranks over Gloo, launchers and plans without products save.
#pragma once

#include <cublas_v2.h>

namespace cp::runtime {

// The functions of cuBLAS that the project calls.
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
// the system's folders), and then where it was when this was built. Throws InvalidInput if it is in none of
// these places. Any thread may call this. Calls after the first return at once.
const CublasFunctions& cublas();

}  // namespace cp::runtime
