// MatMul: blocks of both operands are unpacked to dense values, products are summed (16-bit types in f32) in
// ascending k, and the sum is rounded once, unless it is kept in f32. The order of summation depends on no
// block size, so that results are equal on every host.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "shared/kernels/elements.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/product_rows.h"

namespace cp {
namespace {

// A block of the result, and the depth of the products that are added to it at a time. Chosen: in f32 the
// block is 256 KiB, its part of a and of b 128 KiB each, which together stay in a second-level cache of 1
// MiB or nearly so, and each unpacked element is a factor of 256 products. No result depends on them: each
// sum runs in ascending k in one accumulator.
constexpr std::int64_t kRows = 256, kColumns = 256, kDepth = 128;

struct Block {
  std::int64_t row, column, rows, columns;
};

template <class T>
void unpack(const T* matrix, const View& view, const Block& block, ValueOf<T>* out) {
  // Of a transposed matrix some columns are read beside one another: each read and each written cache line is
  // used whole. Chosen: 16 floats are a line.
  constexpr std::int64_t kBeside = 16;
  if (view.strides[0] == 1 && view.strides[1] != 1) {
    for (std::int64_t first = 0; first < block.columns; first += kBeside) {
      const std::int64_t last = std::min(block.columns, first + kBeside);
      const T* const corner = matrix + block.row + block.column * view.strides[1];
      for (std::int64_t r = 0; r < block.rows; ++r) {
        for (std::int64_t c = first; c < last; ++c)
          out[r * block.columns + c] = load(corner[r + c * view.strides[1]]);
      }
    }
    return;
  }
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const T* row = matrix + (block.row + r) * view.strides[0] + block.column * view.strides[1];
    for (std::int64_t c = 0; c < block.columns; ++c)
      out[r * block.columns + c] = load(row[c * view.strides[1]]);
  }
}

template <class Value>
void multiply_add(Value* sums, const Value* a, const Value* b, std::int64_t rows, std::int64_t columns,
                  std::int64_t depth) {
  if constexpr (std::is_same_v<Value, float>) return multiply_rows()(sums, a, b, rows, columns, depth);
  for (std::int64_t r = 0; r < rows; ++r) {
    Value* sum = sums + r * columns;
    for (std::int64_t k = 0; k < depth; ++k) {
      const Value factor = a[r * depth + k];
      const Value* row = b + k * columns;
      for (std::int64_t c = 0; c < columns; ++c) sum[c] = plus(sum[c], times(factor, row[c]));
    }
  }
}

template <class T, class Value>
void store(const std::vector<Value>& sums, const Block& block, const View& view, T* matrix, bool accumulate) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    T* row = matrix + (block.row + r) * view.strides[0] + block.column * view.strides[1];
    for (std::int64_t c = 0; c < block.columns; ++c) {
      T& out = row[c * view.strides[1]];
      const Value sum = sums[static_cast<std::size_t>(r * block.columns + c)];
      out = convert<T>(accumulate ? plus(load(out), sum) : sum);
    }
  }
}

template <class T, class Out>
void multiply_block(const MatMul& kernel, const T* a, const T* b, Out* out, const Block& block) {
  const std::int64_t depth = kernel.a.shape[1];
  std::vector<ValueOf<T>> sums(static_cast<std::size_t>(block.rows * block.columns));
  std::vector<ValueOf<T>> a_block(static_cast<std::size_t>(block.rows * kDepth));
  std::vector<ValueOf<T>> b_block(static_cast<std::size_t>(kDepth * block.columns));
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    const std::int64_t part = std::min(kDepth, depth - k);
    unpack(a, kernel.a, {block.row, k, block.rows, part}, a_block.data());
    unpack(b, kernel.b, {k, block.column, part, block.columns}, b_block.data());
    multiply_add(sums.data(), a_block.data(), b_block.data(), block.rows, block.columns, part);
  }
  store(sums, block, kernel.out, out, kernel.accumulate);
}

template <class T, class Out>
void multiply(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t rows = kernel.out.shape[0], columns = kernel.out.shape[1];
  const T* a = reinterpret_cast<const T*>(memory.at(kernel.a, iteration));
  const T* b = reinterpret_cast<const T*>(memory.at(kernel.b, iteration));
  Out* out = reinterpret_cast<Out*>(memory.at(kernel.out, iteration));
  for (std::int64_t row = 0; row < rows; row += kRows) {
    for (std::int64_t column = 0; column < columns; column += kColumns) {
      multiply_block(kernel, a, b, out,
                     {row, column, std::min(kRows, rows - row), std::min(kColumns, columns - column)});
    }
  }
}

}  // namespace

void run(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration) {
  if (kernel.out.shape.size() == 3) {
    for (std::int64_t i = 0; i < num_products(kernel); ++i) run(product_of(kernel, i), memory, iteration);
    return;
  }
  const bool same = memory.dtype(kernel.out) == memory.dtype(kernel.a);
  with_element_type(memory.dtype(kernel.a), [&]<class T>(std::type_identity<T>) {
    if constexpr (SixteenBit<T>) {
      if (!same) return multiply<T, float>(kernel, memory, iteration);
    }
    multiply<T, T>(kernel, memory, iteration);
  });
}

}  // namespace cp
