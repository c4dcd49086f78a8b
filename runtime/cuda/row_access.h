// What the kernels of rows (row_*.cu) have in common: how they read and write rows of any dtype, how the
// threads of a block share rows, and how they add up along them.
//
// These kernels are bound by memory: an H100 moves some 15 bytes for each multiprocessor and clock, in which
// it issues 128 instructions of threads. So a thread reads and writes 16 bytes at once where rows lie in
// packs of neighbours, has several reads under way before it waits for the first, and reads what it needs
// twice once.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/pack.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/kernels/elements.h"
#include "shared/kernels/float16.h"
#include "shared/plan/plan.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {

// ---- elements of any dtype ----

// What one access reads, as it lies in memory. Values are made of it where they are used, so that a branch on
// the dtype lets nothing wait.
struct alignas(16) RowBits {
  std::uint32_t words[4];
};

// The two elements of 16 bits in a word, by instructions of the GPU: those of float16.h take some seven for
// each element, as many as all else that a kernel of rows computes for it. Bits are the same but for those of
// a NaN, which need not stay which it was.
CP_DEVICE void halves_to_f32(std::uint32_t word, DType dtype, float& low, float& high) {
  if (dtype == DType::bf16) {
    low = std::bit_cast<float>(word << 16), high = std::bit_cast<float>(word & 0xffff0000U);
    return;
  }
#if defined(__CUDA_ARCH__)
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(word));
#else
  low = f16_to_f32(static_cast<std::uint16_t>(word));
  high = f16_to_f32(static_cast<std::uint16_t>(word >> 16));
#endif
}
CP_DEVICE std::uint32_t f32_to_halves(float low, float high, DType dtype) {
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  if (dtype == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  const auto half = [dtype](float value) -> std::uint32_t {
    return dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  };
  return half(low) | half(high) << 16;
#endif
}

// Floating elements in packs of kPack neighbours: 8 of 16 bits, 4 of any dtype, or 1, which may lie anywhere.
// The dtype is a value and not a type. All threads have the same one, so that a branch costs an instruction
// or two, and a kernel is compiled three times instead of once for each combination of its views' dtypes.
template <int kPackOf>
struct RowElements {
  static constexpr int kPack = kPackOf;
  static_assert(kPack == 8 || kPack == 4 || kPack == 1);

  std::byte* data = nullptr;
  DType dtype = DType::f32;  // if kPack is 8, one of 16 bits

  // From the element with that number on.
  CP_DEVICE RowBits read(std::int64_t at) const {
    RowBits bits{};
    if constexpr (kPack == 8) {
      bits = *reinterpret_cast<const RowBits*>(data + 2 * at);
    } else if constexpr (kPack == 4) {
      if (dtype == DType::f32) {
        bits = *reinterpret_cast<const RowBits*>(data + 4 * at);
      } else {
        const auto half = *reinterpret_cast<const Pack<std::uint32_t, 2>*>(data + 2 * at);
        bits.words[0] = half.values[0], bits.words[1] = half.values[1];
      }
    } else if (dtype == DType::f32) {
      bits.words[0] = *reinterpret_cast<const std::uint32_t*>(data + 4 * at);
    } else {
      bits.words[0] = *reinterpret_cast<const std::uint16_t*>(data + 2 * at);
    }
    return bits;
  }

  CP_DEVICE void values(const RowBits& bits, float (&to)[kPack]) const {
    if constexpr (kPack <= 4) {
      if (dtype == DType::f32) {
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) to[i] = std::bit_cast<float>(bits.words[i]);
        return;
      }
    }
    if constexpr (kPack == 1) {
      float beside;
      halves_to_f32(bits.words[0], dtype, to[0], beside);
    } else {
      CP_UNROLL
      for (int i = 0; i < kPack; i += 2) halves_to_f32(bits.words[i / 2], dtype, to[i], to[i + 1]);
    }
  }

  // Each value rounded once.
  CP_DEVICE void write(std::int64_t at, const float (&from)[kPack]) const {
    if constexpr (kPack == 1) {
      write_one(at, from[0]);
    } else {
      RowBits bits{};
      if constexpr (kPack == 4) {
        if (dtype == DType::f32) {
          CP_UNROLL
          for (int i = 0; i < kPack; ++i) bits.words[i] = std::bit_cast<std::uint32_t>(from[i]);
          *reinterpret_cast<RowBits*>(data + 4 * at) = bits;
          return;
        }
      }
      CP_UNROLL
      for (int i = 0; i < kPack; i += 2) bits.words[i / 2] = f32_to_halves(from[i], from[i + 1], dtype);
      if constexpr (kPack == 8) {
        *reinterpret_cast<RowBits*>(data + 2 * at) = bits;
      } else {
        *reinterpret_cast<Pack<std::uint32_t, 2>*>(data + 2 * at) = {{bits.words[0], bits.words[1]}};
      }
    }
  }
  // A float or a double, rounded once.
  template <class Value>
  CP_DEVICE void write_one(std::int64_t at, Value value) const {
    if (dtype == DType::f32) {
      *reinterpret_cast<float*>(data + 4 * at) = convert<float>(value);
    } else if (dtype == DType::bf16) {
      *reinterpret_cast<std::uint16_t*>(data + 2 * at) = convert<BF16>(value).bits;
    } else {
      *reinterpret_cast<std::uint16_t*>(data + 2 * at) = convert<F16>(value).bits;
    }
  }
};

