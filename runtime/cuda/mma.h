// Products of small matrices on tensor cores, a warp at a time: mma.sync of PTX, which GPUs from sm80 on
// have. On the host they are computed from the same fragments, so that tests without a GPU find a value in a
// wrong place.
//
// Each product adds A B to sums of 16 rows and 8 columns. A has 16 rows and 8 columns of tf32, or 16 columns
// of a 16-bit type; B has as many rows, and 8 columns. A fragment is what one lane holds of a matrix. With
// g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k8" and "... mma.m16n8k16"):
//   sums    values 0, 1: row g, columns 2t and 2t + 1; values 2, 3: the same of row g + 8
//   A       words 0, 1, 2, 3: word t of row g, of row g + 8, and word t + 4 of both
//   B       words 0, 1: words t and t + 4 of column g
// A word is a tf32 value, or two neighbouring values of a 16-bit type, the first one in the lower half.
//
// How exact they are: products are exact, because no factor has more than 11 bits. Sums are in f32, but what
// a tensor core adds up at once it cuts off and does not round, so that each product loses up to a unit in
// the last place, always towards zero (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
// tensor cores", 2021). So no long sum should be made by products alone: after a few of them, add the result
// to a sum that rounds.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "runtime/cuda/kernel_launch.h"
#include "shared/kernels/float16.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "The kernels of attention need tensor cores for bf16 and tf32; compile for sm80 or later."
#endif

namespace cp::runtime {

inline constexpr int kMmaRows = 16, kMmaColumns = 8, kMmaWords = 8;  // words of a row of A, a column of B

struct MmaSums {
  float values[4];
};
struct MmaRows {
  std::uint32_t words[4];
};
struct MmaColumns {
  std::uint32_t words[2];
};

// Where a lane's words and sums lie.
CP_DEVICE int mma_sum_row(int lane, int i) { return lane % kWarpThreads / 4 + i / 2 * 8; }
CP_DEVICE int mma_sum_column(int lane, int i) { return lane % 4 * 2 + i % 2; }
CP_DEVICE int mma_row(int lane, int i) { return lane % kWarpThreads / 4 + i % 2 * 8; }
CP_DEVICE int mma_row_word(int lane, int i) { return lane % 4 + i / 2 * 4; }
CP_DEVICE int mma_column(int lane) { return lane % kWarpThreads / 4; }
CP_DEVICE int mma_column_word(int lane, int i) { return lane % 4 + i * 4; }

// What the words are.
struct MmaTf32 {
  static constexpr int kValues = 1;
};
struct MmaF16 {
  static constexpr int kValues = 2;
};
struct MmaBf16 {
  static constexpr int kValues = 2;
};

// Rounds to tf32, which has 10 bits behind the point, to nearest, ties away from zero.
CP_DEVICE std::uint32_t to_tf32(float value) {
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
#else
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return finite ? (bits + 0x1000u) & ~0x1fffu : bits;
#endif
}

// A number as the sum of two of tf32, off by at most 2^-23 of it: `big` is within 2^-11, and what is left is
// exact in f32 and has at most 12 bits, of which `small` has 11. An infinity becomes a NaN.
struct Tf32Split {
  std::uint32_t big, small;
};
CP_DEVICE Tf32Split split_tf32(float value) {
  const std::uint32_t big = to_tf32(value);
  return {big, to_tf32(value - std::bit_cast<float>(big))};
}

#if defined(__CUDACC__)

// sums_of(thread), rows_of(thread) and columns_of(thread) are the fragments of a thread of the warp, all of
// which must come here.
template <class T, class Sums, class A, class B>
CP_DEVICE void mma(Warp, Sums&& sums_of, A&& rows_of, B&& columns_of) {
#if defined(__CUDA_ARCH__)
  const int thread = static_cast<int>(threadIdx.x);
  MmaSums& d = sums_of(thread);
  const MmaRows& a = rows_of(thread);
  const MmaColumns& b = columns_of(thread);
#define CP_MMA(SHAPE)                                                                                       \
  asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d.values[0]), "+f"(d.values[1]), "+f"(d.values[2]), "+f"(d.values[3])                 \
               : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]),       \
                 "r"(b.words[1]))
  if constexpr (std::is_same_v<T, MmaTf32>) {
    CP_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else if constexpr (std::is_same_v<T, MmaF16>) {
    CP_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    CP_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  }
#undef CP_MMA
#endif
}

#else

namespace on_host {

// The first or second value of a word.
template <class T>
float mma_value(std::uint32_t word, int place) {
  if constexpr (std::is_same_v<T, MmaTf32>) {
    return std::bit_cast<float>(word & ~0x1fffu);  // the hardware does not look at the lower bits
  } else {
    const auto bits = static_cast<std::uint16_t>(word >> (16 * place));
    return std::is_same_v<T, MmaF16> ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

inline float towards_zero(double value) {
  const auto nearest = static_cast<float>(value);
  return std::abs(static_cast<double>(nearest)) > std::abs(value) ? std::nextafter(nearest, 0.0F) : nearest;
}

}  // namespace on_host

template <class T, class Sums, class A, class B>
void mma(Warp warp, Sums&& sums_of, A&& rows_of, B&& columns_of) {
  constexpr int kDepth = kMmaWords * T::kValues;
  double a[kMmaRows][kDepth], b[kMmaColumns][kDepth];
  warp.for_each_lane([&](int thread) {
    for (int place = 0; place < T::kValues; ++place) {
      for (int i = 0; i < 4; ++i)
        a[mma_row(thread, i)][mma_row_word(thread, i) * T::kValues + place] =
            static_cast<double>(on_host::mma_value<T>(rows_of(thread).words[i], place));
      for (int i = 0; i < 2; ++i)
        b[mma_column(thread)][mma_column_word(thread, i) * T::kValues + place] =
            static_cast<double>(on_host::mma_value<T>(columns_of(thread).words[i], place));
    }
  });
  warp.for_each_lane([&](int thread) {
    for (int i = 0; i < 4; ++i) {
      float& value = sums_of(thread).values[i];
      const double *row = a[mma_sum_row(thread, i)], *column = b[mma_sum_column(thread, i)];
      auto sum = static_cast<double>(value);
      for (int k = 0; k < kDepth; ++k) sum += row[k] * column[k];
      value = on_host::towards_zero(sum);
    }
  });
}

#endif

// value_of(thread), a reference, becomes f of the values of the four lanes that share rows of sums. f must be
// commutative; all four lanes get equal bits.
template <class Value, class F>
CP_DEVICE void combine_quads(Warp warp, Value&& value_of, F&& f) {
#if defined(__CUDA_ARCH__)
  float& value = value_of(static_cast<int>(threadIdx.x));
  value = f(value, __shfl_xor_sync(0xffffffffu, value, 1));
  value = f(value, __shfl_xor_sync(0xffffffffu, value, 2));
#elif !defined(__CUDACC__)
  float before[kWarpThreads], pairs[kWarpThreads];
  warp.for_each_lane([&](int thread) { before[thread % kWarpThreads] = value_of(thread); });
  for (int i = 0; i < kWarpThreads; ++i) pairs[i] = f(before[i], before[i ^ 1]);
  warp.for_each_lane([&](int thread) {
    const int lane = thread % kWarpThreads;
    value_of(thread) = f(pairs[lane], pairs[lane ^ 2]);
  });
#endif
}

}  // namespace cp::runtime
