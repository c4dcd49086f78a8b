#include "shared/kernels/row_views.h"

#include "shared/base/error.h"

namespace cp {

RowView::RowView(const View& view, std::int64_t rows, const HostMemory& memory, std::int64_t iteration)
    : data_(memory.at(view, iteration)), dtype_(memory.dtype(view)), rows_(rows) {
  std::size_t dims = 0;
  std::int64_t leading = 1;
  while (dims < view.shape.size() && leading != rows) leading *= view.shape[dims++];
  CP_INVARIANT(leading == rows, "a view of ", view.numel(), " elements as ", rows, " rows");
  const auto cut = static_cast<std::ptrdiff_t>(dims);
  row_shape_.assign(view.shape.begin(), view.shape.begin() + cut);
  row_strides_.assign(view.strides.begin(), view.strides.begin() + cut);
  std::size_t inner = 0;  // dimensions of columns with more than one
  for (std::size_t dim = dims; dim < view.shape.size(); ++dim) {
    columns_ *= view.shape[dim];
    if (view.shape[dim] != 1) ++inner, one_step_ = view.strides[dim];
  }
  if (inner < 2 || columns_ == 0) return;
  one_step_ = -1;
  column_offsets_ = {0};
  for (std::size_t dim = dims; dim < view.shape.size(); ++dim) {
    std::vector<std::int64_t> next;
    for (const std::int64_t before : column_offsets_) {
      for (std::int64_t i = 0; i < view.shape[dim]; ++i) next.push_back(before + i * view.strides[dim]);
    }
    column_offsets_ = std::move(next);
  }
}

std::int64_t RowView::offset_of(std::int64_t row) const {
  std::int64_t offset = 0;
  for (std::size_t dim = row_shape_.size(); dim-- > 0; row /= row_shape_[dim])
    offset += row % row_shape_[dim] * row_strides_[dim];
  return offset;
}

void RowView::load(std::int64_t row, float* values, std::int64_t first, std::int64_t count) const {
  with_floating_type(dtype_, [&]<class T>(std::type_identity<T>) {
    const T* from = reinterpret_cast<const T*>(data_) + offset_of(row);
    if (one_step_ == 1) {
      for (std::int64_t i = 0; i < count; ++i) values[i] = cp::load(from[first + i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) values[i] = cp::load(from[column_offset(first + i)]);
    }
  });
}

void RowView::store(std::int64_t row, const float* values, bool adds) const {
  with_floating_type(dtype_, [&]<class T>(std::type_identity<T>) {
    T* to = reinterpret_cast<T*>(data_) + offset_of(row);
    for (std::int64_t i = 0; i < columns_; ++i) {
      T& place = to[column_offset(i)];
      place = convert<T>(adds ? cp::load(place) + values[i] : values[i]);
    }
  });
}

std::vector<float> load_vector(const View& view, const HostMemory& memory, std::int64_t iteration) {
  std::vector<float> values(idx(view.numel()));
  if (!values.empty()) RowView(view, 1, memory, iteration).load(0, values.data());
  return values;
}

void store_vector(const View& view, const HostMemory& memory, std::int64_t iteration,
                  const std::vector<double>& values, bool adds) {
  with_floating_type(memory.dtype(view), [&]<class T>(std::type_identity<T>) {
    T* to = reinterpret_cast<T*>(memory.at(view, iteration));
    for (std::size_t i = 0; i < values.size(); ++i) {
      T& place = to[static_cast<std::int64_t>(i) * view.strides[0]];
      place = convert<T>(adds ? cp::load(place) + values[i] : values[i]);
    }
  });
}

std::vector<std::int32_t> load_integers(const View& view, const HostMemory& memory, std::int64_t iteration) {
  const auto* from = reinterpret_cast<const std::int32_t*>(memory.at(view, iteration));
  std::vector<std::int32_t> values;
  values.reserve(idx(view.numel()));
  const std::int64_t columns = view.shape.size() > 1 ? view.shape[1] : 1;
  for (std::int64_t row = 0; row < view.shape[0]; ++row) {
    for (std::int64_t i = 0; i < columns; ++i)
      values.push_back(from[row * view.strides[0] + (view.shape.size() > 1 ? i * view.strides[1] : 0)]);
  }
  return values;
}

}  // namespace cp