// ---- rows ----

// A view [rows, columns], or [columns] as the same row for all. Columns are counted in elements; those of a
// pack begin at a multiple of it.
template <int kPack>
struct RowMatrix {
  RowElements<kPack> elements;
  std::int64_t row_step = 0, column_step = 0;  // the latter is 1 in packs

  CP_DEVICE std::int64_t at(std::int64_t row, std::int64_t column) const {
    return row * row_step + (kPack == 1 ? column * column_step : column);
  }
  CP_DEVICE RowBits read(std::int64_t row, std::int64_t column) const {
    return elements.read(at(row, column));
  }
  CP_DEVICE void values(const RowBits& bits, float (&to)[kPack]) const { elements.values(bits, to); }
  CP_DEVICE void load(std::int64_t row, std::int64_t column, float (&to)[kPack]) const {
    values(read(row, column), to);
  }
  CP_DEVICE void write(std::int64_t row, std::int64_t column, const float (&from)[kPack]) const {
    elements.write(at(row, column), from);
  }
  // The sum of what is there and the values, rounded once.
  CP_DEVICE void add(std::int64_t row, std::int64_t column, const float (&values)[kPack]) const {
    float sums[kPack];
    load(row, column, sums);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) sums[i] += values[i];
    write(row, column, sums);
  }
};

// A result with rows, which is written, or added to what is there.
template <int kPack>
struct RowOutput {
  RowMatrix<kPack> matrix;
  bool adds = false;

  CP_DEVICE void give(std::int64_t row, std::int64_t column, const float (&values)[kPack]) const {
    if (adds) {
      matrix.add(row, column, values);
    } else {
      matrix.write(row, column, values);
    }
  }
};

// A view [n] or [n, k] of numbers of one type: statistics, which are f32, and indices, which are i32.
template <class T>
struct RowScalars {
  T* data = nullptr;
  std::int64_t row_step = 0, column_step = 0;
  CP_DEVICE T& at(std::int64_t row, std::int64_t column = 0) const {
    return data[row * row_step + column * column_step];
  }
};
using Statistics = RowScalars<float>;
using Indices = RowScalars<std::int32_t>;

// How the threads of a block share rows: `1 << shift` neighbours, the lanes of a row, take its packs in
// turns.
inline constexpr int kRowThreads = 256;
struct RowLanes {
  std::int64_t rows = 0, packs = 0;  // packs: of a row
  int shift = 0;

  constexpr int lanes() const { return 1 << shift; }
  constexpr int lane(int thread) const { return thread & (lanes() - 1); }
  constexpr int first_lane(int thread) const { return thread & ~(lanes() - 1); }
  // Behind `rows` on the last threads of the last block.
  constexpr std::int64_t row(std::int64_t block, int thread) const {
    return (block * kRowThreads + thread) >> shift;
  }
  constexpr std::int64_t rows_of_block() const { return kRowThreads >> shift; }
  constexpr std::int64_t blocks() const { return (rows + rows_of_block() - 1) / rows_of_block(); }
};
// A lane has about as many packs as it reads at once: with fewer, the work for each row would weigh more, and
// with more, the rows that are under way at once would be too few to keep the memory busy. Chosen.
inline constexpr int kPacksOfLane = 4;
RowLanes row_lanes(std::int64_t rows, std::int64_t packs, int packs_of_lane = kPacksOfLane);

// Throws InvalidInput if rows x parts of a row are more than a Divider takes.
void require_numbers(std::int64_t rows, std::int64_t parts);

