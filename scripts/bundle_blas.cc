// What a bundle has instead of OpenBLAS, which is 35 MiB of kernels for all processors there ever were: the functions that the
// project calls, with OpenBLAS's signatures, at about half its speed. The compiler makes a version for each generation of processors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#define CP_VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))

namespace {

using Index = std::int64_t;

constexpr Index kColumns = 64, kInner = 256;  // of b at a time: 128 KiB, which a core's cache holds
constexpr Index kRows = 4, kWidth = 16;       // of out at a time: what registers hold

using Eight = double __attribute__((vector_size(64), aligned(8), may_alias));

// out[i, j] += a[i, l] * b[l, j] for `rows` rows of a and a block of b, all dense.
CP_VERSIONS void add_block(const double* a, Index rows, Index inner, const double* b, double* out,
                           Index out_columns, Index columns) {
  for (Index i = 0; i < rows; i += kRows) {
    const Index some = std::min(kRows, rows - i);
    const double* row[kRows];  // the last one again where there are fewer
    for (Index r = 0; r < kRows; ++r) row[r] = a + (i + std::min(r, some - 1)) * kInner;
    for (Index j = 0; j < columns; j += kWidth) {
      Eight s00{}, s01{}, s10{}, s11{}, s20{}, s21{}, s30{}, s31{};
      for (Index l = 0; l < inner; ++l) {
        const auto* const values = reinterpret_cast<const Eight*>(b + l * kColumns + j);
        const Eight b0 = values[0], b1 = values[1];
        s00 += row[0][l] * b0, s01 += row[0][l] * b1;
        s10 += row[1][l] * b0, s11 += row[1][l] * b1;
        s20 += row[2][l] * b0, s21 += row[2][l] * b1;
        s30 += row[3][l] * b0, s31 += row[3][l] * b1;
      }
      const Eight sums[kRows][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};
      for (Index r = 0; r < some; ++r) {
        for (Index x = 0; x < std::min(kWidth, columns - j); ++x)
          out[(i + r) * out_columns + j + x] += sums[r][x / 8][x % 8];
      }
    }
  }
}

}  // namespace

extern "C" {

void openblas_set_num_threads(int) {}

double cblas_dasum(int n, const double* x, int step) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += std::abs(x[i * step]);
  return sum;
}

// Row-major alone. Both operands are packed, transposed where asked.
void cblas_dgemm(int order, int a_transposed, int b_transposed, int m, int n, int k, double alpha,
                 const double* a, int a_step, const double* b, int b_step, double beta, double* out,
                 int out_step) {
  constexpr int kRowMajor = 101, kTransposed = 112;
  if (order != kRowMajor) __builtin_trap();
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double& element = out[i * out_step + j];
      element = beta == 0 ? 0 : beta * element;
    }
  }
  std::vector<double> packed_b(static_cast<std::size_t>(kInner * kColumns)),
      packed_a(static_cast<std::size_t>(Index{m} * kInner));
  for (Index l = 0; l < k; l += kInner) {
    const Index inner = std::min(kInner, k - l);
    for (Index i = 0; i < m; ++i) {
      for (Index x = 0; x < inner; ++x) {
        const Index at = a_transposed == kTransposed ? (l + x) * a_step + i : i * a_step + l + x;
        packed_a[static_cast<std::size_t>(i * kInner + x)] = alpha * a[at];
      }
    }
    for (Index j = 0; j < n; j += kColumns) {
      const Index columns = std::min(kColumns, n - j);
      std::fill(packed_b.begin(), packed_b.end(), 0.0);
      for (Index x = 0; x < inner; ++x) {
        for (Index y = 0; y < columns; ++y) {
          const Index at = b_transposed == kTransposed ? (j + y) * b_step + l + x : (l + x) * b_step + j + y;
          packed_b[static_cast<std::size_t>(x * kColumns + y)] = b[at];
        }
      }
      add_block(packed_a.data(), m, inner, packed_b.data(), out + j, out_step, columns);
    }
  }
}

}  // extern "C"
