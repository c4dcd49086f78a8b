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

// The oldest version that is taken: 9.15.1. With older ones the frontend works around a defect: inside
// backward calls of lengths that are no multiple of 128 it copies lengths from the host, and the host waits
// for that (node/scaled_dot_product_flash_attention.h).
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

std::size_t loaded_version() {
  auto* const get_version =
      reinterpret_cast<std::size_t (*)()>(::dlsym(cudnn_frontend::cudnn_dlhandle, "cudnnGetVersion"));
  return get_version ? get_version() : 0;
}

std::string text_of(std::size_t version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

void refuse_old_library() {
  const std::size_t version = loaded_version();
  if (version >= kOldest) return;
  cudnn_frontend::cudnn_dlhandle = nullptr;
  throw InvalidInput(str("fused attention needs cuDNN ", text_of(kOldest), " or newer, but ",
                         text_of(version),
                         " was found; put the folder of a newer one first in LD_LIBRARY_PATH (pip install "
                         "nvidia-cudnn-cu13 puts it under nvidia/cudnn/lib), or plan with the exact engine"));
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
  return text_of(loaded_version());
}

}  // namespace cp::runtime
