#include "shared/kernels/recurrence_rows.h"

#include <algorithm>

namespace cp {

View as_rows_of_one(const View& view) {
  View rows = view;
  rows.shape.push_back(1), rows.strides.push_back(1);
  return rows;
}

LoadedRows::LoadedRows(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                       std::int64_t first_head, std::int64_t heads, std::int64_t most)
    : rows_(view, memory, iteration, batch, first_head, heads),
      heads_(heads),
      values_(std::max<std::int64_t>(1, most * heads * view.shape[3])) {}

void LoadedRows::load(std::int64_t begin, std::int64_t count) {
  rows_.load(begin * heads_, count * heads_, values_.data(), rows_.dim());
}

void LoadedRows::store(std::int64_t begin, std::int64_t count) const {
  rows_.store(begin * heads_, count * heads_, values_.data(), rows_.dim());
}

void LoadedRows::fill(float value, std::int64_t count) {
  std::fill_n(values_.data(), count * heads_ * rows_.dim(), value);
}

}  // namespace cp
