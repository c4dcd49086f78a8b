#include "shared/kernels/product_rows.h"

#include <vector>

#include "shared/base/index.h"
#include "shared/kernels/product_rows_code.h"

namespace cp {

#if defined(__x86_64__)
extern const MultiplyRows kMultiplyRowsAvx2, kMultiplyRowsAvx512;
#endif

namespace {

const std::vector<MultiplyRows>& available() {
  static const std::vector<MultiplyRows> all = [] {
    std::vector<MultiplyRows> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) found.push_back(kMultiplyRowsAvx512);
    if (__builtin_cpu_supports("avx2")) found.push_back(kMultiplyRowsAvx2);
#endif
    found.push_back(RowProducts<4, 4, 2>::run);  // vectors of 16 bytes, which every x86-64 and Arm has
    return found;
  }();
  return all;
}

}  // namespace

MultiplyRows multiply_rows() { return available().front(); }
int multiply_rows_count() { return static_cast<int>(available().size()); }
MultiplyRows multiply_rows(int which) { return available()[idx(which)]; }

}  // namespace cp
