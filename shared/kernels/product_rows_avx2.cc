// Compiled for AVX2; see shared/CMakeLists.txt.
#if defined(__AVX2__)

#include "shared/kernels/product_rows.h"
#include "shared/kernels/product_rows_code.h"

namespace cp {

extern const MultiplyRows kMultiplyRowsAvx2;
const MultiplyRows kMultiplyRowsAvx2 = RowProducts<8, 4, 2>::run;  // 8 sums of 16 registers

}  // namespace cp

#endif
