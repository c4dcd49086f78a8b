#include "sim/proof/run/host_blas.h"

#include <string>

#include <dlfcn.h>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

void* open_library() {
  std::string errors;
  for (const char* name : {"libopenblas.so.0", CP_OPENBLAS_LIBRARY}) {
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* error = ::dlerror();
    errors += str(errors.empty() ? "" : "; ", error ? error : name);
  }
  throw InvalidInput(str("the results of one device are computed with OpenBLAS, which was not found (",
                         errors,
                         "); install it (Debian: libopenblas0), or add its folder to LD_LIBRARY_PATH"));
}

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function != nullptr) return;
  throw InvalidInput(
      str("the results of one device are computed with OpenBLAS, and the library that was found has no ",
          name, "; put another one in front in LD_LIBRARY_PATH"));
}

HostBlas load() {
  void* const library = open_library();
  HostBlas blas;
  find(library, "cblas_dgemm", blas.dgemm);
  find(library, "cblas_dasum", blas.dasum);
  find(library, "openblas_set_num_threads", blas.set_num_threads);
  return blas;
}

}  // namespace

const HostBlas& host_blas() {
  static const HostBlas blas = load();
  return blas;
}

}  // namespace cp::sim
