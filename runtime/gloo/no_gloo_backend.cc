// The build takes this file instead of gloo_backend.cc if it has not found Gloo.
#include "runtime/gloo/gloo_backend.h"

namespace cp::runtime {

Backend gloo_backend() {
  Backend backend;
  backend.name = "gloo";
  backend.why_not =
      "this build has no Gloo; use --backend nccl, or install libgloo-dev and build again "
      "(cmake --preset release)";
  backend.has_checksums = true;
  return backend;
}

}  // namespace cp::runtime
