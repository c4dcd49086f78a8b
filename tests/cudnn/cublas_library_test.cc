// cuBLAS is loaded when it is asked for, with all functions that products call.
#include "runtime/cuda/cublas_library.h"

#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

TEST(CublasLibrary, IsLoadedWithAllThatProductsCall) {
  try {
    EXPECT_STREQ(cublas().status_name(CUBLAS_STATUS_NOT_INITIALIZED), "CUBLAS_STATUS_NOT_INITIALIZED");
    EXPECT_EQ(&cublas(), &cublas());
  } catch (const InvalidInput& error) {
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace cp::runtime
