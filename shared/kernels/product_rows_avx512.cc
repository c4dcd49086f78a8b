// Compiled for AVX-512; see shared/CMakeLists.txt.
#if defined(__AVX512F__)

#include "shared/kernels/product_rows.h"
#include "shared/kernels/product_rows_code.h"

namespace cp {

extern const MultiplyRows kMultiplyRowsAvx512;
const MultiplyRows kMultiplyRowsAvx512 = RowProducts<16, 8, 2>::run;  // 16 sums of 32 registers

}  // namespace cp

#endif
