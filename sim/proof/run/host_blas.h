// Loads OpenBLAS when something is first multiplied. OpenBLAS starts a thread for each core, and a process
// that only plans, launches or looks at traces goes without them.
#pragma once

#include <cblas.h>

namespace cp::sim {

// The functions of OpenBLAS that are called here, with its signatures. A bundle brings its own library
// (scripts/bundle_blas.cc).
struct HostBlas {
  decltype(&::cblas_dgemm) dgemm = nullptr;
  decltype(&::cblas_dasum) dasum = nullptr;
  decltype(&::openblas_set_num_threads) set_num_threads = nullptr;
};

// Loads the library on the first call, and returns at once after it; any thread may call. It looks for
// libopenblas.so.0 where the loader looks (LD_LIBRARY_PATH, the program's run path, the system's folders),
// and then where it was when this was built. Throws InvalidInput if it is in none of them, or lacks a
// function.
const HostBlas& host_blas();

}  // namespace cp::sim
