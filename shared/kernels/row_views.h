// How the kernels of rows see their views: row by row, as f32 values, whatever the dtype and the strides.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/index.h"
#include "shared/kernels/elements.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// A view as `rows` rows: its leading dimensions are the rows, and the others their columns.
class RowView {
 public:
  RowView(const View& view, std::int64_t rows, const HostMemory& memory, std::int64_t iteration);
  // The first dimension counts the rows.
  RowView(const View& view, const HostMemory& memory, std::int64_t iteration)
      : RowView(view, view.shape.front(), memory, iteration) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  // Columns first .. first + count - 1 of a row, or all of them.
  void load(std::int64_t row, float* values, std::int64_t first, std::int64_t count) const;
  void load(std::int64_t row, float* values) const { load(row, values, 0, columns_); }
  // Writes values, or adds them to what is there, rounded once.
  void store(std::int64_t row, const float* values, bool adds = false) const;

 private:
  std::int64_t offset_of(std::int64_t row) const;
  std::int64_t column_offset(std::int64_t column) const {
    return one_step_ >= 0 ? column * one_step_ : column_offsets_[idx(column)];
  }

  std::byte* data_;
  DType dtype_;
  std::int64_t rows_, columns_ = 1;
  Shape row_shape_, row_strides_;
  std::int64_t one_step_ = 1;                 // between columns; -1: column_offsets_ has their places
  std::vector<std::int64_t> column_offsets_;  // of several dimensions
};

// A vector, loaded; and one that is stored.
std::vector<float> load_vector(const View& view, const HostMemory& memory, std::int64_t iteration);
void store_vector(const View& view, const HostMemory& memory, std::int64_t iteration,
                  const std::vector<double>& values, bool adds);

// Elements of integer views, [n] or [n, k], by row.
std::vector<std::int32_t> load_integers(const View& view, const HostMemory& memory, std::int64_t iteration);

// Views of statistics, [n, k] or [k].
inline float* statistic(const View& view, const HostMemory& memory, std::int64_t iteration) {
  return reinterpret_cast<float*>(memory.at(view, iteration));
}
inline float& at(float* statistics, const View& view, std::int64_t row, std::int64_t column = 0) {
  return statistics[row * view.strides[0] + (view.strides.size() > 1 ? column * view.strides[1] : 0)];
}

}  // namespace cp