// Calls use(pack, read(pack)) for each pack of a lane: first, first + step, and so on. The reads of kCount
// packs are under way together.
template <int kCount = kPacksOfLane, class Read, class Use>
CP_DEVICE void for_packs(std::int64_t first, std::int64_t step, std::int64_t end, Read&& read, Use&& use) {
  for (; first < end; first += kCount * step) {
    std::remove_cvref_t<decltype(read(first))> bits[kCount];
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (first + i * step < end) bits[i] = read(first + i * step);
    }
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (first + i * step < end) use(first + i * step, bits[i]);
    }
  }
}

// Joins the values of each row's lanes, which join(a, b) must let happen in any order, and leaves
// finish(value, thread) of each row in shared memory, at the row's first lane. `shared` has one Value for
// each thread. All values are joined in a fixed order: first those 16 apart, then the 16 that are left. Two
// short rows of sums have fewer steps that wait for one another than a tree, and fewer barriers.
template <class Value, class Join, class Finish>
CP_DEVICE void join_lanes(Block& block, const RowLanes& lanes, PerThread<Value>& values, Value* shared,
                          Join&& join, Finish&& finish) {
  constexpr int kLast = 16;
  block.for_each_thread([&](int thread) { shared[thread] = values[thread]; });
  if (lanes.lanes() > kLast) {
    block.for_each_thread([&](int thread) {
      if (lanes.lane(thread) >= kLast) return;
      Value value = shared[thread];
      for (int other = kLast; other < lanes.lanes(); other += kLast)
        value = join(value, shared[thread + other]);
      shared[thread] = value;
    });
  }
  block.for_each_thread([&](int thread) {
    if (lanes.lane(thread) > 0) return;
    const int left = lanes.lanes() < kLast ? lanes.lanes() : kLast;
    Value value = shared[thread];
    for (int other = 1; other < left; ++other) value = join(value, shared[thread + other]);
    shared[thread] = finish(value, thread);
  });
}

// 1 / sqrt(value), within two units in the last place. All lanes of a row wait for one of them here, for
// which a root and a quotient in f64 take as long as memory to answer: so they are not taken.
CP_DEVICE double near_inverse_root(double value) {
#if defined(__CUDA_ARCH__)
  return rsqrt(value);
#else
  return 1 / sqrt(value);
#endif
}

// ---- preparation ----

// Of the views [n, columns] and [columns] of a kernel: how many neighbours one access can take of each of
// them. `bounds` are columns at which something begins or ends.
int row_pack(const std::vector<const View*>& views, const std::vector<std::int64_t>& bounds,
             const CudaMemory& memory);
// Whether they lie so in memory, too.
bool are_aligned(const std::vector<const View*>& views, int pack, const CudaMemory& memory,
                 std::int64_t iteration);

template <int kPack>
RowMatrix<kPack> row_matrix(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  return {{memory.at(view, iteration), memory.dtype(view)},
          view.shape.size() > 1 ? view.strides[0] : 0,
          view.strides.back()};
}
template <int kPack>
RowOutput<kPack> row_output(const RowResult& result, const CudaMemory& memory, std::int64_t iteration) {
  return {row_matrix<kPack>(*result.view, memory, iteration), result.adds};
}
template <class T>
RowScalars<T> row_numbers(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  return {reinterpret_cast<T*>(memory.at(view, iteration)), view.strides[0],
          view.shape.size() > 1 ? view.strides[1] : 0};
}
inline Statistics statistics(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  return row_numbers<float>(view, memory, iteration);
}
inline Indices indices(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  return row_numbers<std::int32_t>(view, memory, iteration);
}

// Returns what calls launch(std::integral_constant<int, pack>, iteration, stream) with the widest pack that
// fits. The views and the memory must outlive it.
template <class Launch>
PreparedKernel prepare_rows(std::vector<const View*> views, const std::vector<std::int64_t>& bounds,
                            const CudaMemory& memory, Launch launch) {
  const int pack = row_pack(views, bounds, memory);
  return [views = std::move(views), pack, &memory, launch = std::move(launch)](std::int64_t iteration,
                                                                               cudaStream_t stream) {
    if (pack > 1 && are_aligned(views, pack, memory, iteration)) {
      if (pack == 8) return launch(std::integral_constant<int, 8>(), iteration, stream);
      return launch(std::integral_constant<int, 4>(), iteration, stream);
    }
    return launch(std::integral_constant<int, 1>(), iteration, stream);
  };
}

}  // namespace cp::runtime
