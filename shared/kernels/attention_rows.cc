#include "shared/kernels/attention_rows.h"

#include <algorithm>
#include <array>
#include <bit>

#include "shared/kernels/elements.h"
#include "shared/kernels/transpose_four.h"

namespace cp {
namespace {

template <class T>
void load_row(const T* in, std::int64_t stride, std::int64_t count, float* out) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = load(in[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = load(in[i * stride]);
  }
}

template <class T>
void store_row(const float* in, std::int64_t count, T* out, std::int64_t stride, bool accumulate) {
  if (stride == 1 && !accumulate) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert<T>(in[i]);
  } else if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert<T>(load(out[i]) + in[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      T& element = out[i * stride];
      element = convert<T>(accumulate ? load(element) + in[i] : in[i]);
    }
  }
}

}  // namespace

Floats::Floats(std::int64_t count)
    : data_(static_cast<float*>(
          ::operator new[](static_cast<std::size_t>(count) * sizeof(float), kAlignment))) {}

HeadRows::HeadRows(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                   std::int64_t first_head, std::int64_t heads)
    : view_(view), data_(memory.at(view, iteration)), dtype_(memory.dtype(view)), heads_(heads) {
  if (view.numel() == 0) return;  // such a view may have no memory to point to
  data_ += (batch * view.strides[0] + first_head * view.strides[2]) * size_bytes(dtype_);
}

void HeadRows::load(std::int64_t begin, std::int64_t count, float* rows, std::int64_t row_size) const {
  with_floating_type(dtype_, [&]<class T>(std::type_identity<T>) {
    const T* data = reinterpret_cast<const T*>(data_);
    for (std::int64_t row = begin; row < begin + count; ++row, rows += row_size) {
      const std::int64_t offset = row / heads_ * view_.strides[1] + row % heads_ * view_.strides[2];
      load_row(data + offset, view_.strides[3], dim(), rows);
    }
  });
}

void HeadRows::store(std::int64_t begin, std::int64_t count, const float* rows, std::int64_t row_size,
                     bool accumulate) const {
  with_floating_type(dtype_, [&]<class T>(std::type_identity<T>) {
    T* data = reinterpret_cast<T*>(data_);
    for (std::int64_t row = begin; row < begin + count; ++row, rows += row_size) {
      const std::int64_t offset = row / heads_ * view_.strides[1] + row % heads_ * view_.strides[2];
      store_row(rows, dim(), data + offset, view_.strides[3], accumulate);
    }
  });
}

View as_rows(const View& statistic) {
  const Shape &shape = statistic.shape, &strides = statistic.strides;
  return {statistic.buffer,
          statistic.offset,
          {shape[0], shape[2], shape[1], 1},
          {strides[0], strides[2], strides[1], 1},
          statistic.advance};
}

// Eight sums side by side, so that the loop vectorises, added up in order.
float row_dot(const float* a, const float* b, std::int64_t dim) {
  std::array<float, 8> sums = {};
  std::int64_t d = 0;
  for (; d + 8 <= dim; d += 8) {
    for (std::int64_t i = 0; i < 8; ++i) sums[static_cast<std::size_t>(i)] += a[d + i] * b[d + i];
  }
  float sum = 0;
  for (; d < dim; ++d) sum += a[d] * b[d];
  for (const float each : sums) sum += each;
  return sum;
}

void transpose(const float* in, std::int64_t in_row, std::int64_t rows, std::int64_t columns, float* out,
               std::int64_t out_row) {
  const std::int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (std::int64_t row = 0; row < whole_rows; row += 4) {
    for (std::int64_t column = 0; column < whole_columns; column += 4) {
      transpose_four(in + row * in_row + column, in_row, out + column * out_row + row, out_row);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column) {
      out[column * out_row + row] = in[row * in_row + column];
    }
  }
}

bool multiplies_pairs(const TileKernels& tiles, const HostMemory& memory, const View& a, const View& b) {
  return tiles.multiply_pairs != nullptr && memory.dtype(a) == DType::bf16 && memory.dtype(b) == DType::bf16;
}

void pack_pairs(const float* in, std::int64_t rows, std::int64_t columns, float* out) {
  for (std::int64_t row = 0; row < rows; row += 2) {
    const float *even = in + row * columns, *odd = even + columns;
    float* pairs = out + row / 2 * columns;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::uint32_t low = std::bit_cast<std::uint32_t>(even[column]) >> 16;
      const std::uint32_t high = row + 1 < rows ? std::bit_cast<std::uint32_t>(odd[column]) & 0xffff0000u : 0;
      pairs[column] = std::bit_cast<float>(low | high);
    }
  }
}

PackedRows::PackedRows(const HeadRows& rows, const TileKernels& kernels, std::int64_t tile_rows, For use,
                       bool pairs)
    : rows_(rows),
      kernels_(&kernels),
      tile_rows_(tile_rows),
      padded_rows_(round_up(rows.size(), kernels.panel_rows)),
      padded_dim_(round_up(rows.dim(), kernels.panel_rows)),
      depth_(depth_of(rows.dim(), pairs)),
      use_(use),
      pairs_(pairs),
      packed_(static_cast<std::size_t>((rows.size() + tile_rows - 1) / tile_rows)),
      dim_sums_(use == For::row_sums ? 0 : padded_rows_ * depth_),
      row_sums_(use == For::dim_sums ? 0 : padded_rows_ * padded_dim_),
      loaded_(std::min(tile_rows, padded_rows_) * padded_dim_),
      columns_(pairs ? kernels.panel_rows * rows.dim() : 0) {}

void PackedRows::pack(std::int64_t tile) {
  if (packed_[static_cast<std::size_t>(tile)]) return;
  packed_[static_cast<std::size_t>(tile)] = true;
  const std::int64_t begin = tile * tile_rows_, count = std::min(tile_rows_, rows_.size() - begin);
  const std::int64_t padded_count = std::min(tile_rows_, padded_rows_ - begin);
  const std::int64_t dim = rows_.dim(), panel_rows = kernels_->panel_rows;
  float* loaded = loaded_.data();
  if (padded_dim_ > dim || padded_count > count) std::fill_n(loaded, padded_count * padded_dim_, 0.0f);
  rows_.load(begin, count, loaded, padded_dim_);
  if (use_ != For::row_sums) {
    for (std::int64_t row = 0; row < padded_count; row += panel_rows) {
      float* panel = dim_sums_.data() + (begin + row) * depth_;
      transpose(loaded + row * padded_dim_, padded_dim_, panel_rows, dim, pairs_ ? columns_.data() : panel,
                panel_rows);
      if (pairs_) pack_pairs(columns_.data(), dim, panel_rows, panel);
    }
  }
  if (use_ != For::dim_sums) {
    for (std::int64_t column = 0; column < padded_dim_; column += panel_rows) {
      float* panel = row_sums_.data() + column * padded_rows_ + begin * panel_rows;
      for (std::int64_t row = 0; row < padded_count; ++row) {
        std::copy_n(loaded + row * padded_dim_ + column, panel_rows, panel + row * panel_rows);
      }
    }
  }
}

}  // namespace cp
