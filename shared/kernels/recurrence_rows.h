// The rows that the kernels of recurrences read: those of one key head of one batch entry, with the value
// heads that share it, as f32 values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shared/kernels/attention_rows.h"
#include "shared/kernels/recurrence_state.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// A [batch, rows, heads] view (log_decay, beta and their gradients) as [batch, rows, heads, 1].
View as_rows_of_one(const View& view);

// Some neighbouring rows of a [batch, rows, heads, dim] view, loaded: at(row, head) has dim values.
class LoadedRows {
 public:
  // `heads` neighbouring heads from `first_head` on, at most `most` rows at once.
  LoadedRows(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
             std::int64_t first_head, std::int64_t heads, std::int64_t most);

  void load(std::int64_t begin, std::int64_t count);
  // Writes what at() has for these rows back, rounded to the view's dtype.
  void store(std::int64_t begin, std::int64_t count) const;
  void fill(float value, std::int64_t count);

  float* at(std::int64_t row, std::int64_t head = 0) {
    return values_.data() + (row * heads_ + head) * rows_.dim();
  }
  const float* at(std::int64_t row, std::int64_t head = 0) const {
    return values_.data() + (row * heads_ + head) * rows_.dim();
  }
  std::int64_t size() const { return rows_.size() / heads_; }
  std::int64_t dim() const { return rows_.dim(); }

 private:
  HeadRows rows_;
  std::int64_t heads_;
  Floats values_;
};

// The states of some neighbouring heads, [head][key_dim][value_dim], and how they lie in a view.
class HeadStates {
 public:
  HeadStates(std::int64_t heads, StateSize size)
      : heads_(heads), size_(size), values_(std::max<std::int64_t>(1, heads * size.numel())) {
    clear();
  }
  void clear() { std::fill_n(values_.data(), heads_ * size_.numel(), 0.0F); }
  float* of(std::int64_t head) { return values_.data() + head * size_.numel(); }

  void load(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
            std::int64_t first_head) {
    visit(view, memory, iteration, batch, first_head, [](float& here, float& there) { here = there; });
  }
  void store(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
             std::int64_t first_head) {
    visit(view, memory, iteration, batch, first_head, [](float& here, float& there) { there = here; });
  }

 private:
  template <class Visit>
  void visit(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
             std::int64_t first_head, const Visit& move) {
    float* const first = reinterpret_cast<float*>(memory.at(view, iteration));
    const Shape& step = view.strides;
    for (std::int64_t h = 0; h < heads_; ++h) {
      float* const there = first + batch * step[0] + (first_head + h) * step[1];
      for (std::int64_t i = 0; i < size_.keys; ++i) {
        for (std::int64_t j = 0; j < size_.values; ++j)
          move(of(h)[i * size_.values + j], there[i * step[2] + j * step[3]]);
      }
    }
  }

  std::int64_t heads_;
  StateSize size_;
  Floats values_;
};

}  // namespace cp
