// A Tensor is a part of q, k, v, out or a gradient in the memory of a plan, from which the views of steps are
// cut. Internal to shared/context_parallel.
#pragma once

#include <cstdint>

#include "shared/context_parallel/problem.h"
#include "shared/plan/plan.h"

namespace cp::detail {

// The order of the dimensions in memory. If rows are outermost, any range of rows is contiguous.
enum class Order : std::uint8_t { bshd, bnsd, rows_outermost };

// [begin, begin + len).
struct Range {
  std::int64_t begin = 0, len = 0;
  bool operator==(const Range&) const = default;
};

struct Tensor {
  BufferId buffer = -1;
  DType dtype = DType::f32;
  std::int64_t batch = 0, rows = 0, heads = 0, dim = 0;
  Order order = Order::rows_outermost;
  std::int64_t offset = 0;
  // If the tensor is some heads of a larger one: the heads of that one.
  std::int64_t heads_in_memory = 0;
  // If each head's elements are some of a longer row: the length of that row, which `offset` points into.
  std::int64_t dim_in_memory = 0;

  bool is_absent() const { return buffer < 0; }  // nobody asked for it
  std::int64_t numel() const { return batch * rows * heads * dim; }
  std::int64_t batch_stride() const;
  std::int64_t row_stride() const;
  std::int64_t head_stride() const;

  Range all_rows() const { return {0, rows}; }
  Range all_heads() const { return {0, heads}; }
  Range all_batches() const { return {0, batch}; }
  // [batch, rows, heads, dim], as attention kernels take it.
  View view(Range rows, Range heads, Range batches) const;
  View view(Range of_rows, Range of_heads) const { return view(of_rows, of_heads, all_batches()); }
  View view() const { return view(all_rows(), all_heads()); }
  View flat() const { return flat_view(buffer, offset, numel()); }

  // Whether a range of rows, with all heads and batch entries, is contiguous and in the order of
  // rows_outermost.
  bool has_rows_outermost() const;
  // The view of such a range.
  View row_block(Range rows) const;
  // The same memory with fewer rows: they take its first numel() elements.
  Tensor with_rows(std::int64_t fewer) const;
  // Some of the heads, where they are.
  Tensor with_heads(Range which) const;
  // Some of the heads, if the memory has the pieces of the heads one after the other, each of them dense.
  Tensor piece(Range which) const;
  bool is_dense() const {
    return (heads_in_memory == 0 || heads_in_memory == heads) && (dim_in_memory == 0 || dim_in_memory == dim);
  }

 private:
  std::int64_t pitch() const { return heads_in_memory > 0 ? heads_in_memory : heads; }
  std::int64_t head_row() const { return dim_in_memory > 0 ? dim_in_memory : dim; }
};

Order home_order(TensorFormat format);

// lse or delta: dense [batch, heads, rows], f32.
struct RowStatistic {
  BufferId buffer = -1;
  std::int64_t batch = 0, heads = 0, rows = 0;
  std::int64_t first_head = 0, heads_in_memory = 0;  // as in a Tensor

  std::int64_t numel() const { return batch * heads * rows; }
  View view(Range of_rows, Range of_heads, Range of_batches) const;
  View view(Range of_rows, Range of_heads) const { return view(of_rows, of_heads, {0, batch}); }
  View view(Range of_heads) const { return view({0, rows}, of_heads); }
  View view() const { return view({0, heads}); }
  View flat() const { return flat_view(buffer, 0, numel()); }
  bool is_dense() const { return heads_in_memory == 0 || heads_in_memory == heads; }
  RowStatistic with_rows(std::int64_t fewer) const { return {buffer, batch, heads, fewer}; }
  RowStatistic with_heads(Range which) const {
    return {buffer, batch, which.len, rows, first_head + which.begin, pitch()};
  }

 private:
  std::int64_t pitch() const { return heads_in_memory > 0 ? heads_in_memory : heads; }
};

}  // namespace cp::detail
