// OpenBLAS, loaded when something is first multiplied: with it comes a thread for each core, and what only
// plans, launches or looks at traces goes without.
#pragma once

#include <cblas.h>

namespace cp::sim {

// The functions that are called here, with OpenBLAS's signatures. A bundle brings its own
// (scripts/bundle_blas.cc).
struct HostBlas {
  decltype(&::cblas_dgemm) dgemm = nullptr;
  decltype(&::cblas_dasum) dasum = nullptr;
  decltype(&::openblas_set_num_threads) set_num_threads = nullptr;
};

// Looks for libopenblas.so.0 where the loader looks (LD_LIBRARY_PATH, the program's run path, the system's
// folders), then where it was when this was built. Throws InvalidInput where it is in none of them. For any
// thread; calls after the first return at once.
const HostBlas& host_blas();

}  // namespace cp::sim
