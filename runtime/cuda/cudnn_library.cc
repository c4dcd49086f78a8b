#include "runtime/cuda/cudnn_library.h"

#include <cstdlib>
#include <mutex>

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include "shared/base/error.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // cudnn-frontend asks for one where it does not link the library itself
}

namespace cp::runtime {
namespace {

// The frontend works around a defect of 9.15.0 and older by copying lengths from the host inside backward calls of lengths that are no
// multiple of 128 (node/scaled_dot_product_flash_attention.h), for which the host waits.
constexpr std::size_t kOldest = 91501;

std::string open_library() {
  // cudnn-frontend would take any libcudart that it finds, an older one first; this process has one already.
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", str("libcudart.so.", CUDART_VERSION / 1000).c_str(), 0);
  std::string errors;
  for (const char* name : {"libcudnn.so.9", CP_CUDNN_LIBRARY}) {
    if (*name == '\0') continue;
    cudnn_frontend::cudnn_dlhandle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (cudnn_frontend::cudnn_dlhandle) return {};
    const char* error = ::dlerror();
    errors += str(errors.empty() ? "" : "; ", error ? error : name);
  }
  return errors;
}

std::string text_of(std::size_t version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

void refuse_old_library() {
  const std::size_t version = cudnn_frontend::detail::get_backend_version();
  if (version >= kOldest) return;
  cudnn_frontend::cudnn_dlhandle = nullptr;
  throw InvalidInput(
      str("fused attention needs cuDNN ", text_of(kOldest), " or newer, and ", text_of(version),
          " was found; put a newer one in front in LD_LIBRARY_PATH (pip install nvidia-cudnn-cu13 has "
          "it under nvidia/cudnn/lib), or plan with the exact engine"));
}

}  // namespace

void load_cudnn() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (cudnn_frontend::cudnn_dlhandle) return;
  const std::string errors = open_library();
  if (cudnn_frontend::cudnn_dlhandle) refuse_old_library();
  if (!cudnn_frontend::cudnn_dlhandle)
    throw InvalidInput(str("fused attention needs cuDNN ", text_of(kOldest),
                           " or newer, which was not found (", errors,
                           "); add its folder to LD_LIBRARY_PATH, or plan with the exact engine"));
}

std::optional<std::string> cudnn_version() {
  try {
    load_cudnn();
  } catch (const InvalidInput&) {
    return {};
  }
  return text_of(cudnn_frontend::detail::get_backend_version());
}

}  // namespace cp::runtime
