#include "runtime/cuda/cudnn_library.h"

#include <cstddef>
#include <cstdlib>
#include <mutex>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "shared/base/error.h"

// cudnn-frontend asks for one where it does not link the library itself. Its header, half a minute of compile
// time, is not needed here.
namespace cudnn_frontend {
extern void* cudnn_dlhandle;
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace cp::runtime {
namespace {

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

CudnnVersion version_of_library() {
  auto* const get_version =
      reinterpret_cast<std::size_t (*)()>(::dlsym(cudnn_frontend::cudnn_dlhandle, "cudnnGetVersion"));
  return get_version ? static_cast<CudnnVersion>(get_version()) : 0;
}

void refuse_old_library() {
  const CudnnVersion version = version_of_library();
  constexpr CudnnAbility kNeeds[] = {CudnnAbility::attention};
  const auto lacks = cudnn_lacks(version, kNeeds);
  if (lacks.empty()) return;
  cudnn_frontend::cudnn_dlhandle = nullptr;
  throw InvalidInput(str(to_text(*lacks.front(), version), " (pip install nvidia-cudnn-cu",
                         CUDART_VERSION / 1000, " puts one under nvidia/cudnn/lib)"));
}

}  // namespace

void load_cudnn() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (cudnn_frontend::cudnn_dlhandle) return;
  const std::string errors = open_library();
  if (cudnn_frontend::cudnn_dlhandle) refuse_old_library();
  if (!cudnn_frontend::cudnn_dlhandle)
    throw InvalidInput(str("fused attention needs cuDNN ", cudnn_version_text(cudnn_facts().front().since),
                           " or later, which was not found (", errors,
                           "); add its folder to LD_LIBRARY_PATH, or plan with the exact engine"));
}

CudnnVersion loaded_cudnn_version() {
  load_cudnn();
  return version_of_library();
}

std::optional<std::string> cudnn_version() {
  try {
    return cudnn_version_text(loaded_cudnn_version());
  } catch (const InvalidInput&) {
    return {};
  }
}

}  // namespace cp::runtime
