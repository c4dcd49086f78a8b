#include "runtime/cuda/cublas_library.h"

#include <string>

#include <dlfcn.h>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

std::string file_name() { return str("libcublas.so.", CUBLAS_VER_MAJOR); }

void* open_library() {
  std::string errors;
  for (const std::string& name : {file_name(), std::string(CP_CUBLAS_LIBRARY)}) {
    if (void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* error = ::dlerror();
    errors += str(errors.empty() ? "" : "; ", error ? error : name);
  }
  throw InvalidInput(str("matrix products on GPUs need ", file_name(), ", which was not found (", errors,
                         "); add its folder to LD_LIBRARY_PATH (pip install nvidia-cublas puts it under "
                         "nvidia/cu13/lib or nvidia/cublas/lib), or use --backend gloo"));
}

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function != nullptr) return;
  throw InvalidInput(str("matrix products on GPUs need ", file_name(), " of CUDA ", CUBLAS_VER_MAJOR, ".",
                         CUBLAS_VER_MINOR, " or newer, but the one that was found has no ", name,
                         "; put the folder of a newer one first in LD_LIBRARY_PATH"));
}

CublasFunctions load() {
  void* const library = open_library();
  CublasFunctions functions;
  find(library, "cublasCreate_v2", functions.create);
  find(library, "cublasDestroy_v2", functions.destroy);
  find(library, "cublasSetMathMode", functions.set_math_mode);
  find(library, "cublasSetStream_v2", functions.set_stream);
  find(library, "cublasSetWorkspace_v2", functions.set_workspace);
  find(library, "cublasGemmEx_64", functions.gemm_ex_64);
  find(library, "cublasGetStatusName", functions.status_name);
  find(library, "cublasGetStatusString", functions.status_text);
  return functions;
}

}  // namespace

const CublasFunctions& cublas() {
  static const CublasFunctions functions = load();
  return functions;
}

}  // namespace cp::runtime
