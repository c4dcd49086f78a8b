#include "shared/context_parallel/tensor.h"

namespace cp::detail {

Order home_order(TensorFormat format) {
  switch (format) {
    case TensorFormat::bshd:
      return Order::bshd;
    case TensorFormat::bnsd:
      return Order::bnsd;
    case TensorFormat::sbhd:
      return Order::rows_outermost;
  }
  return Order::bshd;
}

std::int64_t Tensor::batch_stride() const {
  return order == Order::rows_outermost ? pitch() * head_row() : rows * pitch() * head_row();
}
std::int64_t Tensor::row_stride() const {
  switch (order) {
    case Order::bshd:
      return pitch() * head_row();
    case Order::bnsd:
      return head_row();
    case Order::rows_outermost:
      return batch * pitch() * head_row();
  }
  return 0;
}
std::int64_t Tensor::head_stride() const { return order == Order::bnsd ? rows * head_row() : head_row(); }

View Tensor::view(Range row_range, Range head_range, Range batches) const {
  return {buffer,
          offset + batches.begin * batch_stride() + row_range.begin * row_stride() +
              head_range.begin * head_stride(),
          {batches.len, row_range.len, head_range.len, dim},
          {batch_stride(), row_stride(), head_stride(), 1},
          {}};
}

bool Tensor::has_rows_outermost() const {
  return is_dense() &&
         (order == Order::rows_outermost || (batch == 1 && (order == Order::bshd || heads == 1)));
}

View Tensor::row_block(Range row_range) const {
  const std::int64_t row = batch * heads * dim;
  return flat_view(buffer, offset + row_range.begin * row, row_range.len * row);
}

Tensor Tensor::with_rows(std::int64_t fewer) const {
  Tensor tensor = *this;
  tensor.rows = fewer;
  return tensor;
}

Tensor Tensor::with_heads(Range which) const {
  Tensor tensor = *this;
  tensor.offset += which.begin * head_stride();
  tensor.heads = which.len, tensor.heads_in_memory = pitch();
  return tensor;
}

Tensor Tensor::piece(Range which) const {
  Tensor tensor = *this;
  tensor.offset += which.begin * batch * rows * dim;
  tensor.heads = which.len;
  return tensor;
}

View RowStatistic::view(Range row_range, Range head_range, Range batches) const {
  return {buffer,
          (batches.begin * pitch() + first_head + head_range.begin) * rows + row_range.begin,
          {batches.len, head_range.len, row_range.len},
          {pitch() * rows, rows, 1},
          {}};
}

}  // namespace cp::detail
